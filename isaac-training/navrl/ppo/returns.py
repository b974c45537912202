"""Generalised advantage estimation that is correct at episode ends, and running normalisation of returns."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, done: Tensor, terminated: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Compute generalised advantage estimates and returns, all (T, N).

    `next_value` is the value of the next observation, before any reset. A terminated step bootstraps from
    zero, a truncated one from `next_value`; the trace stops at both.
    """
    bootstrap = torch.where(terminated, 0.0, next_value)
    delta = reward + gamma * bootstrap - value
    keep = (~done).to(reward.dtype) * (gamma * lam)
    advantage = torch.empty_like(delta)
    trace = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        trace = torch.addcmul(delta[t], keep[t], trace, out=advantage[t])
    return advantage, advantage + value


class ValueNorm(nn.Module):
    """Running mean and variance of returns (exponential, debiased), as in MAPPO and NavRL."""

    running_mean: Tensor
    running_mean_sq: Tensor
    debiasing_term: Tensor

    def __init__(self, beta: float = 0.995, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.beta, self.epsilon = beta, epsilon
        for name, shape in (("running_mean", (1,)), ("running_mean_sq", (1,)), ("debiasing_term", ())):
            self.register_buffer(name, torch.zeros(shape))

    @torch.no_grad()
    def update(self, mean: Tensor, mean_square: Tensor) -> None:
        """Take in the mean of a batch of returns and that of their squares."""
        weight = 1.0 - self.beta
        self.running_mean.lerp_(mean.to(self.running_mean).view(1), weight)
        self.running_mean_sq.lerp_(mean_square.to(self.running_mean).view(1), weight)
        self.debiasing_term.lerp_(torch.ones_like(self.debiasing_term), weight)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        debias = self.debiasing_term.clamp(min=self.epsilon)
        mean = self.running_mean / debias
        variance = (self.running_mean_sq / debias - mean.square()).clamp(min=1e-2)
        return mean, variance.sqrt()

    def normalize(self, value: Tensor) -> Tensor:
        mean, std = self._statistics()
        return (value - mean) / std

    def denormalize(self, value: Tensor) -> Tensor:
        mean, std = self._statistics()
        return value * std + mean
