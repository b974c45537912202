"""What is known of runs when they are over, and whether a difference between them is more than noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from navrl.monitor.curves import PUBLISHED, PUBLISHED_EPISODES
from navrl.task.evaluation import wilson_interval

Curve = tuple[np.ndarray, np.ndarray]  # x and y
UNKNOWN = "?"  # value of a setting that was not recorded
PAIRWISE = 4  # groups up to which each is compared with each; more are compared with the first


@dataclass(frozen=True)
class Score:
    """Success in one scenario at the last evaluation, a fraction."""

    success: float
    episodes: int = 0  # flights; 0: not recorded
    outcomes: Mapping[str, float] = field(default_factory=dict)  # fractions, by name; may lack any
    means: Mapping[str, float] = field(default_factory=dict)  # speed, path_ratio, time_to_goal

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval."""
        if not self.episodes:
            return None
        low, high = wilson_interval(round(self.success * self.episodes), self.episodes)
        return low, high


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One run, as its directory tells it. What is None or empty was not recorded."""

    name: str
    path: Path
    rows: Sequence[Mapping[str, float]] = ()  # of metrics.csv, thinned
    scores: Mapping[str, Score] = field(default_factory=dict)  # by scenario
    scored_at: int | None = None  # frames
    frames: int | None = None
    planned: int | None = None  # frames it was to learn from
    finished: bool | None = None
    seconds: float | None = None  # of wall clock, over all resumes
    seed: str | None = None
    differs: Mapping[str, tuple[str, str]] | None = None  # by key: the default and this run's value
    learning: Mapping[str, tuple[str, str]] | None = None  # of these what decides what is learned; not the seed
    phases: Mapping[str, float] = field(default_factory=dict)  # share of wall clock by timer, as in collect/policy
    machine: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    command: str | None = None
    files: Sequence[tuple[str, int]] = ()  # names within the directory, and bytes
    log: Sequence[str] = ()  # last lines
    replay: tuple[str, str] | None = None  # name of the page with recorded flights, and its data
    problems: Sequence[str] = ()  # one line for each file that could not be read

    @property
    def speed(self) -> float | None:
        """Frames per second over the whole run."""
        return self.frames / self.seconds if self.frames and self.seconds else None


# --- noise -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Success of one side minus that of the other, as a fraction, with its 95 % interval."""

    value: float
    low: float
    high: float
    method: str  # how the interval was found

    @property
    def within_noise(self) -> bool:
        return self.low <= 0 <= self.high


def flights_difference(a: float, flights_a: int, b: float, flights_b: int) -> Difference:
    """Of two fractions of independent flights: Newcombe's interval, made of both Wilson intervals."""
    (low_a, high_a), (low_b, high_b) = (wilson_interval(round(p * n), n) for p, n in ((a, flights_a), (b, flights_b)))
    low = a - b - math.hypot(a - low_a, high_b - b)
    high = a - b + math.hypot(high_a - a, b - low_b)
    return Difference(a - b, low, high, f"binomial interval of {flights_a} and {flights_b} flights")


def seeds_difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Of the means of two samples, one value per seed, at least two each and not all the same: Welch's t interval."""
    errors = [float(np.var(sample, ddof=1)) / len(sample) for sample in (a, b)]
    total = sum(errors)
    freedom = total**2 / sum(error**2 / (len(sample) - 1) for error, sample in zip(errors, (a, b), strict=True))
    half = student_quantile(freedom) * math.sqrt(total)
    value = float(np.mean(a) - np.mean(b))
    return Difference(value, value - half, value + half, f"Welch's t-test over {len(a)} and {len(b)} seeds")


