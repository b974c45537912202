"""The contract between engine and task: one suite, always on Warp, on Isaac Lab where installed (make test-isaac).

Isaac supports one world at a time, so flights to be compared are flown one after another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from conftest import sim_settings, task_settings
from navrl.io.snapshot import tensors_of
from navrl.schema import OUTCOMES
from navrl.sim.engine import make_simulator
from navrl.sim.scene import Scene, generate_scene
from navrl.sim.simulator import Simulator
from navrl.task.env import NavigationEnv

MISSING = pytest.mark.skipif(find_spec("isaaclab") is None, reason="Isaac Lab is not installed: make test-isaac")


@pytest.fixture(params=["warp", pytest.param("isaac", marks=MISSING)])
def build(request) -> Iterator[Callable[..., NavigationEnv]]:
    """Build an environment on the engine; the previous one is closed."""
    made: list[NavigationEnv] = []

    def make(scene: Scene, num_envs: int, task: dict | None = None, **settings) -> NavigationEnv:
        while made:
            made.pop().close()
        sim = make_simulator(scene, sim_settings(num_envs, request.param, **settings))
        made.append(NavigationEnv(sim, task_settings(**(task or {}))))
        return made[-1]

    yield make
    for env in made:
        env.close()


def chase(data: TensorDict, noise: torch.Tensor | float = 0.0) -> torch.Tensor:
    return 2.0 * data.get(("agents", "observation", "direction"))[:, 0] + noise


def fly(env: NavigationEnv, noise: torch.Tensor, data: TensorDict | None = None) -> list[TensorDict]:
    """Take one step per row of noise; return what each led to."""
    data, out = env.reset() if data is None else data, []
    for row in noise:
        data["agents", "action"] = chase(data, row)
        now, data = env.step_and_maybe_reset(data)
        out.append(now["next"].clone())
    return out


def noise(steps: int, drones: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(steps, drones, 3, generator=torch.Generator().manual_seed(seed))


def test_specs_and_interface(build, scene) -> None:
    env = build(scene, 12, decimation=2)
    check_env_specs(env)
    assert isinstance(env.simulator, Simulator)
    assert env.observation_spec["agents", "observation", "lidar"].shape == (12, 1, 36, 4)


def test_same_seed_gives_identical_results(build, scene) -> None:
    flights = [fly(build(scene, 24, {"max_episode_length": 120}, decimation=2), noise(90, 24)) for _ in range(2)]
    ended = 0
    for one, two in zip(*flights, strict=True):
        assert all(map(torch.equal, tensors_of(one.to_dict()), tensors_of(two.to_dict())))
        ended += int(one["done"].sum())
    assert ended > 24


def test_resuming_from_a_saved_state(build, scene) -> None:
    env, way = build(scene, 24, decimation=2), noise(100, 24)
    fly(env, way[:50])
    saved = copy.deepcopy(env.state_dict())
    later = fly(env, way[50:], env.observation())
    fresh = build(scene, 24, decimation=2)
    fresh.load_state_dict(saved)
    again = fly(fresh, way[50:])
    exact = env.simulator.settings.engine == "warp"  # PhysX rounds an attitude once more when it is set
    for one, two in zip(later, again, strict=True):
        for key in (
            ("agents", "observation", "state"),
            ("agents", "observation", "dynamic_obstacle"),
            ("agents", "reward"),
        ):
            assert torch.equal(one[key], two[key]) if exact else torch.allclose(one[key], two[key], atol=1e-3), key
        assert torch.equal(one["done"], two["done"])


def test_partial_reset_does_not_affect_other_drones(build, scene) -> None:
    def run(reset: bool) -> tuple[torch.Tensor, ...]:
        sim = build(scene, 24).simulator
        n, maps = 24, torch.arange(24, dtype=torch.int32) % 4
        at = torch.stack([torch.linspace(-16, 16, n), torch.full((n,), -23.0), torch.full((n,), 2.0)], dim=1)
        sim.reset(torch.arange(n), at, torch.linspace(-3, 3, n), maps)
        for row in noise(20, n):
            sim.step(row)
        if reset:
            some = torch.arange(0, n, 5)
            where = torch.tensor([3.0, -24.0, 1.0]).expand(len(some), 3)
            sim.reset(some, where, torch.full((len(some),), 0.5), torch.full((len(some),), 2, dtype=torch.int32))
            assert torch.equal(sim.position[some], where) and (sim.velocity[some] == 0).all()
            assert (sim.map_index[some] == 2).all()
            first = sim.lidar[some].clone()
            sim.reset(torch.arange(1), where[:1], torch.tensor([0.5]), torch.tensor([2], dtype=torch.int32))
            assert torch.equal(first, sim.lidar[:1].expand_as(first)), "the first scan is from the new position and yaw"
        for row in noise(20, n, seed=1):
            sim.step(row)
        names = ("position", "quaternion", "velocity", "angular_velocity", "lidar", "throttle")
        return tuple(getattr(sim, name).clone() for name in names)

    others = torch.ones(24, dtype=torch.bool)
    others[::5] = False
    for undisturbed, disturbed in zip(run(False), run(True), strict=True):
        assert torch.equal(undisturbed[others], disturbed[others])
        assert not torch.equal(undisturbed[~others], disturbed[~others])


def test_reset_of_invalid_drones_or_maps_changes_nothing(build, scene) -> None:
    sim = build(scene, 8).simulator
    before = copy.deepcopy(sim.state_dict())
    for drone, map_index in ((8, 0), (-1, 0), (3, scene.num_maps), (3, -1)):
        sim.reset(torch.tensor([drone]), torch.zeros(1, 3), torch.zeros(1), torch.tensor([map_index]))
        assert all(map(torch.equal, before.values(), sim.state_dict().values()))
    with pytest.raises(ValueError, match="one row of each"):
        sim.reset(torch.tensor([0, 1]), torch.zeros(1, 3), torch.zeros(2), torch.zeros(2))


def test_truncation_keeps_the_last_observation(build, scene) -> None:
    env = build(scene, 16, {"max_episode_length": 40}, decimation=4)
    data = env.reset()
    for step in range(11):
        data["agents", "action"] = chase(data)
        now, data = env.step_and_maybe_reset(data)
        late = now["next", "truncated"][:, 0]
        assert late.any() == (step == 9)
        if step == 9:
            assert not now["next", "terminated"][late].any()
            assert (now["next", "stats", "timeout"][late] == 1).all() and (
                now["next", "stats", "length"][late] == 40
            ).all()
            assert (now["next", "agents", "observation", "state"][late, 5].abs() > 0.2).all(), "still at speed"
            assert (data["agents", "observation", "state"][late, 5:] == 0).all(), "a new flight starts at rest"


def test_outcomes_are_first_events_and_mutually_exclusive(build, scene) -> None:
    env = build(scene, 96, {"max_episode_length": 1200}, decimation=4)
    counts = torch.zeros(len(OUTCOMES))
    for now in fly(env, noise(330, 96)):
        done = now["done"][:, 0]
        flags = torch.cat([now["stats", name] for name in OUTCOMES], dim=-1)
        assert (flags[done].sum(-1) == 1).all() and (flags[~done].sum(-1) == 0).all()
        assert torch.equal(now["done"], now["terminated"] | now["truncated"])
        counts += flags[done].sum(0)
    assert (counts[:3] > 0).all(), dict(zip(OUTCOMES, counts.tolist(), strict=True))


def test_leaving_the_height_limits_and_reaching_the_goal(build) -> None:
    scene = generate_scene(0, 1, num_static=0, num_moving=0, route="crossing", starts_per_map=4)
    scene.goals[..., :] = scene.starts + [0.0, 5.0, 0.0]
    env = build(scene, 4)
    data = env.reset()
    command = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, -2.0], [0.0, 0.0, 0.0]])
    for _ in range(250):
        data["agents", "action"] = command
        data = env.step(data)["next"]
    assert data["stats", "success"].view(-1).tolist() == [1, 0, 0, 0]
    assert data["stats", "out_of_bounds"].view(-1).tolist() == [0, 1, 1, 0]
    assert data["stats", "path_length"][0].item() == pytest.approx(4.5, abs=0.05)


def test_non_finite_commands(build, scene) -> None:
    env = build(scene, 6)
    data = env.reset()
    data["agents", "action"] = chase(data)
    data["agents", "action"][4, 1] = float("nan")
    with pytest.raises(ValueError, match="drone 4"):
        env.step(data)
    command = torch.ones(6, 3)
    command[2] = float("inf")  # straight to the engine: hover
    for _ in range(30):
        env.simulator.step(command)
    assert env.simulator.velocity[2].norm() < 1e-2 < env.simulator.velocity[3].norm()


def test_closing_twice_is_harmless(build, scene) -> None:
    env = build(scene, 4)
    env.simulator.close()
    env.simulator.close()
    again = build(scene, 4)  # and the next world can be built and flown
    assert torch.isfinite(fly(again, noise(3, 4))[-1]["agents", "reward"]).all()
