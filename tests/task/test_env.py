"""The navigation task: what is observed, paid and counted, and that it is a proper TorchRL environment."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import statement
import torch
from tensordict import NestedKey, TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

from conftest import EVERY_TERM
from navrl.io.snapshot import tensors_of
from navrl.schema import OUTCOMES, STATS, TERMS
from navrl.sim.scene import Scene, generate_scene
from navrl.task.env import NavigationEnv


def chase(data: TensorDict, noise: float = 0.0, generator: torch.Generator | None = None) -> torch.Tensor:
    """World-frame velocity along the start–goal line, with noise."""
    direction = data["agents", "observation", "direction"][:, 0]
    return 2.0 * direction + noise * torch.randn(direction.shape, generator=generator)


def advance(env: NavigationEnv, data: TensorDict, action: torch.Tensor) -> tuple[TensorDict, TensorDict]:
    data["agents", "action"] = action
    return env.step_and_maybe_reset(data)


def test_specs(make_env, scene) -> None:
    env = make_env(scene, 16, decimation=2)
    check_env_specs(env)
    assert env.batch_size == (16,)
    observation = env.observation_spec["agents", "observation"]
    shapes = {name: tuple(observation[name].shape) for name in observation}
    assert shapes == {
        "state": (16, 8), "lidar": (16, 1, 36, 4), "direction": (16, 1, 3), "dynamic_obstacle": (16, 1, 5, 10),
    }  # fmt: skip
    assert set(env.observation_spec["stats"].keys()) == set(STATS)
    assert env.action_key == ("agents", "action") and env.reward_key == ("agents", "reward")


def test_observation_and_reward_follow_the_statement(make_env, scene) -> None:
    env = make_env(scene, 500, decimation=2)
    sim = env.simulator
    generator = torch.Generator().manual_seed(0)
    data = env.reset()
    obstacles_seen = 0
    for step in range(450):
        before, velocity = sim.position.clone(), sim.velocity.clone()
        stats = data.get("stats").clone()
        goal, band = env._goal.clone(), env._band.clone()
        direction = data["agents", "observation", "direction"][:, 0].clone()
        now, data = advance(env, data, chase(data, 0.5, generator))
        if step % 15 or now["next", "done"].any():
            continue  # after a reset the simulator no longer shows what was observed
        for name, expected in statement.observation(sim, goal, direction).items():
            seen = now["next", "agents", "observation", name]
            assert torch.allclose(seen, expected, atol=2e-5, rtol=1e-4), name
        obstacles_seen += int((now["next", "agents", "observation", "dynamic_obstacle"][..., 3] > 0).sum())
        terms = statement.reward_terms(sim, goal, direction, band, before, velocity, 0.032)
        total = torch.zeros(500)
        for name, value in terms.items():
            paid = now["next", "stats", f"reward_{name}"] - stats[f"reward_{name}"]
            scale = stats[f"reward_{name}"].abs().max().item()
            assert torch.allclose(paid[:, 0], EVERY_TERM[name] * value, atol=1e-3 + 2e-6 * scale), name
            total += EVERY_TERM[name] * value
        assert torch.allclose(now["next", "agents", "reward"][:, 0], total, atol=2e-4, rtol=1e-4)
    assert obstacles_seen > 100


def drive(env: NavigationEnv, steps: int, seed: int = 0) -> Iterator[TensorDict]:
    generator = torch.Generator().manual_seed(seed)
    data = env.reset()
    for _ in range(steps):
        now, data = advance(env, data, chase(data, 1.0, generator))
        yield now


def test_fast_path_is_torchrls_own(make_env, scene) -> None:
    """`step_and_maybe_reset` is overridden for speed: TorchRL's version must give the same tensors."""
    ours, theirs = (make_env(scene, 40, task={"max_episode_length": 150}) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    a, b = ours.reset(), theirs.reset()
    finished = 0
    for _ in range(400):
        action = chase(a, 1.0, generator)
        a["agents", "action"] = b["agents", "action"] = action
        a["passenger"] = b["passenger"] = torch.arange(40)  # keys of others travel along
        now_a, a = ours.step_and_maybe_reset(a)
        now_b, b = EnvBase.step_and_maybe_reset(theirs, b)
        flying = ~now_a["next", "done"][:, 0]
        for mine, reference in ((now_a, now_b), (a, b)):
            assert set(mine.keys(True, True)) == set(reference.keys(True, True))
            for key in mine.keys(True, True):
                foreign = key in ("passenger", ("agents", "action"))  # after a reset, nobody's business
                rows = flying if foreign else slice(None)
                assert torch.equal(mine[key][rows], reference[key][rows]), key
        finished += int(now_a["next", "done"].sum())
    assert finished > 80


def test_last_observation_before_a_reset_is_kept(make_env, scene) -> None:
    """Under "next" stands the end of the old flight; the root of the following step is the start of the new one."""
    env = make_env(scene, 64, task={"max_episode_length": 40})
    seen: list[NestedKey] = [("agents", "observation", "direction")]
    policy = TensorDictModule(lambda direction: 2.0 * direction[:, 0], in_keys=seen, out_keys=[("agents", "action")])
    rollout = env.rollout(90, policy, break_when_any_done=False)
    done = rollout["next", "truncated"][:, 39, 0]
    assert done.any()
    after = rollout[:, 40][done]
    last = rollout[:, 39]["next"][done]
    assert (last["agents", "observation", "state"][:, 5].abs() > 0.5).all(), "still at speed"
    assert (after["agents", "observation", "state"][:, 5:] == 0).all(), "a new flight starts at rest"
    assert (last["stats", "length"] == 40).all() and (after["stats", "length"] == 0).all()
    # What rollout() stored early was not overwritten by later steps.
    assert (rollout["next", "stats", "length"][:, 0] == 1).all()


@pytest.mark.parametrize("return_same_td", [True, False])
def test_torchrls_collector_gets_whole_trajectories(make_env, scene, return_same_td: bool) -> None:
    env = make_env(scene, 32, task={"max_episode_length": 50})
    collector = Collector(env, frames_per_batch=32 * 64, total_frames=4 * 32 * 64, return_same_td=return_same_td)
    finished = 0
    for batch in collector:
        assert batch.batch_size == (32, 64)
        done = batch["next", "done"][:, :-1, 0]
        for key in ("state", "lidar", "dynamic_obstacle"):
            after, before = (
                batch["agents", "observation", key][:, 1:],
                batch["next", "agents", "observation", key][:, :-1],
            )
            assert torch.equal(after[~done], before[~done])
        assert (batch["stats", "length"][:, 1:][done] == 0).all()
        finished += int(done.sum())
    assert finished > 32
    collector.shutdown()


def test_outcomes_are_exclusive_and_first(make_env, scene) -> None:
    env = make_env(scene, 256)
    outcome = []
    for now in drive(env, 1000):
        done = now["next", "done"][:, 0]
        flags = torch.cat([now["next", "stats", name] for name in OUTCOMES], dim=-1)
        assert (flags[done].sum(-1) == 1).all() and (flags[~done].sum(-1) == 0).all()
        assert torch.equal(now["next", "done"], now["next", "terminated"] | now["next", "truncated"])
        outcome.append(flags[done])
    counts = torch.cat(outcome).sum(0)
    assert (counts[:3] > 0).all(), dict(zip(OUTCOMES, counts.tolist(), strict=True))


def one_flight(make_env, scene: Scene, action: torch.Tensor, steps: int, **kwargs) -> list[TensorDict]:
    env = make_env(scene, len(action), **kwargs)
    data, out = env.reset(), []
    for _ in range(steps):
        data["agents", "action"] = action
        data = env.step(data)["next"]
        out.append(data.clone())
    return out


def test_leaving_the_height_limits(make_env, empty_scene) -> None:
    up_and_down = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, -2.0]])
    end = one_flight(make_env, empty_scene, up_and_down, 400)[-1]
    assert (end["stats", "out_of_bounds"] == 1).all() and end["terminated"].all() and not end["truncated"].any()


