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

    @property
    def elapsed(self) -> float:
        """Seconds since the timers were made."""
        return time.perf_counter() - self.began

    def shares(self) -> dict[str, float]:
        return {phase: seconds / self.elapsed for phase, seconds in self.seconds.items()}
