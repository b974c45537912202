"""A copy of everything at one moment, taken faster than an optimizer step, that nothing changes afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PLAIN = (int, float, str, bool, type(None))


class Snapshot:
    """A deep copy in host memory that is kept and used again for the next one.

    From CUDA the copy goes to pinned memory in the order of the stream: what the training thread asks for next, an
    optimizer step say, waits on the device and not in Python. `wait()` before reading.
    """

    def __init__(self) -> None:
        self.content: dict = {}
        self._buffers: list[Tensor] = []
        self._copied: torch.cuda.Event | None = None

    def fits(self, tensors: list[Tensor]) -> bool:
        """True if `take` would need no new memory."""
        mine = self._buffers
        return len(mine) == len(tensors) and all(
            a.shape == b.shape and a.dtype == b.dtype for a, b in zip(mine, tensors, strict=True)
        )

    def take(self, content: dict, tensors: list[Tensor]) -> None:
        """Copy `content`, whose tensors in order are `tensors`."""
        if not self.fits(tensors):
            self._buffers = [torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda) for t in tensors]
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, tensors, non_blocking=True)
        if any(t.is_cuda for t in tensors):
            self._copied = torch.cuda.Event()
            self._copied.record()
        self.content = _rebuild(content, iter(self._buffers))

    def wait(self) -> None:
        """Until the copy has arrived; call it where waiting is free."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None


def tensors_of(content: object, where: str = "checkpoint") -> list[Tensor]:
    """The tensors in nested dicts, lists and tuples, in order. Raises TypeError for what a file could not hold."""
    found: list[Tensor] = []
    _collect(content, where, found)
    return found


def _collect(node: object, where: str, found: list[Tensor]) -> None:
    if isinstance(node, Tensor):
        found.append(node)
    elif isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, Tensor):
                found.append(value)
            else:
                _collect(value, f"{where}[{key!r}]", found)
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            _collect(value, f"{where}[{index}]", found)
    elif type(node) not in PLAIN:  # subclasses would come back as what they are, or not at all
        raise TypeError(f"{where} is a {type(node).__name__}; a checkpoint holds tensors and plain values")


def _rebuild(node: object, buffers: Iterator[Tensor]) -> object:
    if isinstance(node, Tensor):
        return next(buffers)
    if isinstance(node, dict):
        return {key: _rebuild(value, buffers) for key, value in node.items()}
    if isinstance(node, list | tuple):
        copied = [_rebuild(value, buffers) for value in node]
        return copied if isinstance(node, list) else tuple(copied)
    return node
