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

from conftest import collect_settings, make_learner
from navrl.collect.batches import PrefetchedBatches, SerialBatches, make_batches, make_collector
from navrl.io.snapshot import tensors_of
from navrl.ppo.batch import VERSION, Batch
from navrl.ppo.ppo import PPO

DRONES, STEPS = 16, 4
FRAMES = DRONES * STEPS


@pytest.fixture
def make(make_env, scene) -> Callable[..., tuple]:
    """An environment and a learner, the same every time."""

    def build(encoder: str = "fast") -> tuple:
        ppo = make_learner(encoder, num_minibatches=2)
        return make_env(scene, DRONES, decimation=4, task={"max_episode_length": 60}), ppo

    return build


def settings(kind: type = SerialBatches, steps: int = STEPS, **changes):
    """As cfg/train.yaml collects, in small, by this kind of source."""
    pipelined = kind is PrefetchedBatches
    return collect_settings(steps, pipelined=pipelined, **({"return_same_td": not pipelined} | changes))


def stale(env, ppo: PPO, count: int) -> Iterator[Batch]:
    """What prefetching must give, said without a thread: batch k with the weights after max(0, k - count) updates."""
    actor = ppo.actor.copy(ppo.device)
    frames, history = iter(make_collector(env, actor, FRAMES, return_same_td=False)), [ppo.actor.weights()]
    for k in range(10**9):
        actor.load_weights(history[max(0, k - count)])
        yield Batch.prepared(next(frames), ppo.policy.encoder.prepare)
        history.append(ppo.actor.weights())


def same(a: PPO, b: PPO) -> bool:
    return all(map(torch.equal, tensors_of(a.state()), tensors_of(b.state())))


@pytest.mark.parametrize("encoder", ["fast", "navrl"])
@pytest.mark.parametrize("count", [1, 3])
def test_learns_as_a_serial_run_with_weights_as_old(make, count: int, encoder: str) -> None:
    (env, ppo), (twin, reference) = make(encoder), make(encoder)
    batches = PrefetchedBatches(env, ppo, settings(PrefetchedBatches, prefetch_count=count))
    for k, expected in zip(range(8), stale(twin, reference, count), strict=False):
        batch = next(batches)
        assert (batch[VERSION] == max(0, k - count)).all() and batches.staleness == min(k, count)
        ppo.update(batch), reference.update(expected)
        assert same(ppo, reference), k
    batches.shutdown()


def test_serial_batches_are_of_the_present(make) -> None:
    (env, ppo), (twin, copying) = make(), make()
    one, other = SerialBatches(env, ppo, settings()), SerialBatches(twin, copying, settings(return_same_td=False))
    first = None
    for k in range(3):
        batch, copied = next(one), next(other)
        assert (batch[VERSION] == k).all() and one.staleness == 0
        assert first is None or batch.frames is first
        first = batch.frames
        ppo.update(batch), copying.update(copied)
        assert same(ppo, copying)
    one.shutdown(), other.shutdown()


def test_a_thousand_batches_with_delays_on_both_sides(make_env, scene) -> None:
    """Every batch is the one a serial run gives, and stays so while it is held."""

    def build() -> tuple:
        return make_env(scene, 2, decimation=4, task={"max_episode_length": 30}), make_learner()

    def learn(ppo: PPO) -> None:
        ppo.updates += 1
        with torch.no_grad():
            ppo.policy.actor.alpha_layer.bias.add_(0.001 * (-1) ** ppo.updates)

    (env, ppo), (twin, reference) = build(), build()
    rng = random.Random(0)
    actor = reference.actor.copy(reference.device)
    expected, history = iter(make_collector(twin, actor, 4, return_same_td=False)), [reference.actor.weights()]
    batches = PrefetchedBatches(env, ppo, settings(PrefetchedBatches, 2, prefetch_count=2))
    fly = batches.actor.load_weights

    def hesitate(weights: dict) -> None:
        time.sleep(rng.choice([0, 0, 0, 0.002]))
        fly(weights)

    batches.actor.load_weights = hesitate
    for k in range(1000):
        batch = next(batches)
        actor.load_weights(history[max(0, k - 2)])
        wanted = next(expected)
        time.sleep(rng.choice([0, 0, 0, 0.002]))
        for key in (("agents", "action"), ("next", "agents", "observation", "lidar"), "value"):
            assert torch.equal(batch[key], wanted[key]), (k, key)
        learn(ppo), learn(reference)
        history.append(reference.actor.weights())
    batches.shutdown()


@pytest.mark.parametrize("kind", [SerialBatches, PrefetchedBatches])
def test_going_on_is_exact(make, kind: type) -> None:
    (env, ppo), (twin, later) = make(), make()
    batches = make_batches(env, ppo, settings(kind))
    assert isinstance(batches, kind)
    for _ in range(4):
        ppo.update(next(batches))
    saved = copy.deepcopy({"batches": batches.state(), "ppo": ppo.state()})
    resumed = make_batches(twin, later, settings(kind), saved["batches"])
    later.load_state(saved["ppo"])
    for k in range(4):
        ppo.update(next(batches)), later.update(next(resumed))
        assert same(ppo, later), k
    assert resumed.staleness == batches.staleness
    batches.shutdown(), resumed.shutdown()


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_an_exception_in_the_thread_arrives_with_its_own_traceback(make, pause: float) -> None:
    env, ppo = make()
    batches = PrefetchedBatches(env, ppo, settings(PrefetchedBatches))
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
from navrl.train.build import make_training
prefetch = ["use_pipelined_collector=true", "return_same_td=false", "prefetch_count=3"]
training = make_training("env.num_envs=64", "env.num_maps=1", "device=cpu", *prefetch)
next(training.batches)
raise ArithmeticError("the learner broke down")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.strip().endswith("ArithmeticError: the learner broke down"), done.stderr


def test_shutdown_from_any_state(make) -> None:
    for batches_taken in (0, 1, 3):
        env, ppo = make()
        batches = PrefetchedBatches(env, ppo, settings(PrefetchedBatches, prefetch_count=2))
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
    batches = make_batches(env, ppo, settings(kind))
    assert isinstance(batches, kind)
    assert batches.actor is not ppo.actor and batches.actor.noise is not ppo.actor.noise
    for k in range(3):
        batch = next(batches)
        assert batch.frames.device == ppo.device and (batch[VERSION] == max(0, k - (kind is PrefetchedBatches))).all()
        ppo.update(batch)
    saved = copy.deepcopy({"batches": batches.state(), "ppo": ppo.state()})
    resumed = make_batches(twin, later, settings(kind), saved["batches"])
    later.load_state(saved["ppo"])
    for _ in range(2):
        ppo.update(next(batches)), later.update(next(resumed))
        assert same(ppo, later)
    batches.shutdown(), resumed.shutdown()
