"""The live page, in a real browser and without one."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from conftest import EVAL
from navrl.settings import ConfigError
from navrl.train.build import named_policy
from navrl.train.settings import compose_config, read_play
from navrl.view.address import ViewSettings, check_view, invitation
from navrl.view.play import Clock, PlayPage, over_boxes
from navrl.view.stage import LOW_BOX, on_plane

pytest.importorskip("viser", reason="viser is not installed (extra view)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def view(**changes) -> ViewSettings:
    settings = read_play(compose_config("play", ["device=cpu"])).view
    return replace(settings, **({"port": free_port(), "drones": 4} | changes))


def load(name: str):
    return named_policy(name, EVAL.sim, EVAL.task, 7)


def wait_for(what: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def play() -> Iterator[Callable[..., PlayPage]]:
    """Open a page whose loop runs in a thread."""
    opened: list[tuple[PlayPage, threading.Thread]] = []

    def start(policy: str = "default", **changes) -> PlayPage:
        page = PlayPage(view(**changes), EVAL.sim, EVAL.task, policy, load, ["default", "navrl", "straight"])
        thread = threading.Thread(target=page.run)
        opened.append((page, thread))
        thread.start()
        return page

    yield start
    for page, thread in opened:
        page.end()
        thread.join(10)
        page.close()
        assert not thread.is_alive()


def pixels(page) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)[:, :900]  # without controls


def look_at(page: PlayPage, place: np.ndarray, eye: np.ndarray) -> None:
    """Point the camera of the only client so that `place` is in the middle of its window."""
    page.view = "free"
    client = next(iter(page.server.get_clients().values()))
    with client.atomic():
        client.camera.position, client.camera.look_at = eye, place
    time.sleep(1.0)


# --- in a browser ---------------------------------------------------------------------------------------------------


def test_the_page_shows_the_flight(play, browser) -> None:
    live = play(drones=8)
    page = browser.open(f"http://127.0.0.1:{live.settings.port}")
    wait_for(lambda: (live.world.sim.lidar[0] < 4.0).sum() > 40)  # it is among the boxes
    time.sleep(1.0)
    first = pixels(page)
    greys = (np.abs(first - first.mean(axis=2, keepdims=True)).max(axis=2) < 40) & (first.mean(axis=2) < LOW_BOX.max())
    assert greys.mean() > 0.03  # boxes
    red = (first[..., 0] > 170) & (first[..., 1] < 110) & (first[..., 2] < 110)
    assert red.sum() > 100  # beams that hit
    blue = (first[..., 2] > 120) & (first[..., 0] < 110) & (first[..., 2] - first[..., 0] > 80)
    assert blue.sum() > 20  # the drone and its trail
    time.sleep(1.0)
    assert (np.abs(pixels(page) - first).max(axis=2) > 30).mean() > 0.01  # it moves
    assert page.get_by_text("real time").count() == 1


def test_pause_step_speed(play, browser) -> None:
    live = play()
    page = browser.open(f"http://127.0.0.1:{live.settings.port}")
    wait_for(lambda: live.world.steps > 20)
    page.get_by_role("button", name="Pause").click()
    wait_for(lambda: live.paused)
    before = live.world.steps
    time.sleep(0.7)
    assert live.world.steps == before
    page.get_by_role("button", name="Step").click()
    wait_for(lambda: live.world.steps == before + live.world.decide_every)
    page.get_by_role("button", name="Resume").click()
    wait_for(lambda: live.world.steps > before + 20)
    speed = page.locator("input[value='1']:visible").first
    speed.fill("0.2")
    speed.press("Enter")
    wait_for(lambda: live.clock.speed == pytest.approx(0.2))
    wait_for(lambda: live.clock.factor < 0.4, 10)
    page.get_by_role("button", name="Restart").click()
    wait_for(lambda: live.world.seconds < 2.0)


def test_dragging_the_goal_changes_the_flight(play, browser) -> None:
    live = play(drones=1, scenario=replace(view().scenario, num_static=0, num_moving=0))
    page = browser.open(f"http://127.0.0.1:{live.settings.port}")
    wait_for(lambda: live.world.steps > 60)
    live.paused = True
    crew = live.world.crews[0]
    crew.decide()
    goal, wanted = crew.env.goal[0].numpy().copy(), crew.action[0].numpy().copy()
    look_at(live, goal, goal + [0.5, -8.0, 7.0])
    page.mouse.move(640, 400)
    page.mouse.down()
    for k in range(1, 9):
        page.mouse.move(640 - 22 * k, 400)
        time.sleep(0.06)
    page.mouse.up()
    wait_for(lambda: np.linalg.norm(crew.env.goal[0].numpy() - goal) > 1.0)
    moved = crew.env.goal[0].numpy()
    assert moved[2] == pytest.approx(goal[2], abs=1e-3)  # over the ground, not up
    crew.decide()
    assert np.linalg.norm(crew.action[0].numpy() - wanted) > 0.02
    live.world.move_goal(0, live.world.sim.position[0].numpy() + [0, 8, 0])
    live.paused = False
    at = live.world.steps
    wait_for(lambda: live.world.steps > at + 80)
    assert live.world.sim.velocity[0, 1] > 0.5  # it flies there


def test_dragging_a_drone_and_an_obstacle(play, browser) -> None:
    live = play("hover", drones=1, scenario=replace(view().scenario, num_static=0, num_moving=8))
    page = browser.open(f"http://127.0.0.1:{live.settings.port}")
    wait_for(lambda: live.world.steps > 5)
    live.paused = True
    for kind in ("drone", "obstacle"):
        place = live.world.sim.position[0] if kind == "drone" else live.world.sim.moving_position[0, :, 0]
        before = place.numpy().copy()
        aim = (
            before + [0, 0, 0.035] + (np.array([0.17, 0, 0]) if kind == "drone" else 0)
        )  # a rotor: it is not the frame
        look_at(live, aim, aim + [0.0, -2.5, 3.0])
        page.mouse.move(640, 400)
        page.mouse.down()
        for k in range(1, 7):
            page.mouse.move(640 + 20 * k, 400)
            time.sleep(0.06)
        page.mouse.up()
        wait_for(lambda place=place, before=before: np.linalg.norm(place.numpy() - before) > 0.3, 10)


def test_policies_can_be_changed(play, browser) -> None:
    live = play()
    page = browser.open(f"http://127.0.0.1:{live.settings.port}")
    wait_for(lambda: live.world.steps > 5)
    page.get_by_role("textbox", name="Policy").or_(page.locator("input[value='default']")).first.click()
    page.get_by_role("option", name="navrl").first.click()
    wait_for(lambda: live._policies == ["navrl"])
    page.locator("input[value='none']").first.click()
    page.get_by_role("option", name="straight").first.click()
    wait_for(lambda: len(live.world.crews) == 2 and live._policies == ["navrl", "straight"])
    wait_for(lambda: live.world.steps > 30)
    assert page.get_by_text("straight, 0 flights").count() == 1 or page.get_by_text("straight", exact=False).count() > 0


# --- without one ----------------------------------------------------------------------------------------------------


def test_nothing_moves_while_nobody_looks(play) -> None:
    live = play()
    time.sleep(0.6)
    assert live.world.steps == 0


def test_what_cannot_be_done_is_said_and_changes_nothing(play) -> None:
    live = play()
    before = live.world
    live._do.put(lambda: live.choose_policies("nowhere.pt", "none"))
    wait_for(lambda: live.error)
    assert "nowhere.pt: no such file" in live.error and live.world is before
    live._do.put(lambda: live.choose_world(replace(live._scenario, num_static=3200), 7, 4))
    wait_for(lambda: "nowhere" not in live.error)
    assert live.world is before or live._scenario.num_static == 3200


def test_dropping_things_in_its_way(play) -> None:
    live = play("straight", scenario=replace(view().scenario, num_static=0, num_moving=0))
    for kind in ("box", "cylinder", "cuboid"):
        live._do.put(lambda kind=kind: live.drop(kind))
    wait_for(lambda: len(live.world.scene.boxes) == 1 and live.world.scene.moving_count[0] == 2)
    assert live.error == ""


def test_only_this_machine_may_name_files(play) -> None:
    assert hasattr(play(), "_file")
    assert not hasattr(play(host="0.0.0.0"), "_file")


def test_time_keeps_up_or_is_said_to_be_slow() -> None:
    clock, now, flown = Clock(0.016, 1.0), 100.0, 0
    for _ in range(600):  # 10 s in ticks of 1/60
        steps = clock.due(now)
        clock.flown(steps)
        flown, now = flown + steps, now + 1 / 60
    assert flown * 0.016 == pytest.approx(10.0, abs=0.05)
    assert clock.factor == pytest.approx(1.0, abs=0.03)
    for _ in range(600):  # a machine that manages one step per tick, asked for four times real time
        clock.speed = 4.0
        clock.flown(min(1, clock.due(now)))
        now += 1 / 60
    assert clock.factor == pytest.approx(0.96, abs=0.03)
    clock.stop()  # a pause is not made up for
    assert clock.due(now + 1000) == pytest.approx(clock._budget / 0.016, abs=1)


def test_dragging_stays_on_the_ground_plane() -> None:
    assert on_plane(np.array([0.0, 0, 10]), (5.0, 0, 5.0), 1.0) == pytest.approx([9.0, 0, 1.0])
    assert on_plane(np.array([0.0, 0, 1.0]), (5.0, 0, 1.0), 1.0) == pytest.approx([5.0, 0, 1.0])  # level with it


def test_the_camera_looks_over_boxes() -> None:
    eye, drone = np.array([-4.0, 0, 3.0]), np.array([0.0, 0, 1.0])
    boxes = np.array([[-2.5, -0.5, -1.5, 0.5, 4.0], [5.0, 5, 6, 6, 9]])
    assert over_boxes(eye, drone, boxes[1:]).tolist() == eye.tolist()
    raised = over_boxes(eye, drone, boxes)
    middle = drone + (raised - drone) / 2  # over the box
    assert raised[2] > 6.0 and middle[2] > 4.0 and raised[:2].tolist() == eye[:2].tolist()


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"host": "no.such.host.invalid"}, "view.host=no.such.host.invalid"), ({"host": "203.0.113.7"}, "view.host=")],
)
def test_addresses_that_are_none(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_view(view(**changes))


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"view.port={port}: is used by another program; .*view.port=\d+"):
            check_view(view(port=port))


def test_the_invitation(monkeypatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    text = invitation(view(port=8123))
    assert "http://127.0.0.1:8123" in text and "ssh -L 8123:127.0.0.1:8123" in text
    monkeypatch.setenv("DISPLAY", ":0")
    assert "ssh" not in invitation(view(port=8123))
    assert "no password" in invitation(view(port=8123, host="0.0.0.0"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("view.drones=65", "view.drones=65: must be a whole number between 1 and 64"),
        ("view.scenario=crossing-9", "view.scenario=crossing-9: must be <borders|crossing>"),
        ("view.speed=0", "view.speed=0: must be a number between 0.05 and 10"),
        ("view.port=0", "view.port=0: must be a whole number between 1 and 65535"),
        ("+view.colour=red", "view.colour=red: no such key"),
        ("view.browser=maybe", "view.browser=maybe: must be true or false"),
    ],
)
def test_wrong_values_are_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_play(compose_config("play", ["device=cpu", override]))
    assert words in str(error.value)
