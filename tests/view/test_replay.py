"""Replay pages: which flights are shown, what their data holds, and the page in a real browser."""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from navrl.schema import OUTCOMES
from navrl.task.evaluation import Flights
from navrl.view import replay

SUCCESS, STATIC, DYNAMIC, BOUNDS, TIMEOUT = range(len(OUTCOMES))
PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


def with_outcomes(flights: Flights, *outcomes: int) -> Flights:
    """The same flights, as if they had ended so; the last outcome goes for all that are left."""
    rest = len(flights.outcome) - len(outcomes)
    return replace(flights, outcome=np.array([*outcomes, *([outcomes[-1]] * rest)]))


# --- which flights ----------------------------------------------------------------------------------------------


def test_every_kind_of_failure_is_shown_first(flights: Flights) -> None:
    mixed = with_outcomes(flights, *[STATIC] * 20, BOUNDS, TIMEOUT, DYNAMIC, DYNAMIC, SUCCESS)
    chosen = replay.choose(mixed)
    reasons = [reason for _, reason in chosen]
    assert reasons[:4] == ["hit a box", "hit a moving obstacle", "left the height limits", "ran out of time"]
    assert reasons[4:6] == ["hit a box", "hit a moving obstacle"]
    assert [index for index, _ in chosen[:6]] == [0, 22, 20, 21, 1, 23]
    assert len(chosen) == 12 and all(reason.startswith(("near miss", "success")) for reason in reasons[6:])


def test_near_misses_come_nearest_first_and_then_ordinary_successes(flights: Flights) -> None:
    assert flights.recording
    clearance = flights.recording.clearance()
    chosen = replay.choose(with_outcomes(flights, STATIC, SUCCESS))
    near = [index for index, reason in chosen if reason.startswith("near miss")]
    assert near == [index for index in np.argsort(clearance, kind="stable") if index != 0][: len(near)]
    assert chosen[1] == (near[0], f"near miss, {clearance[near[0]]:.2f} m")
    ordinary = [index for index, reason in chosen if reason == "success"]
    assert ordinary and chosen[1 + len(near) :] == [(index, "success") for index in ordinary]
    assert list(flights.length[ordinary]) == sorted(flights.length[ordinary])
    assert 1 + len(near) + len(ordinary) == 12


@pytest.mark.parametrize("outcomes", [(SUCCESS,), (STATIC,), (TIMEOUT, SUCCESS), (DYNAMIC, TIMEOUT, BOUNDS, SUCCESS)])
@pytest.mark.parametrize("most", [1, 2, 5, 12, 100])
def test_as_many_as_asked_for_none_twice_and_always_the_same(flights: Flights, outcomes, most: int) -> None:
    mixed = with_outcomes(flights, *outcomes)
    chosen = replay.choose(mixed, most)
    indices = [index for index, _ in chosen]
    assert len(chosen) == min(most, len(mixed.outcome)) == len(set(indices))
    assert chosen == replay.choose(mixed, most)
    kinds = {int(mixed.outcome[index]) for index in indices}
    assert len(kinds - {SUCCESS}) == min(most, len(set(outcomes) - {SUCCESS}))


def test_only_recorded_flights_are_chosen(flights: Flights) -> None:
    longer = replace(flights, outcome=np.tile(flights.outcome, 3), length=np.tile(flights.length, 3))
    assert max(index for index, _ in replay.choose(longer, 1000)) < len(flights.outcome)
    with pytest.raises(ValueError, match="not recorded"):
        replay.choose(replace(flights, recording=None))


# --- data -------------------------------------------------------------------------------------------------------


