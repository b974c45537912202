"""Batches of experience: one after the other, or the next one in a thread while the learner works on this one."""

from __future__ import annotations

import atexit
import copy
import math
import queue
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tensordict import TensorDictBase
from torchrl.collectors import Collector

from navrl.collect.packed import Packer
from navrl.io.contents import ListOf, Number, Unfit, check, like
from navrl.ppo.batch import VERSION, Batch
from navrl.ppo.ppo import PPO, Actor
from navrl.ranks import Ranks
from navrl.settings import setting
from navrl.task.env import NavigationEnv


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """How batches are collected and carried to the learner."""

    steps: int = setting("algo.training_frame_num", 1, 100_000)  # decisions of every drone per batch
    return_same_td: bool = setting("return_same_td")
    pipelined: bool = setting("use_pipelined_collector")
    prefetch_count: int = setting("prefetch_count", 1, 64)
    compress: str = setting("compress_rollout", options=("none", "lidar", "all"))
    rollout_interval: int = setting("rollout_save_interval", 0, 1e9)  # iterations between stored batches; 0: none

    @property
    def prefetch(self) -> int:
        """Batches collected ahead; 0: none."""
        return self.prefetch_count if self.pipelined else 0


class Batches(Protocol):
    """An endless source of batches. `staleness`: updates between the weights that flew the last one and the learner."""

    staleness: int
    actor: Actor
    env: NavigationEnv

    def __next__(self) -> Batch: ...
    def carry(self, frames: TensorDictBase) -> Batch: ...
    def state(self) -> dict: ...
    def shutdown(self) -> None: ...


def make_batches(env: NavigationEnv, ppo: PPO, settings: CollectSettings, state: dict | None = None) -> Batches:
    """The source the settings ask for; `state` is what it resumes from."""
    return (PrefetchedBatches if settings.pipelined else SerialBatches)(env, ppo, settings, state)


class _Source:
    """An environment, TorchRL's synchronous collector on it, and the way of its frames to the learner."""

    def __init__(
        self, env: NavigationEnv, ppo: PPO, actor: Actor, settings: CollectSettings, state: dict | None, same_td: bool
    ) -> None:
        self.env, self.ppo, self.actor, self.staleness = env, ppo, actor, 0
        self._packer: Packer | None = None
        if settings.compress != "none":
            columns = math.prod(ppo.policy.settings.beams) if settings.compress == "lidar" else None
            self._packer = Packer(actor.policy.encoder.prepare, settings.steps, columns)
        if state:
            check_batches_state(state, env, actor)
            env.load_state_dict(state["env"])  # before the collector begins by resetting it
        pieces = self._packer.pieces if self._packer else 1
        frames = env.num_envs * settings.steps // pieces
        self.collector = make_collector(env, actor, frames, same_td or pieces > 1)  # a packed piece is copied anyway
        self._frames = iter(self.collector)
        if actor is not ppo.actor and state:
            actor.noise.decision = state.get("decisions", 0)  # now: making a collector calls the actor

    def carry(self, frames: TensorDictBase) -> Batch:
        """Frames to the learner's device, as the network's input."""
        return Batch.prepared(self._to_learner(frames), self.ppo.policy.encoder.prepare)

    def _to_learner(self, frames: TensorDictBase) -> TensorDictBase:
        """To CUDA they go through pinned memory without waiting: what computes with them comes later in the stream."""
        if self.env.device == self.ppo.device:
            return frames
        if self.ppo.device.type == "cuda" and self.env.device.type == "cpu":
            return frames.pin_memory().to(self.ppo.device, non_blocking=True)
        return frames.to(self.ppo.device)

    def _collect(self, version: int) -> Batch:
        """Fly a batch with the actor's weights, which have seen `version` updates."""
        if self._packer is None:
            batch = self.carry(next(self._frames))
        else:  # what is packed stays in host memory
            packed = self._packer.gather(self._frames)
            batch = Batch(self._to_learner(packed.frames), packed.rows, packed.last_rows.to(self.ppo.device))
        batch.frames[VERSION] = torch.tensor(version).expand(batch.frames.batch_size)  # takes no memory
        return batch


def check_batches_state(state: Any, env: NavigationEnv, actor: Actor) -> None:
    """Raise Unfit if `state` is not the `state()` of batches from this environment."""
    weights = ListOf({"version": Number(0, 1e12, whole=True), **like(actor.weights())}, 65)
    spec = {"env": like(env.state_dict()), "decisions?": Number(0, 1e12, whole=True), "weights?": weights}
    check(state, spec, "batches")


def whole_state(batches: Batches, ranks: Ranks) -> dict:
    """`state()` of the whole run's batches, on rank 0: that of one process with the drones of all ranks."""
    state = batches.state()
    if ranks.size == 1:
        return state
    axes = {(part, name): axis for part, names in batches.env.drone_axes.items() for name, axis in names.items()}
    mine = {key: axis for key, axis in axes.items() if axis is not None}
    gathered = ranks.gather_tensors([state["env"][part][name] for part, name in mine])
    env = {part: dict(content) for part, content in state["env"].items()}
    for place, ((part, name), axis) in enumerate(mine.items()):
        if gathered:
            env[part][name] = torch.cat([tensors[place] for tensors in gathered], dim=axis)
    return state | {"env": env}


