"""Stopping on request: Ctrl-C or a scheduler's SIGTERM ends training after the current iteration."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

SHOW_CURSOR = "\x1b[?25h"


class StopRequest:
    """True once the process was asked to stop. A second request ends the process at once.

    That is safe because files appear under their names only when complete.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at = 0.0
        self._before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), SHOW_CURSOR.encode())
            os._exit(128 + number)
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