class Page:
    """What a page holds, read as page/replay.data.js reads it."""

    def __init__(self, data: str) -> None:
        raw = gzip.decompress(base64.b64decode(data, validate=True))
        size = int.from_bytes(raw[:4], "little")
        self.about = json.loads(raw[4 : 4 + size])
        self._raw, self._at = raw, 4 + size
        position, quaternion, command, moving = self.about["steps"]
        self.maps, self.flights = [], []
        for about in self.about["maps"]:
            boxes = self._take("<i2", about["boxes"], 5) * 1e-3
            sizes = self._take("<i2", 2, about["moving"]) * 1e-3
            counts, samples = self._take("<u2", about["moving"]), self._take("<u2", about["keys"])
            self.maps.append((about, boxes, sizes, counts, samples, self._sums(about["keys"], 3, moving)))
        beams = [len(self.about["lidar"][name]) for name in ("azimuths", "elevations")]
        for about in self.about["flights"]:
            n = about["samples"]
            values = [self._sums(n, 3, position), self._sums(n, 4, quaternion), self._sums(n, 3, command)]
            told = self._take("<i2", n, self.about["told"])
            self.flights.append((about, *values, told, self._take("u1", n, *beams)))
        assert self._at == len(raw)

    def _take(self, kind: str, *shape: int) -> np.ndarray:
        out = np.frombuffer(self._raw, kind, int(np.prod(shape)), self._at).reshape(shape)
        self._at += out.nbytes
        return out

    def _sums(self, rows: int, columns: int, step: float) -> np.ndarray:
        return self._take("<i2", columns, rows).T.cumsum(0) * step


def test_a_page_holds_the_flights_as_they_were_recorded(flights: Flights) -> None:
    chosen = replay.choose(flights)
    page, recording = Page(replay.pack(flights, chosen)), flights.recording
    assert recording and len(page.flights) == len(chosen) == 12
    assert sum(page.about["counts"].values()) == len(flights.outcome)
    for (index, reason), (about, position, quaternion, command, told, beams) in zip(chosen, page.flights, strict=True):
        assert (about["number"], about["reason"]) == (index, reason)
        assert about["outcome"] == OUTCOMES[flights.outcome[index]]
        assert about["length"] == pytest.approx(flights.length[index], abs=1e-3)
        assert about["goal"] == pytest.approx(recording.goal[index].tolist(), abs=1e-4)
        n = recording.samples[index]
        np.testing.assert_allclose(position, recording.position[:n, index], atol=0.6e-3)
        np.testing.assert_allclose(quaternion, recording.quaternion[:n, index], atol=0.6e-3)
        np.testing.assert_allclose(command, recording.command[:n, index], atol=0.6e-2)
        np.testing.assert_array_equal(told, recording.told[:n, index])
        np.testing.assert_array_equal(beams, recording.beams[:n, index])
        about, boxes, sizes, counts, samples, places = page.maps[about["map"]]
        number = about["number"]
        assert number == recording.map_index[index]
        np.testing.assert_allclose(boxes, flights.scene.boxes_of(number), atol=1e-3)
        np.testing.assert_allclose(sizes, recording.moving_size[number, :, : len(counts)], atol=1e-3)
        ends = np.cumsum(counts)
        for j, (first, end) in enumerate(zip(ends - counts, ends, strict=True)):
            for axis in range(3):
                path = np.interp(np.arange(n), samples[first:end], places[first:end, axis])
                np.testing.assert_allclose(path, recording.moving[:n, number, axis, j] * 1e-3, atol=0.021)


def test_key_frames_of_straight_lines_are_their_corners() -> None:
    corners = np.array([[0.0, 3.0, -1.0, 2.0], [0.0, 0.0, 4.0, 4.0], [1.0, 1.0, 1.0, 0.0]])
    path = np.stack([np.interp(np.arange(91), [0, 30, 60, 90], axis) for axis in corners], axis=1)[..., None]
    assert list(np.flatnonzero(replay.key_frames(path)[:, 0])) == [0, 30, 60, 90]
    assert replay.key_frames(path[:1]).all()


def test_flights_that_leave_the_field_are_kept(flights: Flights) -> None:
    assert flights.recording
    far = flights.recording.position + 0.2 * np.arange(len(flights.recording.position))[:, None, None]  # 100 m away
    page = Page(replay.pack(replace(flights, recording=replace(flights.recording, position=far)), [(7, "success")]))
    np.testing.assert_allclose(page.flights[0][1], far[: flights.recording.samples[7], 7], atol=0.6e-3)


def test_of_a_fine_sensor_every_nth_beam_is_shown(flights: Flights) -> None:
    recording = flights.recording
    assert recording
    sensor = replace(recording.sensor, hres=1.0, vbeams=16)
    fine = np.random.default_rng(0).integers(0, 256, (*recording.beams.shape[:2], *sensor.shape), np.uint8)
    page = Page(
        replay.pack(replace(flights, recording=replace(recording, sensor=sensor, beams=fine)), [(3, "success")])
    )
    np.testing.assert_array_equal(page.flights[0][5], fine[: recording.samples[3], 3, ::5, ::2])
    assert page.about["lidar"]["azimuths"][1] == pytest.approx(np.deg2rad(5.0), abs=1e-4)