def own_state(state: dict, env: NavigationEnv, ranks: Ranks) -> dict:
    """This rank's part of a `whole_state`, whoever flew it: one process or any number of ranks."""
    if ranks.size == 1:
        return state
    total = env.num_envs * ranks.size
    first, count = ranks.share(total)
    out = {part: dict(content) for part, content in state["env"].items()}
    for part, names in env.drone_axes.items():
        for name, axis in names.items():
            if axis is not None:
                whole = out[part][name]
                if whole.ndim <= axis or whole.shape[axis] != total:
                    raise Unfit(f"batches.env.{part}.{name}", f"is not of {total} drones")
                out[part][name] = whole.narrow(axis, first, count)
    return state | {"env": out}


class SerialBatches(_Source):
    """Collects when asked. With `return_same_td` every batch is the same memory, overwritten."""

    def __init__(self, env: NavigationEnv, ppo: PPO, settings: CollectSettings, state: dict | None = None) -> None:
        self._apart = env.device != ppo.device  # then a copy of the policy acts on the simulator's device
        actor = ppo.actor.copy(env.device) if self._apart else ppo.actor
        super().__init__(env, ppo, actor, settings, state, settings.return_same_td)

    def __next__(self) -> Batch:
        if self._apart:
            self.actor.load_weights(self.ppo.actor.weights())
        return self._collect(self.ppo.updates)

    def state(self) -> dict:
        """Everything needed to resume from here, besides the learner; live tensors."""
        own = {"decisions": self.actor.noise.decision} if self._apart else {}
        return {"env": self.env.state_dict(), **own}

    def shutdown(self) -> None:
        self.collector.shutdown()


class PrefetchedBatches(_Source):
    """Collects the next `prefetch_count` batches in a thread while the learner works.

    The thread has a policy and a count of decisions of its own. For every batch it gets a copy of the learner's
    weights, taken when the learner asks for the batch `prefetch_count` before it. So batch k is flown with the weights
    after max(0, k - prefetch_count) updates, however fast either side is, and a run is as repeatable as a serial one.
    """

    def __init__(self, env: NavigationEnv, ppo: PPO, settings: CollectSettings, state: dict | None = None) -> None:
        actor = ppo.actor.copy(env.device)
        super().__init__(env, ppo, actor, settings, state, same_td=False)
        self._pending = deque(state.get("weights", []) if state else [])  # of the batches not handed out yet, in order
        self._count = settings.prefetch_count
        self._begun: deque[dict] = deque()  # the state in which each of those batches was begun
        self._change = threading.Condition()
        self._orders: queue.SimpleQueue[dict | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        for weights in self._pending:
            self._orders.put(weights)
        self._started, self._stopping, self._failed = False, False, False
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def __next__(self) -> Batch:
        if self._stopping or self._failed:
            raise RuntimeError("the collecting thread has ended")
        if not self._started:
            self._started = True
            self._thread.start()
            atexit.register(self.shutdown)  # a thread inside torch must not outlive the interpreter
        while len(self._pending) <= self._count:
            self._pending.append({"version": self.ppo.updates, **self.ppo.actor.weights()})
            self._orders.put(self._pending[-1])
        batch = self._ready.get()  # a thread that failed left its good batches here first, then its error
        if isinstance(batch, BaseException):
            self._failed = True
            raise batch  # with the thread's own traceback
        with self._change:
            self._begun.popleft()
        self.staleness = self.ppo.updates - self._pending.popleft()["version"]
        return batch

    def state(self) -> dict:
        """Everything needed to resume from here, besides the learner: batches under way are flown again."""
        with self._change:
            while not self._begun and self._thread.is_alive():
                self._change.wait(timeout=1.0)
            begun = self._begun[0] if self._begun else self._now()
        return {**begun, "weights": [*self._pending]}

    def shutdown(self) -> None:
        """Wait for the batch under way, then end the thread."""
        if self._stopping:
            return
        self._stopping = True
        self._orders.put(None)
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self.shutdown)
        self.collector.shutdown()

    def _work(self) -> None:
        try:
            while (weights := self._orders.get()) is not None and not self._stopping:
                with self._change:
                    self._begun.append(self._now())
                    self._change.notify_all()
                self.actor.load_weights(weights)
                self._ready.put(self._collect(weights["version"]))
        except BaseException as error:
            self._ready.put(error)
            with self._change:
                self._change.notify_all()

    def _now(self) -> dict:
        return copy.deepcopy({"env": self.env.state_dict(), "decisions": self.actor.noise.decision})


def make_collector(env: NavigationEnv, actor: Actor, frames: int, return_same_td: bool) -> Collector:
    """TorchRL's synchronous collector, set up for our actor."""
    return Collector(
        env,
        actor,
        frames_per_batch=frames,
        total_frames=-1,  # endless
        return_same_td=return_same_td,
        trust_policy=True,  # the actor is our own module: nothing to wrap
        track_traj_ids=False,
        auto_register_policy_transforms=False,
    )
