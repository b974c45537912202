from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from navrl.view.runs import (
    Difference,
    RunData,
    Score,
    against_published,
    changed_settings,
    compare,
    flights_difference,
    group_runs,
    mean_and_spread,
    merged,
    pairs_of,
    seeds_difference,
    student_quantile,
)


def run(seed: int, success: float, episodes: int = 256, learning: dict | None = None) -> RunData:
    scores = {"crossing-350-80": Score(success, episodes)}
    learning = learning or {}
    return RunData(name=f"run {seed}", path=Path(), scores=scores, seed=str(seed), learning=learning)


def compare_all(runs: list[RunData]) -> Difference | None:
    a, b = group_runs(runs)
    return compare(a, b, "crossing-350-80")


# Reference values of this test and the next: scipy 1.17.1, stats.t.ppf and stats.ttest_ind(equal_var=False).
@pytest.mark.parametrize(
    "freedom, t", [(1, 12.7062), (1.2, 8.6488), (2, 4.3027), (2.5, 3.5747), (5, 2.5706), (30, 2.0423), (1000, 1.9623)]
)
def test_quantiles_of_student(freedom: float, t: float) -> None:
    assert student_quantile(freedom) == pytest.approx(t, rel=1e-4)


def test_the_interval_over_seeds_is_that_of_welch() -> None:
    found = seeds_difference([27.5, 21.0, 19.0, 23.6], [27.1, 22.0, 20.8, 23.4, 23.4, 23.5])
    assert (found.low, found.high) == pytest.approx((-6.048934, 4.865601), rel=1e-4)


def test_the_interval_over_flights_covers_what_it_should() -> None:
    """Of many pairs of evaluations the truth is inside about 95 times in 100; also near 0 and 1."""
    random = np.random.default_rng(0)
    for p, q, n, m in ((0.4, 0.5, 64, 256), (0.02, 0.05, 64, 64), (0.97, 0.9, 256, 1024)):
        inside = 0
        for _ in range(2000):
            found = flights_difference(random.binomial(n, p) / n, n, random.binomial(m, q) / m, m)
            inside += found.low <= p - q <= found.high
        assert 0.93 < inside / 2000 < 0.985, (p, q)


def test_runs_that_differ_only_in_their_seed_are_a_group() -> None:
    other = {"algo.gamma": ("0.98", "0.9")}
    unknown = RunData(name="unknown", path=Path())
    groups = group_runs([run(0, 0.5), run(0, 0.4, learning=other), run(1, 0.6), unknown, unknown])
    assert [(group.name, len(group.runs)) for group in groups] == [("A", 2), ("B", 1), ("C", 1), ("D", 1)]
    assert changed_settings(groups[:2]) == {"algo.gamma": ["0.98", "0.9"]}
    assert changed_settings(groups[:1]) == {}


def test_seeds_decide_where_there_are_several() -> None:
    other = {"algo.gamma": ("0.98", "0.9")}
    steady = [run(0, 0.50), run(1, 0.51), run(2, 0.52), *(run(s, 0.40 + 0.01 * s, learning=other) for s in range(3))]
    found = compare_all(steady)
    assert found and not found.within_noise and found.value == pytest.approx(-0.10) and "3 and 3 seeds" in found.method
    moody = [run(0, 0.3), run(1, 0.7), run(2, 0.5), *(run(s, 0.25 + 0.15 * s, learning=other) for s in range(3))]
    found = compare_all(moody)  # the same difference, of runs that differ by themselves
    assert found and found.within_noise and found.value == pytest.approx(-0.10)


def test_flights_decide_where_there_is_one_run_or_no_spread() -> None:
    other = {"algo.gamma": ("0.98", "0.9")}
    alone = group_runs([run(0, 0.50), run(1, 0.51), run(0, 0.40, 1024, other)])
    found = compare(alone[0], alone[1], "crossing-350-80")
    assert found and "1024 and 512 flights" in found.method and not found.within_noise
    twice = group_runs([run(0, 0.5), run(0, 0.5), run(0, 0.45, learning=other), run(0, 0.45, learning=other)])
    found = compare(twice[0], twice[1], "crossing-350-80")  # the same seed twice is no second sample
    assert found and "256 and 256 flights" in found.method and found.within_noise
    same = group_runs([run(0, 0.5), run(1, 0.5), run(0, 0.45, learning=other), run(1, 0.45, learning=other)])
    found = compare(same[0], same[1], "crossing-350-80")
    assert found and "512 and 512 flights" in found.method
    nowhere = group_runs([run(0, 0.5, episodes=0), run(0, 0.1, learning=other)])
    assert (
        compare(nowhere[0], nowhere[1], "crossing-350-80") is None
        and compare(nowhere[0], nowhere[1], "borders-1-1") is None
    )


def test_against_the_published_policy() -> None:
    better, worse = Score(0.6, 256), Score(0.2, 256)
    near = Score(0.40, 256)
    verdicts = [against_published("crossing-350-80", score) for score in (better, worse, near)]  # 38.5 %
    assert [(d.value > 0, d.within_noise) for d in verdicts if d] == [(True, False), (False, False), (True, True)]
    assert against_published("crossing-1-1", better) is None
    assert against_published("crossing-350-80", Score(0.6)) is None


def test_many_groups_are_compared_with_the_first() -> None:
    groups = group_runs([run(0, 0.5, learning={"algo.gamma": ("0.98", str(k))}) for k in range(30)])
    assert len(pairs_of(groups)) == 29 and {a.name for a, _ in pairs_of(groups)} == {"A"}
    assert groups[26].name == "AA"
    assert len(pairs_of(groups[:4])) == 6


def test_mean_and_spread_of_curves_with_points_of_their_own() -> None:
    a = np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.0])
    b = np.array([0.5, 1.5, 3.0]), np.array([0.5, 1.5, 3.0])  # the same line
    x, mean, spread = mean_and_spread([a, b])
    assert x.tolist() == [0.5, 1.0, 1.5, 2.0] and np.allclose(mean, x) and np.allclose(spread, 0)
    x, mean, spread = mean_and_spread([a, (a[0], a[1] + 2)])
    assert np.allclose(mean, a[1] + 1) and np.allclose(spread, np.sqrt(2))
    assert len(mean_and_spread([])[0]) == 0


def test_rows_of_an_evaluation_get_their_minutes() -> None:
    rows = [
        {"frames": 2, "charts/minutes": 1.0},
        {"frames": 1, "charts/minutes": 0.5},
        {"frames": 2, "eval/a/success": 0.1},
    ]
    assert merged(rows) == [
        {"frames": 1, "charts/minutes": 0.5},
        {"frames": 2, "charts/minutes": 1.0, "eval/a/success": 0.1},
    ]
