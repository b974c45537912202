"""Exploration noise: the right distribution, and the same numbers however the drones are shared out."""

from __future__ import annotations

import torch
from torch.distributions import Beta

from navrl.ppo.noise import EDGE, Noise

SHAPES = torch.tensor([[2.0, 5.0, 1.0], [3.0, 1.1, 1.0]])  # alpha and beta of each axis; the last is uniform


def shapes(drones: int) -> tuple[torch.Tensor, torch.Tensor]:
    return SHAPES[0].expand(drones, 3), SHAPES[1].expand(drones, 3)


def test_draws_are_of_the_beta_distribution() -> None:
    drawn = Noise(seed=1).draw(*shapes(200_000))
    known = Beta(SHAPES[0], SHAPES[1])
    assert torch.allclose(drawn.mean(0), known.mean, atol=3e-3)
    assert torch.allclose(drawn.var(0), known.variance, atol=3e-3)
    assert drawn.min() >= EDGE and drawn.max() <= 1 - EDGE, "log x and log(1 - x) are finite"
    # The largest gap between the shares below x, drawn and known (Kolmogorov and Smirnov): 1.95 / sqrt(n) is rare.
    x = torch.linspace(1e-4, 1 - 1e-4, 20_001, dtype=torch.float64)
    density = Beta(SHAPES[0].double(), SHAPES[1].double()).log_prob(x[:, None].expand(-1, 3)).exp()
    below = torch.cumulative_trapezoid(density, x, dim=0)
    for axis in range(3):
        share = torch.searchsorted(drawn[:, axis].double().sort()[0].contiguous(), x[1:]) / len(drawn)
        assert (share - below[:, axis]).abs().max() < 1.95 / len(drawn) ** 0.5 + 2e-4


def test_numbers_follow_seed_drone_and_decision() -> None:
    noise = Noise(seed=1)
    first, second = noise.draw(*shapes(1000)), noise.draw(*shapes(1000))
    assert torch.equal(first, Noise(seed=1).draw(*shapes(1000)))
    assert noise.decision == 2
    others = second, Noise(seed=2).draw(*shapes(1000)), Noise(seed=1, first=1000).draw(*shapes(1000))
    for other in others:
        assert len(set(first.flatten().tolist()) & set(other.flatten().tolist())) < 10
        assert abs(float(torch.corrcoef(torch.stack([first[:, 2], other[:, 2]]))[0, 1])) < 0.15
    axes = torch.corrcoef(first.T) - torch.eye(3)
    assert axes.abs().max() < 0.15


def test_a_drone_has_the_same_numbers_in_any_share() -> None:
    whole, parts = Noise(seed=3), [Noise(seed=3, first=first) for first in (0, 100, 164)]
    for _ in range(3):
        drawn = whole.draw(*shapes(200))
        shared = [noise.draw(*shapes(size)) for noise, size in zip(parts, (100, 64, 36), strict=True)]
        assert torch.equal(drawn, torch.cat(shared))


def test_a_shape_that_is_no_number_ends() -> None:
    alpha, beta = (part.clone() for part in shapes(4))
    alpha[1], beta[2] = float("nan"), float("inf")
    drawn = Noise(seed=0).draw(alpha, beta)
    assert torch.isfinite(drawn[[0, 3]]).all() and drawn[1].isnan().all()