# --- files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(flights: Flights, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "flights-crossing-200-80.html"
    replay.write_replay(path, "straight · crossing-200-80", flights)
    return path


def test_a_page_is_small(file: Path) -> None:
    assert file.stat().st_size < 600_000


def test_flights_that_do_not_fit_are_left_out(flights: Flights, tmp_path: Path, monkeypatch) -> None:
    limit = len(replay.pack(flights, replay.choose(flights))) // 2
    monkeypatch.setattr(replay, "DATA_LIMIT", limit)
    replay.write_replay(tmp_path / "page.html", "", flights)
    data = replay.read_data(tmp_path / "page.html")
    assert len(data) <= limit and 1 <= len(Page(data).flights) < 12


def test_the_data_of_a_page_can_be_shown_again(file: Path) -> None:
    data = replay.read_data(file)
    assert replay.viewer(data, "straight · crossing-200-80") == file.read_text()
    assert replay.read_data(file) == data


@pytest.mark.parametrize(
    "content",
    [
        "",
        "<html>hello</html>",
        '<script id="data" type="text/plain"></script>',
        '<script id="data" type="text/plain">AAA</script>',
        '<script id="data" type="text/plain">AA<b></script>',
        '<script id="data" type="text/plain">AAAA\n</script>',
        '<script id="data" type="text/plain">A===</script>',
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"^[^\n]* is not a replay page$"):
        replay.read_data(path)


def test_files_that_are_none_are_refused_in_one_line(tmp_path: Path, file: Path) -> None:
    link, pipe, large = tmp_path / "link", tmp_path / "pipe", tmp_path / "large"
    link.symlink_to(file)
    os.mkfifo(pipe)
    large.write_text(file.read_text() + " " * replay.PAGE_LIMIT)
    for path in (link, pipe, large, tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match=rf"^{path} [^\n]+$"):
            replay.read_data(path)


# --- in a browser -----------------------------------------------------------------------------------------------


def wait(page, condition: str) -> None:
    """Wait until a condition holds. Asked from here: playwright's own way is eval, which the page forbids."""
    for _ in range(400):
        if page.evaluate(f"Boolean({condition})"):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{condition} did not become true in 20 s")


def opened(browser, address, **options):
    """A page once it is ready."""
    page = browser.open(address, **options)
    wait(page, "window.replay.ready || window.replay.error")
    assert page.evaluate("window.replay.error") is None
    return page


def still(page, flight: int, time: float, camera: str) -> np.ndarray:
    """Pixels (height, width, 3) of a moment."""
    from PIL import Image

    page.evaluate(f"replay.pause(); replay.choose({flight}); replay.seek({time})")
    page.click(f"[data-camera={camera}]")
    wait(page, "replay.still")
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)


def at(page, pixels: np.ndarray, place: list[float]) -> np.ndarray:
    """The pixels (k, 3) around a place in the world."""
    x, y = page.evaluate(f"replay.onScreen({place})")
    box = page.locator("#view").bounding_box()
    column, row = round(box["x"] + x * box["width"]), round(box["y"] + y * box["height"])
    return pixels[row - 6 : row + 7, column - 6 : column + 7].reshape(-1, 3)


