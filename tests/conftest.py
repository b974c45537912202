"""Small scenes and simulators shared by the tests. The engine is always the real one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from navrl.sim.scene import Scene, generate_scene
from navrl.sim.simulator import SimSettings
from navrl.sim.warp_engine import WarpSimulator
from navrl.task.env import NavigationEnv, TaskSettings

EVERY_TERM = {
    "velocity": 1.0, "progress": 0.7, "alive": 0.5, "static_clearance": 0.9, "moving_clearance": 1.1,
    "smoothness": 0.1, "height": 8.0, "time": 0.3, "goal": 10.0, "collision": 5.0,
}  # fmt: skip


@pytest.fixture(scope="session")
def scene() -> Scene:
    """Four ordinary maps."""
    return generate_scene(3, num_maps=4, starts_per_map=64)


@pytest.fixture(scope="session")
def empty_scene() -> Scene:
    """No obstacles at all."""
    return generate_scene(0, num_maps=1, num_static=0, num_moving=0, starts_per_map=64)


@pytest.fixture
def make_sim() -> Callable[..., WarpSimulator]:
    """Build a simulator; it is closed when the test ends."""
    made = []

    def make(scene: Scene, num_envs: int = 8, **settings) -> WarpSimulator:
        made.append(WarpSimulator(scene, SimSettings(num_envs, **settings)))
        return made[-1]

    yield make
    for sim in made:
        sim.close()


@pytest.fixture
def make_env(make_sim) -> Callable[..., NavigationEnv]:
    """Build an environment on its own simulator; `task` holds task settings, the rest goes to the simulator."""

    def make(scene: Scene, num_envs: int = 64, task: dict | None = None, **settings) -> NavigationEnv:
        task = {"reward": EVERY_TERM} | (task or {})
        return NavigationEnv(make_sim(scene, num_envs, **settings), TaskSettings(**task))

    return make


def place(sim: WarpSimulator, position: torch.Tensor, yaw: torch.Tensor | None = None, map_index: int = 0) -> None:
    """Put every drone of `sim` at rest at `position` (N, 3)."""
    n = sim.settings.num_envs
    yaw = torch.zeros(n) if yaw is None else yaw
    sim.reset(torch.arange(n), position.float().expand(n, 3), yaw, torch.full((n,), map_index, dtype=torch.int32))
