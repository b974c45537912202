"""Moving obstacles against a plain Python reference of NavRL's rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navrl.sim.obstacles import obstacle_seed
from navrl.sim.scene import CYLINDER_HEIGHT, generate_scene

MASK = 0xFFFFFFFF


def pcg(n: int) -> int:
    """Warp's 32-bit hash."""
    b = (n * 747796405 + 2891336453) & MASK
    c = (((b >> ((b >> 28) + 4)) ^ b) * 277803737) & MASK
    return ((c >> 22) ^ c) & MASK


class Stream:
    """Warp's random stream of (seed, offset)."""

    def __init__(self, seed: int, offset: int) -> None:
        self.state = pcg((seed + pcg(offset & MASK)) & MASK)

    def uniform(self, low: float, high: float) -> float:
        self.state = pcg(self.state)
        return (high - low) * ((self.state >> 8) / (1 << 24)) + low


class Obstacle:
    """One obstacle: move, draw a new goal on arrival, change speed and heading every two seconds."""

    def __init__(self, origin: np.ndarray, tall: bool, number: int, seed: int) -> None:
        self.origin, self.tall, self.number, self.seed = origin.astype(float), tall, number, seed
        self.position = self.origin.copy()
        self.goal, self.velocity = np.zeros(3), np.zeros(3)

    def step(self, now: int, dt: float = 0.016) -> None:
        if now == 0 or np.linalg.norm(self.position - self.goal) < 0.5:
            draw = Stream(self.seed + 2 * now * 1013904223, self.number)
            offset = [draw.uniform(-5, 5), draw.uniform(-5, 5), draw.uniform(-5, 4)]
            self.goal = np.clip(self.origin + offset, [-20, -20, 0], [20, 20, 4.5])
            if self.tall:
                self.goal[2] = self.origin[2]
        if now % 125 == 0:
            draw = Stream(self.seed + (2 * now + 1) * 1013904223, self.number)
            way = self.goal - self.position
            self.velocity = way / np.linalg.norm(way) * draw.uniform(0.5, 1.5)
        self.position = self.position + self.velocity * dt


@pytest.mark.parametrize("decimation", [1, 5])
def test_motion_follows_the_rule(make_sim, decimation: int) -> None:
    scene = generate_scene(8, 3, num_static=0, num_moving=[16, 80, 0], starts_per_map=1)
    sim = make_sim(scene, 2, decimation=decimation, seed=21)
    k = scene.moving_origin.shape[1]
    plain = {
        (m, j): Obstacle(
            scene.moving_origin[m, j],
            scene.moving_size[m, j, 1] == CYLINDER_HEIGHT,
            m * k + j,
            obstacle_seed(sim.settings.seed),
        )
        for m in range(3)
        for j in range(scene.moving_count[m])
    }
    goals_taken = 0
    for now in range(0, 1000, decimation):
        sim.step(torch.zeros(2, 3))
        for sub in range(decimation):
            for obstacle in plain.values():
                goal = obstacle.goal
                obstacle.step(now + sub)
                goals_taken += not np.array_equal(goal, obstacle.goal)
        if now % 100 == 0:
            for (m, j), obstacle in plain.items():
                assert sim.moving_position[m, :, j].numpy() == pytest.approx(obstacle.position, abs=2e-3)
                assert sim.moving_velocity[m, :, j].numpy() == pytest.approx(obstacle.velocity, abs=1e-3)
    assert goals_taken > 2 * len(plain)
    speed = sim.moving_velocity[1].norm(dim=0)
    assert speed.min() >= 0.5 - 1e-5 and speed.max() <= 1.5 + 1e-5
    assert (sim.moving_velocity[1, 2, 40:] == 0).all(), "cylinders stay on the ground"


def test_speed_and_range_settings(make_sim) -> None:
    scene = generate_scene(8, 1, num_static=0, num_moving=80, starts_per_map=1)
    sim = make_sim(scene, 2, moving_speed=(3.0, 3.0), moving_range=(1.0, 1.0, 1.0))
    for _ in range(300):
        sim.step(torch.zeros(2, 3))
    assert torch.allclose(sim.moving_velocity[0].norm(dim=0), torch.tensor(3.0), atol=1e-4)
    goals = sim.moving_goal[0] - torch.tensor(scene.moving_origin[0].T)
    assert goals.abs().max() <= 1.0 + 1e-4
