"""Flying every start once, and counting how it ended."""

from __future__ import annotations

import numpy as np
import pytest

from navrl.schema import OUTCOMES
from navrl.sim.scene import generate_scene
from navrl.task.evaluation import (
    Flights,
    Scenario,
    fly_all,
    hover,
    join_flights,
    mean_interval,
    random_walk,
    straight,
    summarize,
    wilson_interval,
)


@pytest.mark.parametrize("text", ["crossing-350-80", "borders-0-0", "crossing-3-800"])
def test_scenarios_are_read(text: str) -> None:
    assert str(Scenario.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["crosing-350-80", "crossing-350", "borders--1-80", "borders-9999-0", "", "crossing-1-801"]
)
def test_misspelt_scenarios_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Scenario.parse(text)


def test_intervals() -> None:
    low, high = wilson_interval(39, 100)
    assert (low, high) == pytest.approx((0.3000, 0.4880), abs=5e-4)
    assert wilson_interval(0, 100)[0] == 0.0 and wilson_interval(0, 100)[1] > 0.03
    assert mean_interval(np.array([])) == (None, None)
    mean, interval = mean_interval(np.array([1.0, 2.0, 3.0]))
    assert mean == 2.0 and interval == pytest.approx([2 - 1.96 / 3**0.5, 2 + 1.96 / 3**0.5], abs=1e-3)


def make(make_env, route: str, static: int, moving: int, **kwargs):
    scene = generate_scene(7, 4, static, moving, route, starts_per_map=16)
    return make_env(scene, 64, task={"starts_in_order": True} | kwargs.pop("task", {}), **kwargs)


def flown(*arguments) -> Flights:
    flights = fly_all(*arguments)
    assert flights is not None, "nobody cancels it"
    return flights


def test_straight_flight_over_an_empty_map(make_env) -> None:
    flights = flown(make(make_env, "crossing", 0, 0), straight)
    result = summarize(flights)
    assert result["success"] == 1.0 and result["episodes"] == 64
    assert result["speed"] == pytest.approx(1.81, abs=0.03)
    assert result["path_ratio"] == pytest.approx(1.0, abs=2e-3)
    assert result["time_to_goal"] == pytest.approx(47.5 / 1.833 + 0.45, abs=0.5)
    assert len(np.unique(flights.trace[:, 0], axis=0)) == 64, "every drone has its own start"
    assert sorted(np.bincount(flights.map_index)) == [16] * 4
    assert flights.trace[:, -1, 1] == pytest.approx(23.5, abs=0.1)


def test_straight_flight_through_boxes_never_arrives(make_env) -> None:
    result = summarize(flown(make(make_env, "crossing", 350, 0), straight))
    assert result["success"] == 0.0 and result["static_collision"] == 1.0
    assert result["path_ratio"] is None and result["time_to_goal"] is None


def test_hovering_times_out_and_shares_sum_to_one(make_env) -> None:
    result = summarize(flown(make(make_env, "crossing", 350, 0, task={"max_episode_length": 200}), hover))
    assert result["timeout"] == 1.0
    walk = summarize(flown(make(make_env, "borders", 350, 80), random_walk(0)))
    assert sum(walk[name] for name in OUTCOMES) == pytest.approx(1.0)


def test_the_result_does_not_depend_on_threads_or_progress(make_env) -> None:
    seen: list[int] = []
    one = flown(make(make_env, "borders", 350, 80, threads=1), straight, lambda done, _: seen.append(done))
    two = flown(make(make_env, "borders", 350, 80, threads=2), straight)
    assert np.array_equal(one.trace, two.trace) and np.array_equal(one.outcome, two.outcome)
    assert seen == sorted(seen) and seen[-1] == 64


def test_an_evaluation_can_be_cancelled(make_env) -> None:
    answers = iter([False, False, True])
    assert fly_all(make(make_env, "borders", 350, 80), straight, cancelled=lambda: next(answers)) is None
    assert next(answers, None) is None, "asked before every step"


def test_shares_are_the_flights_of_all(make_env) -> None:
    """Of several ranks each flies its share; together they are the same flights, bit for bit."""
    scene = generate_scene(7, 4, 40, 16, "crossing", starts_per_map=16)
    task = {"starts_in_order": True, "max_episode_length": 300}
    whole = flown(make_env(scene, 64, task=task), straight)
    parts = [
        flown(make_env(scene, count, first_env=first, task=task), straight) for first, count in ((0, 40), (40, 24))
    ]
    joined = join_flights(parts)
    for name in ("outcome", "length", "path_length", "straight_distance", "goal_distance", "map_index", "trace"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name)), name
