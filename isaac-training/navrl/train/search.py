"""What a sweep searches: settings and their ranges, from a file of cfg/sweep/, checked as a run would check them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from omegaconf import OmegaConf
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from navrl.settings import ConfigError, one_line
from navrl.train.hardware import choose
from navrl.train.resume import GROUPS
from navrl.train.settings import CONFIG, TrainSettings, compose_config, parse_train, plain

OURS = ("resume", "seed", "hydra.run.dir", "hydra.sweep.dir")  # keys that every run of a sweep is given
MACHINE = ("device", "learner_device", "threads", "sim.threads")  # keys that may differ between workers


@dataclass(frozen=True)
class Sweep:
    """What is searched, and what every run of the sweep is told."""

    name: str
    search: Mapping[str, BaseDistribution]  # by train key; a key may be several, separated by commas
    overrides: tuple[str, ...]
    seeds: int
    folder: Path

    def settings(self, params: Mapping[str, Any]) -> TrainSettings:
        """Settings of a run with these parameters; raises what Hydra, OmegaConf and our own checks raise."""
        words = [word if word.partition("=")[0] in GROUPS else f"++{word}" for word in override(params)]
        return parse_train(compose_config("train", [*self.overrides, *words]))

    def check(self) -> TrainSettings:
        """Refuse keys and values that a run would refuse; returns the settings before any search."""
        base = self.settings({})
        for key, domain in self.search.items():
            for value in domain.choices if isinstance(domain, CategoricalDistribution) else (domain.low, domain.high):  # pyright: ignore[reportAttributeAccessIssue]
                try:
                    self.settings({key: value})
                except ConfigError as error:
                    raise ConfigError("search", self.name, str(error)) from None
        return base

    def described(self) -> dict[str, Any]:
        """What must be the same for every worker of a study: otherwise its scores cannot be compared."""
        words = [word for word in self.overrides if word.partition("=")[0] not in MACHINE]
        search = {key: json.loads(distribution_to_json(domain)) for key, domain in self.search.items()}
        return {"search": search, "overrides": sorted(words), "seeds": self.seeds}

    def directory(self, number: int) -> Path:
        return self.folder / f"trial-{number:04d}"


def sweep_file(name: str) -> Path:
    """The file of a sweep: cfg/sweep/<name>.yaml, or a path."""
    file = Path(name) if name.endswith((".yaml", ".yml")) else CONFIG / "sweep" / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(path.stem for path in sorted((CONFIG / "sweep").glob("*.yaml")))
        raise ConfigError("name", name, f"no such sweep; choose one of {known}, or give the path of a yaml file")
    return file


def read_sweep(file: Path, overrides: Sequence[str], seeds: int, folder: Path) -> Sweep:
    """Read the search space; the overrides of the file come first, so that typed ones win."""
    try:
        content = plain(OmegaConf.load(file))
    except Exception as error:  # of the yaml reader, of OmegaConf: a class for every mistake
        raise ConfigError("name", file, f"cannot be read: {one_line(str(error), 200)}") from None
    if wrong := [key for key in content if key not in ("about", "overrides", "search")]:
        raise ConfigError("name", file, f"{wrong[0]}: no such key; the keys are about, overrides, search")
    search, own = content.get("search"), content.get("overrides") or []
    if not isinstance(search, dict) or not search:
        raise ConfigError("name", file, "search: must be a section with at least one key of cfg/train.yaml")
    if not isinstance(own, list) or not all(isinstance(word, str) and "=" in word for word in own):
        raise ConfigError("name", file, "overrides: must be a list of key=value")
    given = {word.partition("=")[0].lstrip("+~"): word for word in (*own, *overrides)}  # the last of a key counts
    if given.get("hardware", "hardware=auto") == "hardware=auto":  # the same for all workers, whatever they run on
        given["hardware"] = f"hardware={choose()[0]}"
    domains = {str(key): _domain(str(key), value) for key, value in search.items()}
    sweep = Sweep(file.stem, domains, tuple(given.values()), seeds, folder)
    searched = [part for key in search for part in split(str(key))]
    for key, word in given.items():
        if key in OURS or key.startswith("hydra."):
            fix = "is given to every run by the sweep; use folder= and seeds="
            raise ConfigError(key, word.partition("=")[2], fix)
        if key in searched:
            raise ConfigError(key, word.partition("=")[2], f"is searched by {file.stem}; remove it here or there")
    for key in searched:
        if key in OURS or searched.count(key) > 1:
            raise ConfigError("search", key, "is given by the sweep" if key in OURS else "is there twice")
    return sweep


def _domain(key: str, value: Any) -> BaseDistribution:
    """The values a key may take: a list of choices, or a range."""
    if isinstance(value, list):
        if not value:
            raise ConfigError("search", key, "has an empty list of choices; give at least one")
        plain_types = (str, int, float, bool, type(None))  # what Optuna stores; others as they are typed
        return CategoricalDistribution([v if isinstance(v, plain_types) else written(v) for v in value])
    if not isinstance(value, dict) or not {"low", "high"} <= value.keys() <= {"low", "high", "log", "integer"}:
        fix = "must be a list of choices, or low and high (with log: true and integer: true where they apply)"
        raise ConfigError("search", f"{key}: {value}", fix)
    low, high, log, integer = value["low"], value["high"], value.get("log", False), value.get("integer", False)
    numbers = all(isinstance(v, int if integer else int | float) and not isinstance(v, bool) for v in (low, high))
    if not numbers or not isinstance(log, bool) or not isinstance(integer, bool):
        kind = "whole numbers" if integer is True else "numbers"
        raise ConfigError("search", f"{key}: {value}", f"low and high must be {kind}, log and integer true or false")
    if not low < high:
        raise ConfigError("search", key, f"is empty: low={low} must be less than high={high}")
    if log and low <= 0:
        raise ConfigError("search", key, f"low={low} must be more than 0 with log: true")
    return IntDistribution(low, high, log) if integer else FloatDistribution(low, high, log)


def suggest(trial: optuna.Trial, key: str, domain: BaseDistribution) -> Any:
    """A value of this trial, the same however often it is asked for."""
    if isinstance(domain, CategoricalDistribution):
        return trial.suggest_categorical(key, domain.choices)
    if isinstance(domain, IntDistribution):
        return trial.suggest_int(key, domain.low, domain.high, log=domain.log)
    assert isinstance(domain, FloatDistribution)
    return trial.suggest_float(key, domain.low, domain.high, log=domain.log)


def override(params: Mapping[str, Any]) -> list[str]:
    """Parameters as they are typed."""
    return [f"{part}={written(value)}" for key, value in params.items() for part in split(key)]


def split(key: str) -> list[str]:
    return [part.strip() for part in key.split(",")]


def written(value: Any) -> str:
    """A value as Hydra reads it, of a number the six digits that matter: short enough to be typed again."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value if re.fullmatch(r"[\w./+%@:-]+|\[.*\]|\{.*\}", value) else json.dumps(value)
    return json.dumps(value)  # true, null, 3, [1, 2]
