"""Batches arrive whole, in order, flown with the weights they say, however the two sides are delayed."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from tensordict import TensorDictBase

from navrl.io.snapshot import tensors_of
from navrl.collect.batches import VERSION, PrefetchedBatches, SerialBatches, make_collector
from navrl.ppo.networks import ActorCritic, FastEncoder, NavRLEncoder
from navrl.ppo.ppo import PPO, PPOSettings

DRONES, STEPS = 16, 4
FRAMES = DRONES * STEPS


@pytest.fixture
def make(make_env, scene) -> Callable[..., tuple]:
    """An environment and a learner, the same every time."""

    def build(encoder: type = FastEncoder) -> tuple:
        torch.manual_seed(0)
        ppo = PPO(ActorCritic(encoder((36, 4), 4.0), 2.0), PPOSettings(minibatches=2), seed=5)
        return make_env(scene, DRONES, decimation=4, task={"max_episode_length": 60}), ppo

    return build


def stale(env, ppo: PPO, count: int, seed: int = 0) -> Iterator[TensorDictBase]:
    """What prefetching must give, said without a thread: batch k with the weights after max(0, k - count) updates."""
    actor = ppo.acting_copy(seed)
    batches, history = iter(make_collector(env, actor, FRAMES, return_same_td=False)), [ppo.acting_weights()]
    for k in range(10**9):
        actor.fly_with(history[max(0, k - count)])
        yield next(batches)
        history.append(ppo.acting_weights())


def same(a: PPO, b: PPO) -> bool:
    return all(map(torch.equal, tensors_of(a.state()), tensors_of(b.state())))


@pytest.mark.parametrize("encoder", [FastEncoder, NavRLEncoder])
@pytest.mark.parametrize("count", [1, 3])
def test_learns_as_a_serial_run_with_weights_as_old(make, count: int, encoder: type) -> None:
    (env, ppo), (twin, reference) = make(encoder), make(encoder)
    batches = PrefetchedBatches(env, ppo, FRAMES, count)
    for k, expected in zip(range(8), stale(twin, reference, count), strict=False):
        batch = next(batches)
        assert (batch[VERSION] == max(0, k - count)).all() and batches.staleness == min(k, count)
        ppo.update(batch), reference.update(expected)
        assert same(ppo, reference), k
    batches.shutdown()


def test_serial_batches_are_of_the_present(make) -> None:
    (env, ppo), (twin, copying) = make(), make()
    one, other = SerialBatches(env, ppo, FRAMES, True), SerialBatches(twin, copying, FRAMES, False)
    first = None
    for k in range(3):
        batch, copied = next(one), next(other)
        assert (batch[VERSION] == k).all() and one.staleness == 0
        assert first is None or batch is first
        first = batch
        ppo.update(batch), copying.update(copied)
        assert same(ppo, copying)
    one.shutdown(), other.shutdown()


def test_a_thousand_batches_with_delays_on_both_sides(make_env, scene) -> None:
    """Every batch is the one a serial run gives, and stays so while it is held."""

    def build() -> tuple:
        torch.manual_seed(0)
        ppo = PPO(ActorCritic(FastEncoder((36, 4), 4.0), 2.0), PPOSettings(), seed=5)
        return make_env(scene, 2, decimation=4, task={"max_episode_length": 30}), ppo

    def learn(ppo: PPO) -> None:
        ppo.updates += 1
        with torch.no_grad():
            ppo.policy.actor.alpha_layer.bias.add_(0.001 * (-1) ** ppo.updates)

    (env, ppo), (twin, reference) = build(), build()
    rng = random.Random(0)
    actor = reference.acting_copy(0)
    expected, history = iter(make_collector(twin, actor, 4, return_same_td=False)), [reference.acting_weights()]
    batches = PrefetchedBatches(env, ppo, 4, count=2)
    fly = batches.actor.fly_with

    def hesitate(weights: dict) -> None:
        time.sleep(rng.choice([0, 0, 0, 0.002]))
        fly(weights)

    batches.actor.fly_with = hesitate
    for k in range(1000):
        batch = next(batches)
        actor.fly_with(history[max(0, k - 2)])
        wanted = next(expected)
        time.sleep(rng.choice([0, 0, 0, 0.002]))
        for key in (("agents", "action"), ("next", "agents", "observation", "lidar"), "value"):
            assert torch.equal(batch[key], wanted[key]), (k, key)
        learn(ppo), learn(reference)
        history.append(reference.acting_weights())
    batches.shutdown()


@pytest.mark.parametrize("kind", [SerialBatches, PrefetchedBatches])
def test_going_on_is_exact(make, kind: type) -> None:
    (env, ppo), (twin, later) = make(), make()
    batches = kind(env, ppo, FRAMES)
    for _ in range(4):
        ppo.update(next(batches))
    saved = copy.deepcopy({"batches": batches.state(), "ppo": ppo.state()})
    resumed = kind(twin, later, FRAMES, state=saved["batches"])
    later.load_state(saved["ppo"])
    for k in range(4):
        ppo.update(next(batches)), later.update(next(resumed))
        assert same(ppo, later), k
    assert resumed.staleness == batches.staleness
    batches.shutdown(), resumed.shutdown()


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_an_exception_in_the_thread_arrives_with_its_own_traceback(make, pause: float) -> None:
    env, ppo = make()
    batches = PrefetchedBatches(env, ppo, FRAMES)
    ppo.update(next(batches))

    def break_down(*_: object) -> None:
        raise ValueError("the rotor fell off")

    env.simulator.step = break_down
    time.sleep(pause)  # the learner may be at work when it happens
    with pytest.raises(ValueError, match="the rotor fell off") as caught:
        for _ in range(5):
            next(batches)
    assert "break_down" in [entry.name for entry in caught.traceback]
    with pytest.raises(RuntimeError, match="has ended"):
        next(batches)
    batches.shutdown()


def test_a_learner_that_breaks_down_leaves_no_thread_behind() -> None:
    """The program ends with the learner's own error: no hang, no abort in the thread."""
    program = """
from navrl.collect.batches import PrefetchedBatches
from navrl.ppo.networks import ActorCritic, FastEncoder, NavRLEncoder
from navrl.ppo.ppo import PPO, PPOSettings
from navrl.sim.scene import generate_scene
from navrl.sim.simulator import SimSettings
from navrl.sim.warp_engine import WarpSimulator
from navrl.task.env import NavigationEnv, TaskSettings
env = NavigationEnv(WarpSimulator(generate_scene(3, num_maps=1), SimSettings(64, decimation=4)), TaskSettings())
batches = PrefetchedBatches(env, PPO(ActorCritic(FastEncoder((36, 4), 4.0), 2.0), PPOSettings()), 64 * 32, count=3)
next(batches)
raise ArithmeticError("the learner broke down")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.strip().endswith("ArithmeticError: the learner broke down"), done.stderr


def test_shutdown_from_any_state(make) -> None:
    for batches_taken in (0, 1, 3):
        env, ppo = make()
        batches = PrefetchedBatches(env, ppo, FRAMES, count=2)
        for _ in range(batches_taken):
            next(batches)
        began = time.monotonic()
        batches.shutdown()
        batches.shutdown()
        assert not batches._thread.is_alive() and time.monotonic() - began < 5


@pytest.mark.parametrize("kind", [SerialBatches, PrefetchedBatches])
def test_drones_and_learner_on_different_devices(make, kind: type) -> None:
    """There may be no second device here, but the learner can say it is on one: "cpu:0" is not "cpu" to torch."""
    (env, ppo), (twin, later) = make(), make()
    ppo.device = later.device = torch.device("cpu:0")
    batches = kind(env, ppo, FRAMES)
    assert batches.actor is not ppo and batches.actor.device == env.device
    for k in range(3):
        batch = next(batches)
        assert batch.device == ppo.device and (batch[VERSION] == max(0, k - (kind is PrefetchedBatches))).all()
        ppo.update(batch)
    saved = copy.deepcopy({"batches": batches.state(), "ppo": ppo.state()})
    resumed = kind(twin, later, FRAMES, state=saved["batches"])
    later.load_state(saved["ppo"])
    for _ in range(2):
        ppo.update(next(batches)), later.update(next(resumed))
        assert same(ppo, later)
    batches.shutdown(), resumed.shutdown()
