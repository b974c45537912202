"""How a setting is declared and read: one dataclass field with type, range and key; its default and reason are in cfg/.

    gamma: float = setting("algo.gamma", 0.0, 1.0)

`read` builds the dataclass from a composed config and refuses a wrong value in one line. Every room may know this file.
"""

from __future__ import annotations

import itertools
import logging
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from numbers import Real
from typing import Any, TypeVar

log = logging.getLogger("navrl")

T = TypeVar("T")
SEED = (0, 2**31 - 1)  # range of every seed


class ConfigError(ValueError):
    """One line for the user: the key, its value, and what to do."""

    def __init__(self, key: str, value: object, fix: str) -> None:
        super().__init__(f"{one_line(f'{key}={value}', 300)}: {one_line(fix, 2000)}")


def one_line(text: str, longest: int = 400) -> str:
    """Text that may be shown: without line breaks and control characters, cut where it gets long."""
    text = "".join(c if c.isprintable() else " " for c in text[: longest + 1])
    return text if len(text) <= longest else text[: longest - 1] + "…"


@dataclass(frozen=True)
class Rule:
    """What a value must be, besides of its field's type."""

    key: str
    low: float
    high: float
    options: Sequence[str] | None
    rising: bool  # of a list: each number at least the one before
    parse: Callable[[Any, str], Any] | None  # (value, key) to the field's value, for what no type describes


def setting(
    key: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    options: Sequence[str] | None = None,
    rising: bool = False,
    parse: Callable[[Any, str], Any] | None = None,
) -> Any:
    """Declare a field that is read from `key`; `low` and `high` bound a number, or each number of a list."""
    return field(metadata={"rule": Rule(key, low, high, options, rising, parse)})


def read(kind: type[T], config: Mapping, /, **given: object) -> T:
    """Build the settings object `kind` from a composed config (plain dicts, lists and values).

    A field whose type is a settings object is read in turn; fields with neither key nor default must be `given`.
    """
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = dict(given)
    for f in fields(kind):  # pyright: ignore[reportArgumentType]
        if f.name in values:
            continue
        if rule := f.metadata.get("rule"):
            values[f.name] = check(_find(config, rule.key), rule, hints[f.name])
        elif is_dataclass(hints[f.name]) and f.default is MISSING:
            values[f.name] = read(hints[f.name], config)
    return kind(**values)


def declared(kind: type) -> Iterator[str]:
    """The keys that the settings object `kind` is read from."""
    hints = typing.get_type_hints(kind)
    for f in fields(kind):
        if rule := f.metadata.get("rule"):
            yield rule.key
        elif is_dataclass(hints[f.name]):
            yield from declared(hints[f.name])  # pyright: ignore[reportArgumentType]


def check(value: Any, rule: Rule, kind: Any) -> Any:
    """Return `value` as `kind`; ConfigError if it breaks the rule."""
    if rule.parse:
        return rule.parse(value, rule.key)
    if rule.options is not None:
        if value not in rule.options:
            raise ConfigError(rule.key, value, f"must be one of {', '.join(rule.options)}")
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(rule.key, value, "must be true or false")
        return value
    if kind in (int, float):
        return _number(value, rule, integral=kind is int)
    if kind in (str, str | None):
        if value is None and kind is not str:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(rule.key, value, "must be a word" + (", or null" if kind is not str else ""))
        return str(value)
    if typing.get_origin(kind) is tuple:
        return _numbers(value, rule, len(typing.get_args(kind)))
    raise TypeError(f"{rule.key}: a setting cannot be a {kind}; declare it with parse=")


def whole(value: Any) -> Any:
    """An integer written as a float (12e8, as NavRL's own configuration has it) as an integer; else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(value: Any, rule: Rule, integral: bool) -> Any:
    value = whole(value) if integral else value
    kind = "a whole number" if integral else "a number"
    limits = f"between {rule.low:.10g} and {rule.high:.10g}"
    if rule.high == math.inf:
        limits = f"of at least {rule.low:.10g}"
    right_type = isinstance(value, int if integral else Real) and not isinstance(value, bool)
    if not right_type or not math.isfinite(value) or not rule.low <= value <= rule.high:  # pyright: ignore[reportOperatorIssue]
        raise ConfigError(rule.key, value, f"must be {kind} {limits}")
    return value if integral else float(value)


def _numbers(value: Any, rule: Rule, length: int) -> tuple[float, ...]:
    good = isinstance(value, list | tuple) and len(value) == length
    good = good and all(isinstance(v, Real) and not isinstance(v, bool) and math.isfinite(v) for v in value)
    if not good or min(value) < rule.low:
        at_least = f" of at least {rule.low:g}" if rule.low > -math.inf else ""
        raise ConfigError(rule.key, value, f"must be a list of {length} numbers{at_least}")
    if rule.rising and any(b < a for a, b in itertools.pairwise(value)):
        raise ConfigError(rule.key, value, "must go from low to high")
    return tuple(float(v) for v in value)


def _find(config: Any, key: str) -> Any:
    node = config
    for part in key.split("."):
        if not isinstance(node, Mapping):
            raise ConfigError(key.rpartition(f".{part}")[0], node, f"must be a section with the key {part}")
        if part not in node:
            raise ConfigError(key, "nothing", "is missing from the configuration")
        node = node[part]
    return node


def device(value: Any, key: str) -> str:
    """Parse a device, with `auto` resolved; logs which one it is and why."""
    import torch  # here, because the command line needs ConfigError before anything slow

    wanted, available = str(value), torch.cuda.is_available()
    if wanted == "auto":
        wanted = "cuda:0" if available else "cpu"
        log.info("device: %s (%s)", wanted, torch.cuda.get_device_name(0) if available else "no CUDA device found")
        return wanted
    if wanted == "cpu":
        return wanted
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise ConfigError(key, wanted, "must be auto, cpu, cuda or cuda:<number>")
    if not available:
        raise ConfigError(key, wanted, f"this machine has no CUDA device that torch can use; set {key}=cpu")
    if int(index or 0) >= torch.cuda.device_count():
        raise ConfigError(key, wanted, f"there are only {torch.cuda.device_count()} CUDA devices, counted from 0")
    return f"cuda:{int(index or 0)}"
