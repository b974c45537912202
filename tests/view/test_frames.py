"""Pictures of flights: what hides what, what is where, and scenes with hardly anything in them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from navrl.monitor.flights import COLOURS
from navrl.schema import OUTCOMES
from navrl.sim.scene import generate_scene
from navrl.view.frames import FINE, NEAR, Camera, FlightPicture, MapView, back_to_front, cut_near, fitting, font, rgb
from navrl.view.playback import Playback


def test_what_is_in_front_is_painted_later() -> None:
    """Against rays: of all boxes along a ray, the nearest is painted last."""
    rng = np.random.default_rng(0)
    cells = np.array([*itertools.product(range(-6, 6), range(1, 12))])
    for _ in range(20):
        corner = cells[rng.permutation(len(cells))[:60]].astype(float)  # of cells 1 m wide: they never overlap
        inside = rng.uniform(0.0, 1.0, (60, 2, 2)).round(1)  # some touch
        low = np.column_stack([corner + inside.min(axis=1), rng.choice([0.0, 1.0], 60)])
        high = np.column_stack([corner + inside.max(axis=1) + 0.05, low[:, 2] + rng.uniform(0.5, 5.0, 60)])
        high[:, :2] = np.minimum(high[:, :2], corner + 1)
        eye = np.array([rng.uniform(-3, 3), rng.uniform(-2, 6), rng.uniform(1, 6)])
        place = np.argsort(back_to_front(low, high, eye))
        assert sorted(place) == [*range(60)]
        rays = rng.normal(size=(400, 3)) * [1, 1, 0.3]
        with np.errstate(divide="ignore"):
            a, b = (low - eye) / rays[:, None], (high - eye) / rays[:, None]  # (rays, boxes, 3)
        enter, leave = np.minimum(a, b).max(axis=2), np.maximum(a, b).min(axis=2)
        for distances, hit in zip(enter, (enter < leave - 1e-6) & (enter > 0), strict=True):
            met = np.flatnonzero(hit)
            met = met[np.argsort(distances[met])]
            assert (np.diff(place[met]) < 0).all(), "nearest first, painted last"


def test_a_ring_of_boxes_that_hide_each_other_is_painted_all_the_same() -> None:
    low = np.zeros((5, 3)) + np.arange(5)[:, None] * 0.1
    assert sorted(back_to_front(low, low + 2.0, np.array([-5.0, 0.0, 1.0]))) == [*range(5)]


def test_the_camera_looks_where_it_says() -> None:
    camera = Camera(np.array([1.0, 2.0, 3.0]), np.pi / 2, 800, 600)
    ahead = camera.eye + 5 * camera.axes[:, 2]
    np.testing.assert_allclose(camera.screen(camera.look(ahead)), [400, 300])
    right, above = ahead + [1.0, 0.0, 0.0], ahead + [0.0, 0.0, 1.0]  # heading north: east is on the right
    assert camera.screen(camera.look(right))[0] > 400 and camera.screen(camera.look(above))[1] < 300
    far = camera.screen(camera.look(np.array([1.0, 1e6, 3.0])))
    assert far[1] == pytest.approx(camera.horizon, abs=0.01)


def test_what_is_behind_the_camera_is_cut_off() -> None:
    seen = np.array([[-1.0, -1.0, -2.0], [1.0, -1.0, -2.0], [1.0, -1.0, 5.0], [-1.0, -1.0, 5.0]])
    cut = cut_near(seen)
    assert len(cut) == 4 and cut[:, 2].min() == pytest.approx(NEAR)
    camera = Camera(np.zeros(3), 0.0, 800, 600)
    world = seen @ camera.axes.T
    assert camera.polygons(world[None])[0] is not None
    assert camera.polygons((world - 20 * camera.axes[:, 2])[None]) == [None]
    (line,) = camera.segments(world[None, [0, 3]])
    assert line is not None and np.isfinite(line).all() and max(map(abs, line)) < 1e4
    assert camera.segments((world - 20 * camera.axes[:, 2])[None, [0, 3]]) == [None]


def test_the_map_shows_drone_and_trail_where_they_are(flights) -> None:
    playback = Playback(flights, 0)
    view = MapView(flights.scene, playback, 480)
    moment = playback.at(4.0)
    picture = np.asarray(view.draw(moment, False)).astype(int)
    colour = np.array(rgb(COLOURS[playback.outcome]))
    behind = np.array(view.pixels(playback.at(2.0).position[None])) / FINE
    ahead = np.array(view.pixels(playback.at(7.0).position[None])) / FINE
    for place, flown in ((behind, True), (ahead, False)):
        x, y = place.astype(int)
        close = np.abs(picture[y - 2 : y + 3, x - 2 : x + 3] - colour).sum(axis=2).min() < 90
        assert close == flown
    x, y = (np.array(view.pixels(moment.position[None])) / FINE).round().astype(int)
    assert picture[y - 1 : y + 1, x - 1 : x + 1].min() > 200, "a white spot"


def test_every_end_is_shown_in_its_colour(flights) -> None:
    for index in [np.flatnonzero(flights.outcome == k)[0] for k in np.unique(flights.outcome)]:
        picture = FlightPicture(flights, index, "title", "about", (640, 360))
        flying, ended = (np.asarray(picture.draw(1e9, end)).astype(int) for end in (False, True))
        colour = rgb(COLOURS[OUTCOMES[flights.outcome[index]]])
        exactly = [(np.abs(image - colour).sum(axis=2) == 0).sum() for image in (flying, ended)]
        assert exactly[1] > exactly[0] + 500, "the bar with the outcome"
        assert (flying != ended)[:, :300].any(), "and a mark in the chase view"


@pytest.mark.parametrize("static, moving", [(0, 0), (0, 8), (20, 0)])
def test_scenes_with_hardly_anything_in_them(flights, static: int, moving: int) -> None:
    scene = generate_scene(0, num_maps=1, num_static=static, num_moving=moving, starts_per_map=1)
    recording, count = flights.recording, len(flights.recording.position)
    recording = replace(
        recording,
        map_index=np.zeros_like(recording.map_index),
        moving=np.zeros((count, 1, 3, moving), np.int16),
        moving_size=np.ones((1, 2, moving), np.float32),
        told=np.full_like(recording.told, -1),
        beams=np.full_like(recording.beams, 255),
    )
    changed = replace(flights, scene=scene, recording=recording)
    image = np.asarray(FlightPicture(changed, 0, "t", "a", (320, 180)).draw(3.0))
    assert image.std() > 10


def test_a_flight_of_one_sample(flights) -> None:
    recording = replace(flights.recording, samples=np.ones_like(flights.recording.samples))
    picture = FlightPicture(replace(flights, recording=recording), 0, "t", "a", (320, 180))
    assert picture.playback.seconds == 0
    assert np.asarray(picture.draw(0.0)).std() > 10 and np.asarray(picture.draw(0.0, True)).std() > 10


@pytest.mark.parametrize("size", [(1280, 720), (320, 180), (180, 320), (400, 400), (122, 120)])
def test_any_size(flights, size: tuple[int, int]) -> None:
    image = FlightPicture(flights, 0, "title", "about", size).draw(2.0)
    assert isinstance(image, Image.Image) and image.size == size


def test_text_is_cut_to_one_line_that_fits() -> None:
    letters = font(14.0)
    assert fitting("short", 200, letters) == "short"
    long = fitting("word " * 100, 200, letters)
    assert long.endswith("…") and letters.getlength(long) <= 200
    assert "\n" not in fitting("two\nlines\x00\x1b[31m", 500, letters)
    assert fitting("anything", 0, letters) == ""
