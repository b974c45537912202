"""How long each phase of training takes."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator


class PhaseTimers:
    """`with timers("update"):` adds to the seconds of a phase; `shares()` tells them as fractions of all time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.began = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - begin

    def state(self) -> dict:
        return {"elapsed": self.elapsed, "seconds": dict(self.seconds)}

    def load_state(self, state: dict) -> None:
        """Go on counting from `state()`."""
        self.began = time.perf_counter() - state["elapsed"]
        self.seconds.update(state["seconds"])

    @property
    def elapsed(self) -> float:
        """Seconds of this run, those before it was gone on with included."""
        return time.perf_counter() - self.began

    def shares(self) -> dict[str, float]:
        return {phase: seconds / self.elapsed for phase, seconds in self.seconds.items()}