def test_one_sees_drone_boxes_and_moving_obstacles(browser, file: Path, flights: Flights) -> None:
    page = opened(browser, file)
    row = [reason for _, reason in replay.choose(flights)].index("hit a moving obstacle")
    moment = 0.9 * float(flights.length[replay.choose(flights)[row][0]])
    pixels = still(page, row, moment, "follow")
    assert len(np.unique(pixels[170:640, 300:1260].reshape(-1, 3), axis=0)) > 2000
    drone = at(page, pixels, page.evaluate("replay.state().position"))
    assert drone.min(axis=1).max() > 170  # its white hood

    pixels = still(page, row, moment, "above")
    eye, boxes = page.evaluate("replay.eye"), np.reshape(page.evaluate("replay.boxes()"), (-1, 5))
    away = np.hypot(boxes[:, 0] - eye[0], boxes[:, 1] - eye[1])
    tall = boxes[(boxes[:, 4] > 4.5) & (away > 2.0) & (away < 6.5)].tolist()
    tops = [at(page, pixels, [(x0 + x1) / 2, (y0 + y1) / 2, h]).mean() for x0, y0, x1, y1, h in tall]
    assert len(tops) > 2 and np.mean(np.array(tops) > 100) > 0.6  # the ground is darker than 60
    told = set(page.evaluate("replay.observed"))
    observed, others = [], []
    assert flights.recording
    sizes = flights.recording.moving_size[flights.recording.map_index[replay.choose(flights)[row][0]]]
    for j in range(sizes.shape[1]):
        x, y, z = page.evaluate(f"replay.moving({j})")
        if np.hypot(x - eye[0], y - eye[1]) < 6.5:
            red, _, blue = at(page, pixels, [x, y, z + float(sizes[1, j]) / 2]).mean(0)
            colour = "amber" if red > blue + 40 else "teal" if blue > red + 40 else "hidden"
            (observed if j in told else others).append(colour)
    assert "amber" in observed and "teal" not in observed
    assert "teal" in others and "amber" not in others


def test_it_plays_pauses_and_goes_on_with_the_next_flight(browser, file: Path, flights: Flights) -> None:
    page = opened(browser, file)
    assert page.evaluate("[replay.flight, replay.flights, replay.playing]") == [0, 12, True]
    wait(page, "replay.time > 0.2")
    page.keyboard.press("Space")
    stopped = page.evaluate("[replay.time, replay.playing]")
    page.wait_for_timeout(400)
    assert page.evaluate("[replay.time, replay.playing]") == stopped == [stopped[0], False]
    page.click("#play")
    wait(page, f"replay.playing && replay.time > {stopped[0]}")
    page.click("[data-speed='4']")
    page.evaluate("replay.seek(replay.length - 0.2)")
    wait(page, "document.getElementById('now').classList.contains('over')")
    wait(page, "replay.flight === 1 && replay.playing")
    assert page.locator("#flights [aria-current=true] b").inner_text() == replay.choose(flights)[1][1]


def test_time_follows_the_chosen_speed(browser, file: Path) -> None:
    page = opened(browser, file)
    rates = []
    for speed in ("0.25", "2"):
        page.click(f"[data-speed='{speed}']")
        page.evaluate("replay.choose(0)")
        wait(page, "replay.time > 0.05")
        # Between two frames; one that takes longer than a quarter of a second counts for no more than that.
        rates.append(
            page.evaluate("""async () => {
                const frame = () => new Promise((done) => requestAnimationFrame(done));
                const [before, from] = [await frame(), replay.time];
                const after = await frame();
                return 1000 * (replay.time - from) / Math.min(after - before, 250);
            }""")
        )
    assert rates == pytest.approx([0.25, 2.0], rel=0.05)


def test_one_can_scrub_step_and_choose(browser, file: Path, flights: Flights) -> None:
    page = opened(browser, file)
    box = page.locator("#scrub").bounding_box()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2)
    half = page.evaluate("replay.time / replay.length")
    assert half == pytest.approx(0.5, abs=0.02) and not page.evaluate("replay.playing")
    wait(page, "document.getElementById('fact-time').textContent.startsWith(replay.time.toFixed(1))")
    before = page.evaluate("replay.time")
    page.keyboard.press("ArrowRight")
    assert 0 < page.evaluate("replay.time") - before < 0.1
    page.keyboard.press("ArrowDown")
    assert page.evaluate("[replay.flight, replay.time]") == [1, 0]

    chosen = replay.choose(flights)
    rows = page.locator("#flights button")
    assert rows.count() == 12
    rows.nth(5).click()
    assert page.evaluate("replay.flight") == 5 and page.evaluate("replay.playing")
    length = flights.length[chosen[5][0]]
    assert page.evaluate("replay.length") == pytest.approx(float(length), abs=1e-3)
    assert f"{length:.1f} s" in rows.nth(5).inner_text() and chosen[5][1] in rows.nth(5).inner_text()