def test_timeout_is_a_truncation_after_the_time_limit(make_env, empty_scene) -> None:
    flight = one_flight(make_env, empty_scene, torch.zeros(4, 3), 25, task={"max_episode_length": 80}, decimation=4)
    ends = [int(data["truncated"].sum()) for data in flight]
    assert ends[18] == 0 and ends[19] == 4
    assert (flight[19]["stats", "timeout"] == 1).all() and not flight[19]["terminated"].any()


def goal_scene() -> Scene:
    """Start and goal 5 m apart, nothing between."""
    scene = generate_scene(0, 1, num_static=0, num_moving=0, route="crossing", starts_per_map=4)
    scene.goals[..., :] = scene.starts + [0.0, 5.0, 0.0]
    return scene


def test_reaching_the_goal_ends_the_flight_and_pays(make_env) -> None:
    north = torch.tensor([[0.0, 2.0, 0.0]]).expand(4, 3)
    flight = one_flight(make_env, goal_scene(), north, 300)
    first = next(i for i, data in enumerate(flight) if data["done"].all())
    end = flight[first]
    assert (end["stats", "success"] == 1).all() and end["terminated"].all()
    assert (end["stats", "reward_goal"] == EVERY_TERM["goal"]).all()
    assert (end["stats", "goal_distance"] < 0.5).all() and (end["stats", "goal_distance"] > 0.4).all()
    assert end["stats", "path_length"][0] == pytest.approx(4.5, abs=0.05)
    assert (end["stats", "straight_distance"] - 5.0).abs().max() < 1e-5


