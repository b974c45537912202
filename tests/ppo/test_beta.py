"""The Beta distribution against torch.distributions, in double precision."""

from __future__ import annotations

import torch
from torch.distributions import Beta

from navrl.ppo import beta


def parameters() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    alpha, b = (1.0 + 20.0 * torch.rand(2, 64, 3, dtype=torch.float64) ** 3).requires_grad_().unbind()
    return alpha, b, torch.rand(64, 3, dtype=torch.float64).clamp(1e-4, 1 - 1e-4)


def test_values_and_gradients() -> None:
    alpha, b, unit = parameters()
    weight = torch.randn(2, 64, dtype=torch.float64)
    log_prob, entropy = beta.log_prob_entropy(alpha, b, unit.log(), torch.log1p(-unit))
    ours = torch.autograd.grad((weight[0] * log_prob + weight[1] * entropy).sum(), (alpha, b))
    known = Beta(alpha, b)
    expected = known.log_prob(unit).sum(-1), known.entropy().sum(-1)
    theirs = torch.autograd.grad((weight[0] * expected[0] + weight[1] * expected[1]).sum(), (alpha, b))
    assert torch.allclose(log_prob, expected[0]) and torch.allclose(entropy, expected[1])
    assert torch.allclose(beta.log_prob(alpha, b, unit), expected[0])
    for a, e in zip(ours, theirs, strict=True):
        assert torch.allclose(a, e, atol=1e-10)
