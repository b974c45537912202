"""The task in plain PyTorch: the reference that the kernels of `navrl.task.kernels` must match."""

from __future__ import annotations

import torch

from navrl.sim.simulator import Simulator

RANGE = 4.0


def goal_frame(v: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Rotate vectors (..., 3) into the frame whose x axis is the horizontal `direction` (..., 3), z up."""
    x = direction / direction.norm(dim=-1, keepdim=True)
    y = torch.stack([-x[..., 1], x[..., 0], torch.zeros_like(x[..., 0])], dim=-1)
    return torch.stack([(v * x).sum(-1), (v * y).sum(-1), v[..., 2]], dim=-1)


def observation(sim: Simulator, goal: torch.Tensor, direction: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the observation for `goal` and `direction` (N, 3)."""
    way = goal - sim.position
    state = torch.cat(
        [
            goal_frame(way / way.norm(dim=-1, keepdim=True), direction),
            way[:, :2].norm(dim=-1, keepdim=True),
            way[:, 2:],
            goal_frame(sim.velocity, direction),
        ],
        dim=-1,
    )
    rows, _ = moving_rows(sim, direction)
    return {
        "state": state,
        "lidar": (RANGE - sim.lidar)[:, None],
        "direction": direction[:, None],
        "dynamic_obstacle": rows[:, None],
    }


def moving_rows(sim: Simulator, direction: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (N, 5, 10) of the five nearest moving obstacles, and distances (N, 5) for the reward."""
    m = sim.map_index.long()
    to = sim.moving_position[m].transpose(1, 2) - sim.position[:, None]  # (N, K, 3)
    size = sim.moving_size[m].transpose(1, 2)  # (N, K, 2)
    tall = size[..., 1] > 1.0
    to[..., 2] = torch.where(tall, 0.0, to[..., 2])
    flat, nearest = to[..., :2].norm(dim=-1).topk(5, largest=False)
    pick = nearest[..., None]
    to, size = to.gather(1, pick.expand(-1, -1, 3)), size.gather(1, pick.expand(-1, -1, 2))
    velocity = sim.moving_velocity[m].transpose(1, 2).gather(1, pick.expand(-1, -1, 3))
    direction = direction[:, None].expand_as(to)
    height = torch.where(size[..., 1] > 1.0, 0.0, size[..., 1])
    rows = torch.cat(
        [
            goal_frame(to / to.norm(dim=-1, keepdim=True), direction),
            flat[..., None],
            to[..., 2:],
            goal_frame(velocity, direction),
            size[..., :1] / 0.25 - 1.0,
            height[..., None],
        ],
        dim=-1,
    )
    far = flat > RANGE
    gap = to.norm(dim=-1) - size[..., 0] / 2
    return rows.masked_fill(far[..., None], 0.0), gap.masked_fill(far, RANGE).clamp(1e-6, RANGE)


def reward_terms(
    sim: Simulator,
    goal: torch.Tensor,
    direction: torch.Tensor,
    band: torch.Tensor,
    last_position: torch.Tensor,
    last_velocity: torch.Tensor,
    seconds: float,
) -> dict[str, torch.Tensor]:
    """Return the unweighted terms (N,) that do not depend on the outcome."""
    way = goal - sim.position
    z = sim.position[:, 2]
    above, below = (z - band[:, 1] - 0.2).clamp(min=0), (band[:, 0] - 0.2 - z).clamp(min=0)
    _, gaps = moving_rows(sim, direction)
    return {
        "velocity": (sim.velocity * way / way.norm(dim=-1, keepdim=True)).sum(-1),
        "progress": (goal - last_position).norm(dim=-1) - way.norm(dim=-1),
        "alive": torch.ones_like(z),
        "static_clearance": sim.lidar.clamp(1e-6, RANGE).log().mean((1, 2)),
        "moving_clearance": gaps.log().mean(-1),
        "smoothness": -(sim.velocity - last_velocity).norm(dim=-1),
        "height": -((above + below) ** 2),
        "time": torch.full_like(z, -seconds),
    }
