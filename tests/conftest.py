"""Small scenes and simulators shared by the tests. The engine is always the real one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from navrl.collect.batches import CollectSettings
from navrl.ppo.networks import ActorCritic, NetworkSettings
from navrl.ppo.ppo import PPO
from navrl.sim.scene import Scene, generate_scene
from navrl.sim.simulator import SimSettings
from navrl.sim.warp_engine import WarpSimulator
from navrl.task.env import NavigationEnv, TaskSettings
from navrl.train.settings import compose_config, read_eval, read_train
from pages import browser, chromium, flights  # noqa: F401  fixtures

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, also by every program the tests start

# Defaults are those of cfg/: a test says only what it changes.
EVAL = read_eval(compose_config("eval", ["device=cpu"]))
TRAIN = read_train(compose_config("train", ["device=cpu"]))

EVERY_TERM = {
    "velocity": 1.0, "progress": 0.7, "alive": 0.5, "static_clearance": 0.9, "moving_clearance": 1.1,
    "smoothness": 0.1, "height": 8.0, "time": 0.3, "goal": 10.0, "collision": 5.0,
}  # fmt: skip


def sim_settings(num_envs: int, engine: str = "warp", **changes) -> SimSettings:
    physics = "ovphysx" if engine == "isaac" else "none"
    return replace(EVAL.sim, **({"num_envs": num_envs, "engine": engine, "physics": physics} | changes))


def task_settings(**changes) -> TaskSettings:
    return replace(EVAL.task, **({"reward": EVERY_TERM} | changes))


def collect_settings(steps: int, **changes) -> CollectSettings:
    return replace(TRAIN.collect, steps=steps, **changes)


def make_learner(encoder: str = "fast", seed: int = 5, **changes) -> PPO:
    """A learner that is the same every time; `changes` of cfg/train.yaml's settings."""
    torch.manual_seed(0)
    return PPO(ActorCritic(NetworkSettings(encoder)), replace(TRAIN.ppo, **changes), seed)


@pytest.fixture(scope="session")
def scene() -> Scene:
    """Four ordinary maps."""
    return generate_scene(3, num_maps=4, starts_per_map=64)


@pytest.fixture(scope="session")
def empty_scene() -> Scene:
    """No obstacles at all."""
    return generate_scene(0, num_maps=1, num_static=0, num_moving=0, starts_per_map=64)


@pytest.fixture
def make_sim() -> Iterator[Callable[..., WarpSimulator]]:
    """Build a simulator; it is closed when the test ends."""
    made = []

    def make(scene: Scene, num_envs: int = 8, **settings) -> WarpSimulator:
        made.append(WarpSimulator(scene, sim_settings(num_envs, **settings)))
        return made[-1]

    yield make
    for sim in made:
        sim.close()


@pytest.fixture
def make_env(make_sim) -> Callable[..., NavigationEnv]:
    """Build an environment on its own simulator; `task` holds task settings, the rest goes to the simulator."""

    def make(scene: Scene, num_envs: int = 64, task: dict | None = None, **settings) -> NavigationEnv:
        return NavigationEnv(make_sim(scene, num_envs, **settings), task_settings(**(task or {})))

    return make


def place(sim: WarpSimulator, position: torch.Tensor, yaw: torch.Tensor | None = None, map_index: int = 0) -> None:
    """Put every drone of `sim` at rest at `position` (N, 3)."""
    n = sim.settings.num_envs
    yaw = torch.zeros(n) if yaw is None else yaw
    sim.reset(torch.arange(n), position.float().expand(n, 3), yaw, torch.full((n,), map_index, dtype=torch.int32))
