"""Advantages against a worked example, and the value normaliser against its definition."""

from __future__ import annotations

import torch

from navrl.ppo.returns import ValueNorm, gae


def test_gae_worked_example() -> None:
    """Five steps of one drone: a termination after the second, a truncation after the fourth. gamma .5, lambda .5.

    step            0     1     2     3     4
    reward          1     2     3     4     5
    value           10    20    30    40    50
    value of next   20    -     40    8     60     8: at the time limit, before the reset
    delta           1+10-10   2-20   3+20-30   4+4-40   5+30-50
                    = 1   = -18   = -7   = -32  = -15
    advantage       1 - 18/4   -18   -7 - 32/4   -32   -15
                    = -3.5         = -15
    """
    reward = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]])
    value = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]])
    next_value = torch.tensor([[20.0], [999.0], [40.0], [8.0], [60.0]])  # 999 must not be used
    terminated = torch.tensor([[False], [True], [False], [False], [False]])
    done = torch.tensor([[False], [True], [False], [True], [False]])
    advantage, returns = gae(reward, value, next_value, done, terminated, gamma=0.5, lam=0.5)
    assert advantage.view(-1).tolist() == [-3.5, -18.0, -15.0, -32.0, -15.0]
    assert torch.equal(returns, advantage + value)


def test_lambda_one_is_the_discounted_return() -> None:
    torch.manual_seed(0)
    reward, value = torch.randn(2, 12, 7)
    never = torch.zeros(12, 7, dtype=torch.bool)
    last = torch.randn(7)
    advantage, returns = gae(reward, value, torch.cat([value[1:], last[None]]), never, never, gamma=0.9, lam=1.0)
    expected = last
    for t in reversed(range(12)):
        expected = reward[t] + 0.9 * expected
        assert torch.allclose(returns[t], expected, atol=1e-5)
    assert torch.allclose(advantage, returns - value)


def test_value_norm_matches_its_definition() -> None:
    torch.manual_seed(0)
    norm, beta = ValueNorm(beta=0.9), 0.9
    mean = square = weight = 0.0
    for _ in range(5):
        returns = 3.0 + 2.0 * torch.randn(100)
        norm.update(returns.mean(), returns.square().mean())
        mean = beta * mean + (1 - beta) * float(returns.mean())
        square = beta * square + (1 - beta) * float(returns.square().mean())
        weight = beta * weight + (1 - beta)
    std = (square / weight - (mean / weight) ** 2) ** 0.5
    x = torch.tensor([-1.0, 0.0, 7.0])
    assert torch.allclose(norm.normalize(x), (x - mean / weight) / std, atol=1e-5)
    assert torch.allclose(norm.denormalize(norm.normalize(x)), x, atol=1e-5)
