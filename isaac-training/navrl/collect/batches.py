"""Batches of experience: one after the other, or the next one in a thread while the learner works on this one."""

from __future__ import annotations

import atexit
import copy
import queue
import threading
from collections import deque
from collections.abc import Iterator

import torch
from tensordict import TensorDictBase
from torchrl.collectors import Collector

from navrl.collect.packed import Packer
from navrl.ppo.ppo import PPO, HeldBatch
from navrl.task.env import NavigationEnv

VERSION = "policy_version"  # key of a batch: how many updates the weights that flew it had seen


class SerialBatches:
    """TorchRL's synchronous collector. With `return_same_td` every batch is the same memory, written anew."""

    staleness = 0  # updates between the weights that flew a batch and those that learn from it

    def __init__(
        self,
        env: NavigationEnv,
        ppo: PPO,
        frames: int,
        return_same_td: bool = True,
        state: dict | None = None,
        packer: Packer | None = None,
    ) -> None:
        self.env, self.ppo, self.packer = env, ppo, packer
        self._apart = env.device != ppo.device  # then a copy of the policy acts where the drones are
        self.actor = ppo.acting_copy(ppo.seed, env.device) if self._apart else ppo
        if state:
            env.load_state_dict(state["env"])  # before the collector begins by looking at it
        pieces = packer.pieces if packer else 1
        self.collector = make_collector(env, self.actor, frames // pieces, return_same_td)
        self._batches = iter(self.collector)
        if self._apart and state and "generator" in state:
            self.actor.generator.set_state(state["generator"])

    def __iter__(self) -> Iterator[TensorDictBase | HeldBatch]:
        return self

    def __next__(self) -> TensorDictBase | HeldBatch:
        version = self.ppo.updates
        if self._apart:
            self.actor.fly_with(self.ppo.acting_weights())
        return _mark(self.carry(_next(self._batches, self.packer)), version)

    def carry(self, batch: TensorDictBase | HeldBatch) -> TensorDictBase | HeldBatch:
        """To where it is learned from."""
        return to_device(batch, self.ppo.device) if self._apart else batch

    def state(self) -> dict:
        """All that is needed to go on from here, besides the learner; live tensors."""
        own = {"generator": self.actor.generator.get_state()} if self._apart else {}
        return {"env": self.env.state_dict(), **own}

    def shutdown(self) -> None:
        self.collector.shutdown()


class PrefetchedBatches:
    """Flies the next `count` batches in a thread while the learner works.

    The thread has a policy and random numbers of its own. It is given a copy of the learner's weights for every batch,
    taken when the learner asks for the batch `count` before it: so batch k is always flown with the weights after
    max(0, k - count) updates, however fast either side is, and a run is as repeatable as a serial one.
    """

    def __init__(
        self,
        env: NavigationEnv,
        ppo: PPO,
        frames: int,
        count: int = 1,
        seed: int = 0,
        state: dict | None = None,
        packer: Packer | None = None,
    ) -> None:
        self.env, self.ppo, self.packer, self.staleness = env, ppo, packer, 0
        self.actor = ppo.acting_copy(seed, env.device)
        if state:
            env.load_state_dict(state["env"])
        # Every batch is fresh memory; one that is packed is anyway.
        pieces = packer.pieces if packer else 1
        self.collector = make_collector(env, self.actor, frames // pieces, return_same_td=packer is not None)
        self._batches = iter(self.collector)
        if state and "generator" in state:  # now, because the collector tries the policy out when it is made
            self.actor.generator.set_state(state["generator"])
        self._pending = deque(state.get("weights", []) if state else [])  # for the batches not yet handed out, in order
        self._count = count
        self._begun: deque[dict] = deque()  # of those batches: how things were when each was begun
        self._change = threading.Condition()
        self._orders: queue.SimpleQueue[dict | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[TensorDictBase | HeldBatch | BaseException] = queue.SimpleQueue()
        for weights in self._pending:
            self._orders.put(weights)
        self._started, self._stopping, self._failed = False, False, False
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def __iter__(self) -> Iterator[TensorDictBase | HeldBatch]:
        return self

    def __next__(self) -> TensorDictBase | HeldBatch:
        if self._stopping or self._failed:
            raise RuntimeError("the collecting thread has ended")
        if not self._started:
            self._started = True
            self._thread.start()
            atexit.register(self.shutdown)  # a thread inside torch must not meet the end of the interpreter
        while len(self._pending) <= self._count:
            self._pending.append(self.ppo.acting_weights())
            self._orders.put(self._pending[-1])
        batch = self._ready.get()  # a thread that has failed left its good batches here first, then its error
        if isinstance(batch, BaseException):
            self._failed = True
            raise batch  # with the thread's own traceback
        with self._change:
            self._begun.popleft()
        weights = self._pending.popleft()
        self.staleness = self.ppo.updates - weights["version"]
        return batch

    def carry(self, batch: TensorDictBase | HeldBatch) -> TensorDictBase | HeldBatch:
        """To where it is learned from, while the learner is still busy with the one before."""
        return batch if self.env.device == self.ppo.device else to_device(batch, self.ppo.device)

    def state(self) -> dict:
        """All that is needed to go on from here, besides the learner: batches on the way are flown once more."""
        with self._change:
            while not self._begun and self._thread.is_alive():
                self._change.wait(timeout=1.0)
            begun = self._begun[0] if self._begun else self._as_now()
        return {**begun, "weights": [*self._pending]}

    def shutdown(self) -> None:
        """Let the batch on the way end, and the thread with it."""
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
                    self._begun.append(self._as_now())
                    self._change.notify_all()
                self.actor.fly_with(weights)
                self._ready.put(_mark(self.carry(_next(self._batches, self.packer)), weights["version"]))
        except BaseException as error:
            self._ready.put(error)
            with self._change:
                self._change.notify_all()

    def _as_now(self) -> dict:
        return copy.deepcopy({"env": self.env.state_dict(), "generator": self.actor.generator.get_state()})


def make_collector(env: NavigationEnv, policy: PPO, frames: int, return_same_td: bool) -> Collector:
    """TorchRL's, set up for our policy."""
    return Collector(
        env,
        policy,
        frames_per_batch=frames,
        total_frames=-1,  # as many as are asked for
        return_same_td=return_same_td,
        trust_policy=True,  # the policy is a module of ours: nothing to wrap
        track_traj_ids=False,
        auto_register_policy_transforms=False,
    )


def _next(batches: Iterator[TensorDictBase], packer: Packer | None) -> TensorDictBase | HeldBatch:
    return packer.gather(batches) if packer else next(batches)


def to_device(batch: TensorDictBase | HeldBatch, device: torch.device) -> TensorDictBase | HeldBatch:
    """A copy on another device; what is packed stays packed, here. To CUDA it goes through pinned memory, and nobody
    waits: whoever computes with it there comes later in the stream."""
    if isinstance(batch, HeldBatch):
        return HeldBatch(to_device(batch.small, device), batch.rows, batch.ends.to(device))
    if device.type == "cuda" and (batch.device is None or batch.device.type == "cpu"):
        return batch.pin_memory().to(device, non_blocking=True)
    return batch.to(device)


def _mark(batch: TensorDictBase | HeldBatch, version: int) -> TensorDictBase | HeldBatch:
    content = batch.small if isinstance(batch, HeldBatch) else batch
    content[VERSION] = torch.tensor(version).expand(content.batch_size)  # takes no memory
    return batch
