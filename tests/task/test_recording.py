"""What is recorded of a flight is what was flown."""

from __future__ import annotations

import numpy as np
import pytest

from navrl.schema import OUTCOMES
from navrl.sim.scene import generate_scene
from navrl.task.evaluation import Flights, fly_all, straight
from navrl.task.recording import CLEAR


@pytest.fixture(params=[1, 4], ids=["every step", "every fourth"])
def flown(request, make_env) -> Flights:
    scene = generate_scene(7, 4, 120, 40, "crossing", starts_per_map=16)
    env = make_env(scene, 64, task={"starts_in_order": True}, decimation=request.param)
    flights = fly_all(env, straight, record=True)
    assert flights is not None and flights.recording is not None
    return flights


def test_a_recording_ends_where_the_flight_ended(flown: Flights) -> None:
    r = flown.recording
    assert r is not None and r.seconds == pytest.approx(0.064)
    assert np.array_equal(r.samples, np.ceil(flown.length / r.seconds - 1e-3).astype(int) + 1)
    last = r.position[r.samples - 1, np.arange(64)]
    assert np.array_equal(last, flown.trace[:, -1])
    assert np.array_equal(r.position[0], r.start)
    distance = np.linalg.norm(last - r.goal, axis=1)
    assert (distance[flown.outcome == OUTCOMES.index("success")] < 0.7).all()
    for i in range(64):  # after its end it stays as it was
        assert (r.position[r.samples[i] - 1 :, i] == last[i]).all()


def test_clearance_tells_collisions_from_free_flight(flown: Flights) -> None:
    assert flown.recording is not None
    clearance, outcome = flown.recording.clearance(), flown.outcome
    assert {OUTCOMES.index("success"), OUTCOMES.index("static_collision")} <= set(outcome)
    assert (clearance[outcome == OUTCOMES.index("static_collision")] < 0.35).all()
    assert (clearance[outcome == OUTCOMES.index("success")] > 0.25).all()


def test_obstacles_a_drone_is_told_of_are_near_it(flown: Flights) -> None:
    r = flown.recording
    assert r is not None and (r.told >= 0).any() and (r.told == -1).any()
    flying = np.arange(len(r.told))[:, None] < r.samples - 1  # later the obstacles go on without it
    t, n, k = np.argwhere((r.told >= 0) & flying[:, :, None])[::37].T
    place = r.moving[t, r.map_index[n], :, r.told[t, n, k]] * 1e-3
    assert (np.linalg.norm((place - r.position[t, n])[:, :2], axis=1) < r.sensor.range + 0.01).all()


def test_beams_are_ranges(flown: Flights) -> None:
    r = flown.recording
    assert r is not None and (r.beams == CLEAR).mean() > 0.3 and (r.beams < CLEAR).any()


def test_recording_changes_nothing(make_env) -> None:
    scene = generate_scene(7, 4, 120, 40, "crossing", starts_per_map=16)
    plain, recorded = (
        fly_all(make_env(scene, 64, task={"starts_in_order": True}, decimation=4), straight, record=record)
        for record in (False, True)
    )
    assert plain is not None and recorded is not None and plain.recording is None
    assert np.array_equal(plain.trace, recorded.trace) and np.array_equal(plain.outcome, recorded.outcome)


def test_clearance_without_moving_obstacles(make_env) -> None:
    scene = generate_scene(7, 1, 40, 0, "crossing", starts_per_map=16)
    flights = fly_all(make_env(scene, 16, task={"starts_in_order": True}, decimation=4), straight, record=True)
    assert flights is not None and flights.recording is not None
    clearance = flights.recording.clearance()
    assert (clearance[flights.outcome == 0] > 0.25).all() and (clearance[flights.outcome == 1] < 0.35).all()
