"""What a file must hold: each kind of file has one description, checked where the file is read.

    STATE = {"iteration": Number(0, 1e12, whole=True), "scores": MapOf(Number(0, 1)), "wandb_id?": Text(120)}
    check(content, STATE)        # raises Unfit, whose message names the part: `iteration is -5`

A dict describes a dict with these keys (`?` marks those that may be absent; others are ignored), a list one with these
elements. `like(example)` describes everything with the structure, types and tensor shapes of an example.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navrl.settings import one_line

NODES, DEPTH = 1_000_000, 40  # of any file: values in it, and how deep they may be nested


class Unfit(ValueError):
    """A value that does not fit; the message is one line that names it."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where or 'it'} {problem}")


@dataclass(frozen=True)
class Number:
    """A finite number from `low` to `high`."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    def check(self, value: Any, where: str) -> None:
        kinds = int if self.whole else int | float
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise Unfit(where, f"is {shown(value)}, not a {'whole ' if self.whole else ''}number")
        if value != value or not self.low <= value <= self.high or abs(value) == math.inf:
            raise Unfit(where, f"is {shown(value)}, not between {self.low:g} and {self.high:g}")


@dataclass(frozen=True)
class Text:
    """A string of at most `longest` characters, of a `pattern` if one is given."""

    longest: int = 1000
    pattern: str | None = None

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, str) or len(value) > self.longest:
            raise Unfit(where, f"is {shown(value)}, not a text of at most {self.longest} characters")
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise Unfit(where, f"is {shown(value)}")


@dataclass(frozen=True)
class OneOf:
    """One of a few values of the same type."""

    values: tuple

    def check(self, value: Any, where: str) -> None:
        if not any(type(value) is type(known) and value == known for known in self.values):
            raise Unfit(where, f"is {shown(value)}, not one of {', '.join(map(str, self.values))}")


@dataclass(frozen=True)
class Maybe:
    """None, or what `spec` says."""

    spec: Any

    def check(self, value: Any, where: str) -> None:
        if value is not None:
            check(value, self.spec, where)


@dataclass(frozen=True)
class ListOf:
    """A list of at most `most` elements."""

    spec: Any
    most: int = 1000
    least: int = 0

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            raise Unfit(where, f"is {shown(value)}, not a list of {self.least} to {self.most} elements")
        for index, element in enumerate(value):
            check(element, self.spec, f"{where}[{index}]")


@dataclass(frozen=True)
class MapOf:
    """A dict with text keys (of a `pattern`) and values of one kind, at most `most` of them."""

    spec: Any
    most: int = 1000
    pattern: str | None = None

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping) or len(value) > self.most:
            raise Unfit(where, f"is {shown(value)}, not a dict of at most {self.most} values")
        for key, element in value.items():
            Text(200, self.pattern).check(key, f"a key of {where}")
            check(element, self.spec, f"{where}.{key}")


@dataclass(frozen=True)
class Plain:
    """Numbers, texts, truth values, None, and lists and dicts of them: what JSON can say."""

    def check(self, value: Any, where: str) -> None:
        if isinstance(value, Mapping):
            MapOf(self).check(value, where)
        elif isinstance(value, list):
            ListOf(self).check(value, where)
        elif isinstance(value, str):
            Text(100_000).check(value, where)
        elif value is not None and not isinstance(value, bool):
            Number().check(value, where)


@dataclass(frozen=True)
class Array:
    """A tensor of this dtype and shape (None: any size in this dimension), every number finite."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    finite: bool = True
    largest: float = math.inf

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
            raise Unfit(where, f"is {shown(value)}, not a tensor")
        sizes = len(value.shape) == len(self.shape)
        sizes = sizes and all(want in (None, have) for want, have in zip(self.shape, value.shape, strict=True))
        if value.dtype != self.dtype or not sizes:
            want = f"{self.dtype} {[*self.shape]}".replace("None", "any")
            raise Unfit(where, f"is {value.dtype} {[*value.shape]}, not {want}")
        if self.finite and not torch.isfinite(value).all():
            raise Unfit(where, "is not finite")
        if self.largest < math.inf and value.numel() and float(value.abs().max()) > self.largest:
            raise Unfit(where, f"holds numbers larger than {self.largest:g}")


@dataclass(frozen=True)
class Tensors:
    """Any tensor."""

    def check(self, value: Any, where: str) -> None:
        if not isinstance(value, Tensor):
            raise Unfit(where, f"is {shown(value)}, not a tensor")


def check(value: Any, spec: Any, where: str = "") -> None:
    """Raise Unfit if `value` is not what `spec` describes."""
    if isinstance(spec, dict):
        if not isinstance(value, Mapping):
            raise Unfit(where, f"is {shown(value)}, not a dict")
        for key, part in spec.items():
            name = key.removesuffix("?")
            if name in value:
                check(value[name], part, f"{where}.{name}" if where else name)
            elif name == key:
                raise Unfit(where, f"has no {name}") if where else Unfit(name, "is missing")
    elif isinstance(spec, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(spec):
            raise Unfit(where, f"is {shown(value)}, not a list of {len(spec)} elements")
        for index, (element, part) in enumerate(zip(value, spec, strict=True)):
            check(element, part, f"{where}[{index}]")
    else:
        spec.check(value, where)


def like(example: Any, largest: float = math.inf) -> Any:
    """Describe what has the structure of `example`, with no number in its tensors above `largest`."""
    if isinstance(example, Tensor):
        return Array(example.dtype, tuple(example.shape), largest=largest)
    if isinstance(example, Mapping):
        return {key: like(value, largest) for key, value in example.items()}
    if isinstance(example, list | tuple):
        return [like(value) for value in example]
    if isinstance(example, bool) or example is None:
        return OneOf((True, False, None))
    if isinstance(example, int | float):
        return Number(whole=isinstance(example, int))
    return Text(100_000)


def refuse_others(value: Mapping, known: Mapping, where: str) -> None:
    """Raise Unfit for keys that are not known."""
    if odd := value.keys() - known.keys():
        raise Unfit(where, f"holds {shown(next(iter(odd)))}, which does not belong there")


def check_bounds(content: Any) -> None:
    """Raise Unfit for what no honest file holds and what would make reading it slow: see NODES, DEPTH.

    A tensor must be dense and have memory of its own: one number may claim to be a terabyte.
    """
    count, waiting = 0, [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > NODES or depth > DEPTH:  # a container inside itself is infinitely deep
            raise Unfit("", f"holds more than {NODES} values, or is nested deeper than {DEPTH}")
        if isinstance(value, Tensor):
            dense = value.layout is torch.strided and not value.is_meta
            if not dense or value.numel() * value.element_size() > value.untyped_storage().nbytes():
                raise Unfit("", "holds a tensor that claims more memory than it has")
        elif isinstance(value, Mapping):
            waiting += [(element, depth + 1) for pair in value.items() for element in pair]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += [(element, depth + 1) for element in value]


def shown(value: Any) -> str:
    """A value in a message: short, and of one line."""
    if isinstance(value, int) and abs(value) > 10**30:  # Python refuses to write the longest
        return "an enormous number"
    if isinstance(value, str | int | float) or value is None:
        return one_line(repr(value[:60]) if isinstance(value, str) else str(value), 60)
    return f"a {type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") and _sized(value) else "")


def _sized(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple | set | bytes) or (isinstance(value, Tensor) and value.dim() > 0)
