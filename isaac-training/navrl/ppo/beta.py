"""Log-probability and entropy of a Beta distribution with analytic gradients: half the work of autograd."""

from __future__ import annotations

import torch
from torch import Tensor


def log_prob(alpha: Tensor, beta: Tensor, unit: Tensor) -> Tensor:
    """Log-density of `unit` (B, A), summed over actions."""
    log_b = alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()
    return ((alpha - 1.0) * unit.log() + (beta - 1.0) * torch.log1p(-unit) - log_b).sum(-1)


def log_prob_entropy(alpha: Tensor, beta: Tensor, log_unit: Tensor, log_rest: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density at a point given by log x and log(1 - x), and entropy; both (B), summed over actions (B, A)."""
    return _BetaTerms.apply(alpha, beta, log_unit, log_rest)


class _BetaTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, alpha: Tensor, beta: Tensor, log_unit: Tensor, log_rest: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.stack([alpha, beta, alpha + beta])
        lgamma, psi = x.lgamma(), x.digamma()
        log_b = lgamma[0] + lgamma[1] - lgamma[2]
        a, b = alpha - 1.0, beta - 1.0
        log_density = a * log_unit + b * log_rest - log_b
        entropy = log_b - a * psi[0] - b * psi[1] + (a + b) * psi[2]
        ctx.save_for_backward(x, psi, log_unit, log_rest)
        return log_density.sum(-1), entropy.sum(-1)

    @staticmethod
    def backward(ctx, log_density_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, psi, log_unit, log_rest = ctx.saved_tensors
        slope = torch.special.polygamma(1, x)
        both = (x[2] - 2.0) * slope[2]
        d, e = log_density_grad[:, None], entropy_grad[:, None]
        alpha_grad = d * (log_unit - psi[0] + psi[2]) + e * (both - (x[0] - 1.0) * slope[0])
        beta_grad = d * (log_rest - psi[1] + psi[2]) + e * (both - (x[1] - 1.0) * slope[1])
        return alpha_grad, beta_grad, None, None
