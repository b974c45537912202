"""Writing files that are never torn: under a temporary name first, then renamed."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def save(path: Path, content: dict) -> None:
    """Write plain values and tensors, readable with `torch.load(weights_only=True)`."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