def test_what_the_page_says_is_what_was_recorded(browser, file: Path, flights: Flights) -> None:
    page, recording = opened(browser, file), flights.recording
    assert recording
    page.evaluate("replay.pause()")
    clearance = recording.clearance()
    for row, (index, _) in enumerate(replay.choose(flights)):
        page.evaluate(f"replay.choose({row})")
        last, nearest = recording.samples[index] - 1, np.inf
        for sample in (0, last // 2, last):
            time = min(sample * recording.seconds, float(flights.length[index]))
            page.evaluate(f"replay.seek({time})")
            state = page.evaluate("replay.state()")
            np.testing.assert_allclose(state["position"], recording.position[sample, index], atol=2e-3)
            goal = np.linalg.norm(recording.position[sample, index] - recording.goal[index])
            assert state["toGoal"] == pytest.approx(goal, abs=5e-3)
            nearest = min(nearest, state["nearest"])
        assert nearest >= clearance[index] - 0.03
        assert nearest == pytest.approx(clearance[index], abs=0.1)  # all of these end at an obstacle


def test_cameras_look_from_where_they_should(browser, file: Path) -> None:
    page = opened(browser, file)
    page.evaluate("replay.pause(); replay.seek(0.6 * replay.length)")
    eyes = {}
    for camera in ("follow", "above", "eyes", "orbit"):
        page.click(f"[data-camera={camera}]")
        wait(page, "replay.still")
        eyes[camera] = page.evaluate("Array.from(replay.eye)")
        assert page.evaluate("replay.camera") == camera
    drone = page.evaluate("replay.state().position")
    assert eyes["follow"][1] < drone[1] - 2 and eyes["follow"][2] > drone[2] + 2  # all fly toward positive y
    assert eyes["above"][2] > 20 and eyes["eyes"] == pytest.approx(drone, abs=0.01)
    page.mouse.move(700, 400)
    page.mouse.down()
    page.mouse.move(800, 380, steps=3)
    page.mouse.up()
    page.mouse.wheel(0, 300)
    wait(page, "replay.still")
    assert np.linalg.norm(np.subtract(page.evaluate("Array.from(replay.eye)"), eyes["orbit"])) > 1


def test_the_camera_rises_above_a_box_it_would_stand_in(browser, flights: Flights, tmp_path: Path) -> None:
    scene, recording = flights.scene, flights.recording
    assert recording
    number, (x, y, _) = recording.map_index[0], recording.start[0]
    box = np.array([[x - 1, y - 7, x + 1, y - 4, 8.0]], np.float32)  # right behind the start
    offsets = (np.arange(scene.num_maps + 1) > number).astype(np.int32)
    walled = replace(flights, scene=replace(scene, boxes=box, box_offsets=offsets))
    path = tmp_path / "page.html"
    path.write_text(replay.viewer(replay.pack(walled, [(0, "success")]), "behind a box"))
    page = opened(browser, path)
    page.evaluate("replay.pause(); replay.seek(0)")
    wait(page, "replay.still")
    eye = page.evaluate("Array.from(replay.eye)")
    assert y - 7 < eye[1] < y - 4 and eye[2] > 8.0


def test_beams_can_be_hidden(browser, file: Path) -> None:
    page = opened(browser, file)
    shown = still(page, 0, 1.5, "follow")
    page.click("#beams")
    hidden = still(page, 0, 1.5, "follow")
    assert (np.abs(shown - hidden)[170:640, 300:1260].sum(2) > 12).sum() > 2000


def test_on_a_phone(browser, file: Path) -> None:
    page = opened(browser, file, **PHONE)
    assert page.evaluate("document.scrollingElement.scrollWidth") == 390
    first, third = (page.locator("#flights button").nth(i).bounding_box() for i in (0, 2))
    assert first["y"] == third["y"] > 700 and third["x"] > first["x"]  # a strip below the view
    page.locator("#flights button").nth(1).tap()
    assert page.evaluate("replay.flight") == 1
    page.locator("#play").tap()
    assert not page.evaluate("replay.playing")
    wait(page, "replay.still")

    touch = page.context.new_cdp_session(page)

    def drag(*fingers: tuple[float, float, float, float]) -> None:
        for step, kind in enumerate(["touchStart", "touchMove", "touchMove", "touchMove"]):
            points = [
                {"x": x + dx * step / 3, "y": y + dy * step / 3, "id": i} for i, (x, y, dx, dy) in enumerate(fingers)
            ]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        wait(page, "replay.still")

    def seen() -> tuple[np.ndarray, float]:
        way = np.subtract(page.evaluate("Array.from(replay.eye)"), page.evaluate("replay.state().position"))
        return way, float(np.linalg.norm(way))

    before, far = seen()
    drag((200, 400, 120, 0))  # one finger turns
    turned, _ = seen()
    assert np.linalg.norm(turned[:2] - before[:2]) > 1
    drag((150, 400, -100, 0), (250, 400, 100, 0))  # two fingers pinch
    _, near = seen()
    assert near < 0.7 * far
    pixels = still(page, 0, 1.5, "follow")
    assert len(np.unique(pixels[300:1100].reshape(-1, 3), axis=0)) > 2000


def test_a_field_without_obstacles(browser, flights: Flights, tmp_path: Path) -> None:
    recording, scene = flights.recording, flights.scene
    assert recording
    empty = replace(
        with_outcomes(flights, SUCCESS),
        scene=replace(scene, box_offsets=scene.box_offsets * 0, moving_count=scene.moving_count * 0),
        recording=replace(recording, moving=recording.moving[..., :0], told=np.full_like(recording.told, -1)),
    )
    path = tmp_path / "page.html"
    replay.write_replay(path, "empty", empty)
    page = opened(browser, path)
    wait(page, "replay.time > 0.1")
    assert page.evaluate("replay.boxes()") == page.evaluate("replay.observed") == []


def test_inside_another_page_without_its_rights(browser, file: Path, tmp_path: Path) -> None:
    document = html.escape(replay.viewer(replay.read_data(file), "again"))
    outer = f'<iframe sandbox="allow-scripts" srcdoc="{document}" width="900" height="600"></iframe>'
    (tmp_path / "report.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{outer}")
    frame = browser.open(tmp_path / "report.html").frames[1]
    wait(frame, "window.replay && window.replay.ready && window.replay.time > 0")
    assert frame.locator("h1").inner_text() == "again"


def test_a_hostile_title_is_only_text(browser, file: Path, tmp_path: Path) -> None:
    title = "</title></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>{{DATA}}"
    path = tmp_path / "page.html"
    path.write_text(replay.viewer(replay.read_data(file), title))
    page = opened(browser, path)
    assert page.evaluate("window.hacked") is None
    assert page.locator("h1").text_content() == page.title() == title


def test_hostile_data_is_only_data(browser, flights: Flights, tmp_path: Path) -> None:
    hack = "<img src=x onerror='window.hacked = 1'>"
    data = replay.pack(flights, [(0, hack), (1, hack)])
    path = tmp_path / "page.html"
    path.write_text(replay.viewer(data, "title"))
    page = opened(browser, path)
    wait(page, "replay.time > 0")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#flights b").first.text_content() == page.locator("#now b").text_content() == hack


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "cannot be read"),
        (b"\x10\0\0\0{}", "cannot be read"),
        (b"\2\0\0\0{}", "cannot be read"),
        (None, "too large"),
    ],
    ids=["empty", "header cut off", "no flights", "bomb"],
)
def test_damaged_data_is_said_in_one_line(browser, tmp_path: Path, raw: bytes | None, reason: str) -> None:
    raw = bytes(65_000_000) if raw is None else raw
    path = tmp_path / "page.html"
    path.write_text(replay.viewer(base64.b64encode(gzip.compress(raw, 1)).decode(), "title"))
    page = browser.open(path)
    wait(page, "window.replay.error")
    assert reason in page.locator("#message").inner_text()


@pytest.mark.parametrize(
    ("missing", "word"),
    [
        ("delete window.DecompressionStream", "DecompressionStream"),
        ("HTMLCanvasElement.prototype.getContext = () => null", "WebGL2"),
    ],
)
def test_an_old_browser_is_told_what_is_missing(browser, file: Path, missing: str, word: str) -> None:
    page = browser.open(file)
    page.add_init_script(missing)
    page.reload()
    wait(page, "window.replay.error")
    assert word in page.locator("#message").inner_text()
    assert not page.evaluate("window.replay.ready")