def student_quantile(freedom: float, confidence: float = 0.95) -> float:
    """The t that `confidence` of Student's distribution lies within, on both sides of 0.

    With t = √ν tan θ its density is proportional to cos(θ)^(ν-1), so the sum of a table of cosines is enough.
    """
    angle = np.linspace(0, math.pi / 2, 200_001)
    mass = np.cumsum(np.cos((angle[1:] + angle[:-1]) / 2).clip(0) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(np.interp(confidence, np.concatenate([[0], mass]) / mass[-1], angle))


def against_published(scenario: str, score: Score) -> Difference | None:
    """A score against NavRL's published policy; None where either has no number of flights."""
    if scenario not in PUBLISHED or not score.episodes:
        return None
    return flights_difference(score.success, score.episodes, PUBLISHED[scenario] / 100, PUBLISHED_EPISODES)


# --- groups of seeds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs with the same settings but for the seed."""

    name: str  # A, B, ...
    runs: Sequence[RunData]

    def by_seed(self, scenario: str) -> list[Score]:
        """One score per seed: the same seed twice is the same run twice, not a second sample."""
        scores: dict[str, list[Score]] = {}
        for number, run in enumerate(self.runs):
            if scenario in run.scores:
                scores.setdefault(run.seed or f"unknown {number}", []).append(run.scores[scenario])
        return [
            Score(float(np.mean([score.success for score in same])), min(score.episodes for score in same))
            for same in scores.values()
        ]

    def setting(self, key: str, default: str) -> str:
        """Its value of a setting that some group has changed; UNKNOWN if its settings are."""
        learning = self.runs[0].learning
        return UNKNOWN if learning is None else learning.get(key, ("", default))[1]


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Groups in the order of their first runs. A run whose settings are not known is a group of its own."""
    found: dict[object, list[RunData]] = {}
    for number, run in enumerate(runs):
        key = number if run.learning is None else tuple(sorted(run.learning.items()))
        found.setdefault(key, []).append(run)
    return [Group(name, same) for name, same in zip(_names(), found.values(), strict=False)]


def _names() -> Iterator[str]:
    """A to Z, AA, AB, ..."""
    letters = [chr(ord("A") + k) for k in range(26)]
    for length in itertools.count(1):
        yield from map("".join, itertools.product(letters, repeat=length))


def changed_settings(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Settings that are not the same in all groups: their values, one per group."""
    defaults: dict[str, str] = {}
    for group in groups:
        defaults |= {key: default for key, (default, _) in (group.runs[0].learning or {}).items()}
    values = {key: [group.setting(key, default) for group in groups] for key, default in sorted(defaults.items())}
    return {key: row for key, row in values.items() if len({*row} - {UNKNOWN}) > 1}


def scenarios_of(runs: Sequence[RunData]) -> list[str]:
    """Every scenario that any run was evaluated on, in the order of the runs."""
    return list(dict.fromkeys(name for run in runs for name in run.scores))


def pairs_of(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Which groups are compared."""
    if len(groups) <= PAIRWISE:
        return list(itertools.combinations(groups, 2))
    return [(groups[0], other) for other in groups[1:]]


def compare(a: Group, b: Group, scenario: str) -> Difference | None:
    """The difference of b to a: over seeds if both have several, else over flights; None if it cannot be said."""
    mine, theirs = a.by_seed(scenario), b.by_seed(scenario)
    if not mine or not theirs:
        return None
    samples = [[score.success for score in side] for side in (theirs, mine)]
    if min(map(len, samples)) > 1 and sum(map(np.var, samples)) > 1e-12:
        return seeds_difference(*samples)
    if not all(score.episodes for score in mine + theirs):
        return None
    (p, n), (q, m) = (
        (float(np.mean([s.success for s in side])), sum(s.episodes for s in side)) for side in (theirs, mine)
    )
    return flights_difference(p, n, q, m)


# --- curves ----------------------------------------------------------------------------------------------------------


def merged(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """One row per number of frames, rising, every one with its minutes where these are known.

    An evaluation is a row of its own without minutes, and a resumed run may repeat some.
    """
    out: dict[float, dict[str, float]] = {}
    for row in rows:
        out.setdefault(row["frames"], {}).update(row)
    return [out[frames] for frames in sorted(out)]


def curve(rows: Sequence[Mapping[str, float]], x: str, name: str) -> Curve:
    """Values of a metric over `frames` or `charts/minutes`, rising."""
    points = np.array([(row[x], row[name]) for row in rows if name in row and x in row], float).reshape(-1, 2)
    points = points[np.argsort(points[:, 0], kind="stable")]
    return points[:, 0], points[:, 1]


def mean_and_spread(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, mean and standard deviation of several curves, where all of them are; between points they are straight."""
    curves = [one for one in curves if len(one[0])]
    if not curves:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= low) & (grid <= high)]
    values = np.array([np.interp(grid, x, y) for x, y in curves])  # (runs, points)
    spread = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(grid))
    return grid, values.mean(axis=0), spread
