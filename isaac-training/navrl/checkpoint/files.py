"""Writing files that are never torn: under a temporary name first, then renamed."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import torch

log = logging.getLogger("navrl")


def save(path: Path, content: dict) -> None:
    """Write plain values and tensors, readable with `torch.load(weights_only=True)`."""
    temporary = path.with_name(path.name + ".tmp")
    buffer = io.BytesIO()  # torch turns a full disk into an error of its own; written from memory it stays an OSError
    torch.save(content, buffer)
    try:
        with temporary.open("wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class DiskGuard:
    """Training outlives its disk: a write that fails is counted and told once, and the run goes on."""

    def __init__(self) -> None:
        self.failures = 0

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                log.warning("%s failed: %s; training goes on, free some space or it will not be saved", what, error)
