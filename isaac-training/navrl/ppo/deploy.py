"""A policy as a robot runs it: observation in, mean velocity out, and no velocity from input that cannot be right.

Training and evaluation use the network alone: a simulator makes no such input. Everything is done by arithmetic and
selection, never by branches, so that tracing and ONNX keep all of it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from navrl.ppo.networks import ActorCritic, NavRLEncoder, to_world

LARGEST = 1e6  # m, m/s: state and obstacles beyond it are no measurement, and products with them may overflow
LARGEST_FLOAT = torch.finfo(torch.float32).max
SHORTEST = 1e-12  # length of a direction that still points somewhere


class Deployed(nn.Module):
    """The mean velocity of a policy, m/s in the world frame, or exactly zero for a row that cannot be answered.

    Such a row holds NaN or infinity in any input, a number beyond LARGEST in `state` or `dynamic_obstacle`, or a
    `direction` without a horizontal part. It does not affect the other rows of the batch.
    """

    ahead: Tensor

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__()
        self.policy = policy
        self.action_limit, self.lidar_range = policy.settings.action_limit, policy.settings.lidar_range
        self.register_buffer("ahead", torch.tensor([1.0, 0.0, 0.0]), persistent=False)
        if isinstance(policy.encoder, NavRLEncoder):
            policy.encoder.fused = False

    def forward(self, state: Tensor, lidar: Tensor, direction: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        """state (B, 8), lidar (B, 1, 36, 4), direction (B, 1, 3), dynamic_obstacle (B, 1, K, 10) to (B, 3)."""
        points = (direction[..., :2].abs() >= SHORTEST).flatten(1).any(1)
        known = within(state, LARGEST) & within(dynamic_obstacle, LARGEST)
        usable = known & within(lidar, LARGEST_FLOAT) & within(direction, LARGEST_FLOAT) & points  # (B)

        # From here on there is a number everywhere: clamping and maxima treat NaN differently from runtime to runtime.
        state = torch.where(usable[:, None], state, 0.0)
        lidar = torch.where(usable[:, None, None, None], lidar, 0.0).clamp(0.0, self.lidar_range)  # as in training
        dynamic_obstacle = torch.where(usable[:, None, None, None], dynamic_obstacle, 0.0)
        direction = torch.where(usable[:, None, None], direction, self.ahead)

        # With x ahead, world and goal frame are the same.
        ahead = self.ahead.expand_as(direction)
        velocity = self.policy.mean_velocity(state, lidar, ahead, dynamic_obstacle)
        usable = (usable & within(velocity, LARGEST_FLOAT))[:, None]
        velocity = velocity.clamp(-self.action_limit, self.action_limit)
        return torch.where(usable, to_world(velocity, level(direction)), 0.0)


class ShapesChecked(nn.Module):
    """A traced policy that refuses inputs of other shapes. Without it, beams in another order would be flown."""

    def __init__(self, traced: torch.jit.ScriptModule, shapes: dict[str, list[int]]) -> None:
        """`shapes` of the inputs, without the batch."""
        super().__init__()
        self.traced = traced
        self.state, self.lidar = shapes["state"], shapes["lidar"]
        self.direction, self.dynamic_obstacle = shapes["direction"], shapes["dynamic_obstacle"]

    def forward(self, state: Tensor, lidar: Tensor, direction: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        batch = state.shape[0]
        require_shape("state", state, batch, self.state)
        require_shape("lidar", lidar, batch, self.lidar)
        require_shape("direction", direction, batch, self.direction)
        require_shape("dynamic_obstacle", dynamic_obstacle, batch, self.dynamic_obstacle)
        return self.traced(state, lidar, direction, dynamic_obstacle)


def require_shape(name: str, value: Tensor, batch: int, shape: list[int]) -> None:
    """Raise where an input is not (batch, *shape). In the words of TorchScript, which compiles it."""
    wanted = [batch] + shape
    if list(value.shape) != wanted:
        raise ValueError(f"{name} has the shape {list(value.shape)}, but the policy reads {wanted}")


def within(values: Tensor, largest: float) -> Tensor:
    """Which rows (B) are numbers of at most `largest`, all of them. A comparison with NaN is false everywhere."""
    return (values.abs() <= largest).flatten(1).all(1)


def level(direction: Tensor) -> Tensor:
    """The horizontal part of `direction` (B, 1, 3), of any length but zero, as a unit vector (B, 1, 2)."""
    horizontal = direction[..., :2]
    horizontal = horizontal / horizontal.abs().amax(-1, keepdim=True)  # so that no square overflows or vanishes
    return horizontal / horizontal.square().sum(-1, keepdim=True).sqrt()
