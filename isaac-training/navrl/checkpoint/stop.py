"""Stopping when asked: Ctrl-C or a scheduler's SIGTERM ends training after the current iteration."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """True once the process was asked to stop. The second request is not caught: it ends the process at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.restore()

    def __bool__(self) -> bool:
        return self.signal is not None

    def restore(self) -> None:
        """Back to what signals did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """128 + the signal, by convention; 0 if there was none."""
        return 128 + self.signal if self.signal else 0
