"""Runs Warp launches on several CPU cores: one launch takes one core and no GIL, so Python threads share the drones."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from queue import SimpleQueue

import torch
import warp as wp

from navrl.sim.runtime import FORWARD_ONLY

SLICE_FLOOR = 64  # drones; a second thread does not pay for less


@wp.func_native("__atomic_add_fetch(counter.data, 1, __ATOMIC_RELEASE);")
def add_one(counter: wp.array(dtype=int)): ...


@wp.func_native("while (__atomic_load_n(counter.data, __ATOMIC_ACQUIRE) != target) {}")
def spin_until(counter: wp.array(dtype=int), target: int): ...


@wp.kernel(module="unique", module_options=FORWARD_ONLY)
def count_finished(counter: wp.array(dtype=int)):
    add_one(counter)


@wp.kernel(module="unique", module_options=FORWARD_ONLY)
def wait_finished(counter: wp.array(dtype=int), target: int):
    spin_until(counter, target)


class Crew:
    """This thread and `threads - 1` helpers, working off a list of slices.

    Which thread takes which slice does not matter: slices touch different drones, so results are the same bits for
    any number of threads. Waking a thread takes some 50 µs and handing the GIL back and forth as much again, so the
    end of the work is counted, and awaited, inside kernels.
    """

    def __init__(self, device: torch.device, threads: int = 0) -> None:
        self.size = 1 if device.type == "cuda" else threads or torch.get_num_threads()
        self._todo: deque[list[wp.Launch]] = deque()
        self._failure: BaseException | None = None
        self._bell: SimpleQueue[bool] = SimpleQueue()  # True: there may be work; False: go home
        self._helpers = [threading.Thread(target=self._help, daemon=True) for _ in range(self.size - 1)]
        if self._helpers:
            counter = wp.zeros(1, dtype=int, device="cpu")
            self._count = wp.launch(count_finished, 1, inputs=[counter], device="cpu", record_cmd=True)
            self._wait = wp.launch(wait_finished, 1, inputs=[counter, 0], device="cpu", record_cmd=True)
            self._counter = counter.numpy()  # the same memory
        for helper in self._helpers:
            helper.start()

    def slices(self, total: int) -> list[tuple[int, int]]:
        """(first, size) of near-equal shares of `total` drones. One a thread: every launch is a fight for the GIL."""
        parts = max(1, min(self.size, total // SLICE_FLOOR))
        edges = [total * k // parts for k in range(parts + 1)]
        return [(a, b - a) for a, b in itertools.pairwise(edges)]

    def wake(self) -> None:
        """Ring for the helpers; worth doing a little before `run`."""
        for _ in self._helpers:
            self._bell.put(True)

    def run(self, slices: list[list[wp.Launch]]) -> None:
        """Run every slice; the launches of one slice run in order, on one thread."""
        if not self._helpers or len(slices) == 1:
            for launches in slices:
                for launch in launches:
                    launch.launch()
            return
        self._counter[0] = 0
        self._todo.extend(slices)
        self.wake()
        self._work()
        self._wait.set_param_by_name("target", len(slices))
        self._wait.launch()
        if self._failure:
            failure, self._failure = self._failure, None
            raise failure

    def close(self) -> None:
        """Send the helpers home."""
        for _ in self._helpers:
            self._bell.put(False)
        for helper in self._helpers:
            helper.join()
        self._helpers = []

    def _work(self) -> None:
        while True:
            try:
                launches = self._todo.popleft()
            except IndexError:
                return
            try:
                for launch in launches:
                    launch.launch()
            except BaseException as error:
                self._failure = error
            self._count.launch()

    def _help(self) -> None:
        while self._bell.get():
            self._work()
