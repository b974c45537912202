"""Stopping on request: Ctrl-C, a scheduler's SIGTERM or a lost terminal ends training after the current iteration."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from navrl.io.output import leave

ECHO = 5.0  # s: torchrun passes on to its ranks what a terminal has sent them already


def on_signals(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Call `handler` on every request to stop; returns the handlers before. `nohup` keeps its meaning."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return {number: signal.signal(number, handler) for number in numbers}


class StopRequest:
    """True once the run was asked to stop. A second request ends the process at once.

    Of several ranks any may be asked, and all must stop after the same iteration: then this turns true in `agree`.
    """

    def __init__(self, alone: bool = True) -> None:
        self.signal: int | None = None  # what the run stops for
        self.noted, self.at = 0, 0.0  # what this process was sent, and when
        self._alone = alone
        self._before = on_signals(self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = self.noted and (self._alone or self.seconds > ECHO)
        if again:
            leave(128 + number)
        if not self.noted:
            self.noted, self.at = number, time.monotonic()
        if self._alone:
            self.signal = number

    def agree(self, number: int) -> None:
        """Stop for the signal `number` that any of the ranks has noted; 0: none has."""
        self.signal = number or None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def seconds(self) -> float:
        """Seconds since this process was asked; 0 if it was not."""
        return time.monotonic() - self.at if self.noted else 0.0

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
