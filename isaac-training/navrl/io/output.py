"""Standard output and error that may break without ending the program: closed pipe, full disk, lost terminal.

What is shown is a convenience. A write that fails is dropped, work continues, and the exit code tells.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

OUTPUT_LOST = 74  # exit code: all was done, but not all was shown (EX_IOERR of sysexits.h)
SHOW_CURSOR = b"\x1b[?25h"

_lost: list[OSError] = []  # the first failure of this process


class _Lenient(io.FileIO):
    """A file descriptor whose failing writes are dropped. A disk that has room again shows what comes then."""

    def write(self, data: Any, /) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            if not _lost:
                _lost.append(error)
            return memoryview(data).nbytes


def make_output_lenient() -> None:
    """Make standard output and error of this process lenient; characters their encoding lacks are shown as `?`."""
    for descriptor in range(3):  # a closed one would be taken by the next file that is opened, and written into
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        if old is None or (type(old) is io.TextIOWrapper and not _is_lenient(old) and old.fileno() == descriptor):
            setattr(sys, name, _replacement(old, descriptor))


def _is_lenient(stream: io.TextIOWrapper) -> bool:
    return isinstance(getattr(stream.buffer, "raw", None), _Lenient)


def _replacement(old: io.TextIOWrapper | None, descriptor: int) -> io.TextIOWrapper:
    if old is not None:
        with contextlib.suppress(OSError):
            old.flush()
    buffer = io.BufferedWriter(_Lenient(descriptor, "wb", closefd=False))
    lines = descriptor == 2 or os.isatty(descriptor)
    return io.TextIOWrapper(buffer, old.encoding if old else "utf-8", "replace", line_buffering=lines)


def lost_output() -> OSError | None:
    """Why something could not be shown; None if everything was."""
    return _lost[0] if _lost else None


def leave(code: int) -> None:
    """End the process at once, without a traceback and with the cursor visible: for signal handlers.

    That is safe at any moment because files appear under their names only when complete.
    """
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)
    os._exit(code)
