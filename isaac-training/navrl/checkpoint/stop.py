"""Stopping on request: Ctrl-C, a scheduler's SIGTERM or a lost terminal ends training after the current iteration."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from navrl.io.output import leave


def on_signals(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Call `handler` on every request to stop; returns the handlers before. `nohup` keeps its meaning."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return {number: signal.signal(number, handler) for number in numbers}


class StopRequest:
    """True once the process was asked to stop. A second request ends the process at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at = 0.0
        self._before = on_signals(self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            leave(128 + number)
        self.signal, self.at = number, time.monotonic()

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def seconds(self) -> float:
        """Seconds since the request; 0 if there was none."""
        return time.monotonic() - self.at if self.signal is not None else 0.0

    def __enter__(self) -> StopRequest:
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """128 + the signal number, by convention; 0 if there was none."""
        return 128 + self.signal if self.signal else 0