def test_flying_on_at_the_goal_like_navrl(make_env) -> None:
    north = torch.tensor([[0.0, 2.0, 0.0]]).expand(4, 3)
    task = {"end_at_goal": False, "max_episode_length": 400}
    flight = one_flight(make_env, goal_scene(), north, 400, task=task)
    assert not any(data["done"].any() for data in flight[:399])
    end = flight[-1]
    assert end["truncated"].all() and (end["stats", "success"] == 1).all() and (end["stats", "timeout"] == 0).all()
    assert (end["stats", "reward_goal"] == EVERY_TERM["goal"]).all(), "paid once"
    assert (end["stats", "length"] < 250).all(), "length counts until the first event"


def test_collision_between_decisions_is_seen(make_env, scene) -> None:
    """With 20 physics steps a decision a drone moves 0.6 m: contacts in between must count, in order."""
    env = make_env(scene, 400, decimation=20)
    hits = brief = 0
    for now in drive(env, 120):
        # The resets inside `drive` come after judging, so the trace still is the old flight's.
        static, moving = env.simulator.static_contact.bool(), env.simulator.moving_contact.bool()
        ended = now["next", "stats", "static_collision"][:, 0] == 1
        assert static[:, ended].any(0).all()
        first_static = static.float().argmax(0)[ended]
        first_moving = torch.where(moving.any(0), moving.float().argmax(0), 99)[ended]
        assert (first_static <= first_moving).all()
        hits += int(ended.sum())
        brief += int((ended & ~static[-1]).sum())
    assert hits > 50 and brief > 0


def test_actions_that_are_no_numbers_are_reported(make_env, scene) -> None:
    env = make_env(scene, 16)
    data = env.reset()
    before = copy.deepcopy(env.state_dict())
    for bad in (float("nan"), float("inf")):
        action = chase(data)
        action[11, 1] = bad
        with pytest.raises(ValueError, match="drone 11"):
            advance(env, data, action)
    assert all(map(torch.equal, tensors_of(before), tensors_of(env.state_dict())))


def test_stepping_the_simulator_alone_is_safe(make_env, scene) -> None:
    """The task's kernels run after every simulator step, also before the first and between steps of the environment."""
    env = make_env(scene, 64)
    env.simulator.step(torch.zeros(64, 3))
    data = env.reset()
    for _ in range(20):
        _, data = advance(env, data, chase(data))
        for _ in range(20):
            env.simulator.step(torch.zeros(64, 3))
    assert torch.isfinite(env.observation()["agents", "observation", "state"]).all()


def test_resume_is_exact(make_env, scene) -> None:
    first, second = make_env(scene, 48, decimation=2), make_env(scene, 48, decimation=2)
    first.set_seed(5)
    generator = torch.Generator().manual_seed(3)
    data = first.reset()
    actions = torch.randn(400, 48, 3, generator=generator)
    for action in actions[:200]:
        _, data = advance(first, data, action + chase(data))
    saved = copy.deepcopy(first.state_dict())
    second.load_state_dict(saved)
    other = second.reset()  # continues instead
    assert (other["agents", "observation"] == data["agents", "observation"]).all()
    for action in actions[200:]:
        a, data = advance(first, data, action + chase(data))
        b, other = advance(second, other, action + chase(other))
        assert (a["next"] == b["next"]).all()
    one, two = first.state_dict(), second.state_dict()
    assert all(map(torch.equal, tensors_of(one), tensors_of(two)))
    assert int(one["task"]["episode"].sum()) > 48, "some flights ended on the way"
    second.reset()
    assert second.state_dict()["task"]["episode"] is two["task"]["episode"], "live tensors"
    assert not torch.equal(
        second.observation()["agents", "observation", "state"], data["agents", "observation", "state"]
    )


def test_seed_decides_starts(make_env, scene) -> None:
    def starts(env: NavigationEnv, seed: int) -> torch.Tensor:
        env.set_seed(seed)
        env._episode.zero_()
        env.reset()
        return env.simulator.position.clone()

    env, twin = make_env(scene, 64), make_env(scene, 64)
    assert torch.equal(starts(env, 5), starts(twin, 5))
    assert not torch.equal(starts(env, 5), starts(env, 6))
    assert len(env.simulator.map_index.unique()) == scene.num_maps


def test_maps_without_moving_obstacles(make_env) -> None:
    scene = generate_scene(0, 2, num_static=20, num_moving=0, starts_per_map=8)
    env = make_env(scene, 8)
    data = env.reset()
    assert (data["agents", "observation", "dynamic_obstacle"] == 0).all()
    now, _ = advance(env, data, chase(data))
    assert torch.isfinite(now["next", "agents", "reward"]).all()


def test_weights_scale_their_own_term_only(make_env, scene) -> None:
    for term in TERMS[:4]:
        env = make_env(scene, 8, task={"reward": {term: 3.0}})
        data = env.reset()
        now, _ = advance(env, data, chase(data))
        assert torch.equal(now["next", "stats", f"reward_{term}"], now["next", "agents", "reward"])
        others = [now["next", "stats", f"reward_{other}"].abs().max() for other in TERMS if other != term]
        assert max(others) == 0
