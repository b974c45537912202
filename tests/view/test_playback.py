"""A recorded flight between its samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from navrl.view.playback import Playback


@pytest.fixture(params=[0, 7])
def playback(flights, request) -> Playback:
    return Playback(flights, request.param)


def test_at_a_sample_it_is_the_sample(playback) -> None:
    recording, index = playback.recording, playback.index
    for sample in range(0, len(playback.position), 7):
        moment = playback.at(sample * recording.seconds)
        np.testing.assert_allclose(moment.position, recording.position[sample, index], atol=1e-6)
        np.testing.assert_allclose(moment.moving, recording.moving[sample, playback.map_index].T * 1e-3, atol=1e-6)
        assert set(np.flatnonzero(moment.told)) == set(recording.told[sample, index]) - {-1}


def test_between_samples_it_is_close_to_a_straight_line_and_moves_on(playback) -> None:
    seconds = playback.recording.seconds
    for sample in range(len(playback.position) - 1):
        points = np.stack([playback.at((sample + part) * seconds).position for part in (0.0, 0.25, 0.5, 0.75)])
        line = np.linspace(playback.position[sample], playback.position[sample + 1], 5)[:4]
        assert np.abs(points - line).max() < 0.05
    speeds = [np.linalg.norm(playback.at(t).velocity) for t in np.arange(1.0, playback.seconds, 0.1)]
    flown = np.linalg.norm(np.diff(playback.position, axis=0), axis=1).sum()
    assert np.mean(speeds) == pytest.approx(flown / playback.seconds, rel=0.2)


def test_before_the_start_and_after_the_end_it_stays(playback) -> None:
    np.testing.assert_allclose(playback.at(-1.0).position, playback.position[0])
    last = playback.at(1e9)
    np.testing.assert_allclose(last.position, playback.position[-1])
    assert last.time == pytest.approx(playback.length)


def test_attitudes_are_rotations(playback) -> None:
    for time in np.linspace(0.0, playback.seconds, 23):
        rotation = playback.at(time).rotation
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-9)
        assert np.linalg.det(rotation) == pytest.approx(1.0)
        assert rotation[2, 2] > 0.5, "it does not fly on its back"


def test_beams_end_on_what_stands_there(flights) -> None:
    """Angles, yaw and range are those of the sensor: every hit lies on a box or on the ground."""
    for index in range(8):
        playback = Playback(flights, index)
        boxes = flights.scene.boxes_of(playback.map_index).astype(float)
        low, high = np.column_stack([boxes[:, :2], np.zeros(len(boxes))]), boxes[:, 2:5]
        hits = np.concatenate(
            [playback.at(t).hits for t in np.arange(0.0, playback.seconds, playback.recording.seconds)]
        )
        outside = np.maximum(np.maximum(low - hits[:, None], hits[:, None] - high), 0.0)  # (h, boxes, 3)
        gap = np.minimum(np.linalg.norm(outside, axis=2).min(axis=1, initial=np.inf), np.abs(hits[:, 2]))
        assert len(hits) > 10 and gap.max() < 0.03, "a step of the recording is 16 mm"


def test_the_camera_is_behind_the_drone_and_never_jumps(playback) -> None:
    times = np.arange(0.0, playback.seconds, 1 / 30)
    moments = [playback.at(t) for t in times]
    eyes = np.stack([m.eye for m in moments])
    speed = np.linalg.norm(np.diff(eyes, axis=0), axis=1) * 30
    assert speed.max() < 8.0, "m/s"
    for moment in moments:
        ahead = np.array([np.cos(moment.heading), np.sin(moment.heading)])
        assert (moment.position - moment.eye)[:2] @ ahead > 3.0
        assert moment.eye[2] > moment.position[2]


def test_a_fine_sensor_is_thinned_out(flights) -> None:
    recording = flights.recording
    fine = replace(recording.sensor, hres=1.0, vbeams=32)
    beams = np.zeros((*recording.beams.shape[:2], *fine.shape), np.uint8)
    moment = Playback(replace(flights, recording=replace(recording, sensor=fine, beams=beams)), 0).at(1.0)
    assert 100 < len(moment.hits) <= 45 * 6
    assert moment.fan.shape == (360, 2)


def test_flights_that_were_not_recorded(flights) -> None:
    with pytest.raises(ValueError, match="record=True"):
        Playback(replace(flights, recording=None), 0)
