"""Networks: observations go in, a Beta distribution and a value come out. They know shapes, not the simulator."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class NavRLEncoder(nn.Module):
    """NavRL's feature network, parameter for parameter, so that its checkpoints load."""

    size = 256

    def __init__(self) -> None:
        super().__init__()
        self.lidar = nn.Sequential(
            nn.Conv2d(1, 4, (5, 3), padding=(2, 1)),
            nn.ELU(),
            nn.Conv2d(4, 16, (5, 3), stride=(2, 1), padding=(2, 1)),
            nn.ELU(),
            nn.Conv2d(16, 16, (5, 3), stride=(2, 2), padding=(2, 1)),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(288, 128),
            nn.LayerNorm(128),
        )
        self.obstacles = nn.Sequential(*_layers(50, 128, 64))
        self.fuse = nn.Sequential(*_layers(128 + 64 + 8, 256, 256))

    def forward(self, state: Tensor, lidar: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        """state (B, 8), lidar (B, 1, 36, 4) as range - distance, dynamic_obstacle (B, 1, 5, 10) to (B, 256)."""
        # NavRL concatenates in the alphabetical order of its keys: cnn, dynamic obstacles, state.
        return self.fuse(torch.cat([self.lidar(lidar), self.obstacles(dynamic_obstacle.flatten(1)), state], dim=-1))


def _layers(*sizes: int) -> list[nn.Module]:
    out: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        out += [nn.Linear(a, b), nn.LeakyReLU(), nn.LayerNorm(b)]
    return out


class BetaActor(nn.Module):
    """Two positive parameters above 1 per action axis: a Beta distribution with a single peak inside (0, 1)."""

    def __init__(self, features: int, actions: int = 3) -> None:
        super().__init__()
        self.alpha_layer = nn.Linear(features, actions)
        self.beta_layer = nn.Linear(features, actions)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        alpha = 1.0 + nn.functional.softplus(self.alpha_layer(features)) + 1e-6
        beta = 1.0 + nn.functional.softplus(self.beta_layer(features)) + 1e-6
        return alpha, beta


class ActorCritic(nn.Module):
    """Encoder, Beta actor on a bounded velocity in the goal frame, and critic."""

    def __init__(self, encoder: nn.Module, action_limit: float = 2.0) -> None:
        super().__init__()
        self.encoder = encoder
        self.actor = BetaActor(encoder.size)
        self.critic = nn.Linear(encoder.size, 1)
        self.action_limit = action_limit  # m/s along each axis of the goal frame

    @torch.no_grad()
    def act(self, state: Tensor, lidar: Tensor, direction: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        """The most likely velocity in expectation, (B, 3), m/s in the world frame; no exploration."""
        alpha, beta = self.actor(self.encoder(state, lidar, dynamic_obstacle))
        return to_world((2.0 * alpha / (alpha + beta) - 1.0) * self.action_limit, direction)


def to_world(velocity: Tensor, direction: Tensor) -> Tensor:
    """Goal frame to world: `direction` (B, 1, 3) is where the goal frame's x axis points, horizontally."""
    ahead, left = direction[:, 0, 0:1], direction[:, 0, 1:2]
    x, y, z = velocity.split(1, dim=-1)
    return torch.cat([ahead * x - left * y, left * x + ahead * y, z], dim=-1)
