"""A consistent copy of nested tensors, taken faster than an optimizer step and not changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

PLAIN = {int, float, str, bool, type(None)}
LARGE = 1 << 22  # bytes above which several threads copy faster than one; waking them may take 10 ms


class Live(dict):
    """Nested tensors that are updated in place but never replaced: snapshots traverse them only once."""


@dataclass
class _Pairs:
    """Destinations and sources of a copy."""

    small: list[tuple[memoryview, memoryview]] = field(default_factory=list)  # in a third of torch's or numpy's time
    other: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def add(self, copy: Tensor, tensor: Tensor) -> None:
        if tensor.is_cuda or tensor.nbytes >= LARGE or not tensor.is_contiguous():
            self.other.append((copy, tensor))
        elif tensor.nbytes:
            self.small.append((_bytes(copy), _bytes(tensor)))

    def copy(self) -> None:
        for copy, tensor in self.small:
            copy[:] = tensor
        if self.other:
            copies, tensors = zip(*self.other, strict=True)
            with torch.no_grad():
                torch._foreach_copy_(copies, tensors, non_blocking=True)  # pyright: ignore[reportPrivateImportUsage]


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


class Snapshot:
    """A deep copy in host memory that is reused for the next one.

    CUDA tensors are copied to pinned memory in stream order: the next operation of the training thread, such as an
    optimizer step, waits on the device and not in Python. Call `wait()` before reading.
    """

    def __init__(self) -> None:
        self.content: dict = {}
        self._known: dict[int, tuple[Live, dict, _Pairs]] = {}  # by id
        self._copied: torch.cuda.Event | None = None

    def take(self, content: dict) -> None:
        """Copy `content`: nested dicts, lists and tuples of tensors and plain values. Raises TypeError otherwise."""
        known, self._known, pairs = self._known, {}, _Pairs()
        self.content = self._copy(content, self.content, pairs, known)  # pyright: ignore[reportAttributeAccessIssue]
        parts = [pairs, *(live_pairs for _, _, live_pairs in self._known.values())]
        for part in parts:
            part.copy()
        if any(tensor.is_cuda for part in parts for _, tensor in part.other):
            self._copied = torch.cuda.Event()
            self._copied.record()

    def wait(self) -> None:
        """Wait until the copy has arrived; call it where waiting costs nothing."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None

    def _copy(self, node: object, old: object, pairs: _Pairs, known: dict | None) -> object:
        """Return `node` with memory for a copy of each tensor: that of `old`, the previous copy, where it fits."""
        if type(node) is Live and known is not None:
            if id(node) not in known:
                mine = _Pairs()
                known[id(node)] = node, self._copy(dict(node), old, mine, None), mine
            self._known[id(node)] = known[id(node)]
            return known[id(node)][1]
        if isinstance(node, Tensor):
            if not isinstance(old, Tensor) or old.shape != node.shape or old.dtype != node.dtype:
                old = torch.empty(node.shape, dtype=node.dtype, pin_memory=node.is_cuda)
            pairs.add(old, node)
            return old
        if type(node) in PLAIN:
            return node
        if isinstance(node, dict):
            before = old if isinstance(old, dict) else {}
            return {key: self._copy(value, before.get(key), pairs, known) for key, value in node.items()}
        if isinstance(node, list | tuple):
            if set(map(type, node)) <= PLAIN:
                return type(node)(node)
            before = old if isinstance(old, list | tuple) and len(old) == len(node) else [None] * len(node)
            new = [self._copy(value, before[index], pairs, known) for index, value in enumerate(node)]
            return new if isinstance(node, list) else tuple(new)
        raise TypeError(f"a checkpoint holds tensors and plain values, not a {type(node).__name__}: {node!r:.60}")


def tensors_of(content: object) -> list[Tensor]:
    """List the tensors in nested dicts, lists and tuples, in order."""
    if isinstance(content, Tensor):
        return [content]
    if isinstance(content, dict):
        content = [*content.values()]
    return [t for value in content for t in tensors_of(value)] if isinstance(content, list | tuple) else []
