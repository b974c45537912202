"""The page where a policy flies, live: a server on this machine, a world, and everything a person may do to it.

One thread flies and draws. What a person does in a browser arrives in other threads and waits in a queue until then.
"""

from __future__ import annotations

import contextlib
import html
import io
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from navrl.monitor.console import SHORT
from navrl.monitor.flights import COLOURS
from navrl.schema import OUTCOMES
from navrl.settings import SEED, ConfigError, one_line
from navrl.sim.scene import MAX_MOVING, MAX_STATIC
from navrl.sim.simulator import SimSettings
from navrl.task.env import TaskSettings
from navrl.task.evaluation import Policy, Scenario, wilson_interval
from navrl.view.address import MOST_DRONES, ViewSettings
from navrl.view.stage import BEAMS, Show, Stage
from navrl.view.world import World

log = logging.getLogger("navrl")

TICK, DRAW, TELL = 1 / 60, 1 / 30, 0.5  # s between looks at the clock, pictures, and figures beside them
BEHIND = 0.25  # s of simulated time that may be caught up on; a machine that is further behind is too slow
VIEWS = ("free", "follow", "eyes")
NOBODY = "none"
RIGHT = "style='text-align:right'"
ROUTES = ("crossing", "borders")


class Clock:
    """Turns wall-clock time into steps of simulated time, at any speed, and knows how far it falls behind."""

    def __init__(self, step_seconds: float, speed: float) -> None:
        self.step_seconds, self.speed = step_seconds, speed
        self._budget = 0.0  # s of simulated time that are due
        self._last: float | None = None
        self._recent: deque[tuple[float, float]] = deque()  # wall-clock seconds and simulated seconds of the last ticks

    def due(self, now: float) -> int:
        """Steps to fly now."""
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        self._budget = min(self._budget + passed * self.speed, BEHIND * max(1.0, self.speed))
        self._recent.append((passed, 0.0))
        return int(self._budget / self.step_seconds)

    def flown(self, steps: int) -> None:
        """Take note of what was flown since `due`."""
        self._budget -= steps * self.step_seconds
        self._recent[-1] = self._recent[-1][0], steps * self.step_seconds
        while len(self._recent) > 2 and sum(wall for wall, _ in self._recent) > 3.0:
            self._recent.popleft()

    def stop(self) -> None:
        """Time passes without being flown."""
        self._last = None
        self._recent.clear()

    @property
    def factor(self) -> float:
        """Simulated seconds per wall-clock second, lately."""
        wall = sum(wall for wall, _ in self._recent)
        return sum(flown for _, flown in self._recent) / wall if wall else self.speed


class Companion(Protocol):
    """Something that stands beside the flights, such as the curves of a run that is followed."""

    policy: str  # the name under which its policy can be chosen

    def build(self, gui: Any) -> None: ...
    def refresh(self) -> Policy | None: ...  # now and then: updates itself; a policy if there is a new one


class PlayPage:
    """A viser server and the loop behind it."""

    def __init__(
        self,
        settings: ViewSettings,
        sim: SimSettings,
        task: TaskSettings,
        policy: str,
        load: Callable[[str], Policy],
        names: Sequence[str],
        companion: Companion | None = None,
        draw_seconds: float = DRAW,
    ) -> None:
        """`load(name)` gives a policy by its name or file and raises ConfigError; `names` can be chosen on the page."""
        import viser

        self.settings, self.sim, self.task, self._load, self._companion = settings, sim, task, load, companion
        self._scenario, self._seed, self._drones = settings.scenario, settings.seed, settings.drones
        self._policies = [policy, *([settings.ghost] if settings.ghost else [])]
        self._loaded = {name: load(name) for name in self._policies}
        self.world = self._new_world()
        self.clock = Clock(self.world.step_seconds, settings.speed)
        self.paused, self.followed, self.view, self.show = False, 0, VIEWS[1], Show()
        self.draw_seconds, self.error = draw_seconds, ""
        self._do: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._origins: dict[tuple[str, int], np.ndarray] = {}  # where things were when they were grabbed
        self._looked: np.ndarray | None = None  # where the following camera is

        logging.getLogger("websockets").setLevel(logging.CRITICAL)  # a client that goes away is no news
        with contextlib.redirect_stdout(io.StringIO()):  # it announces itself in a box; our line says more
            self.server = viser.ViserServer(settings.host, settings.port, "navrl", verbose=False)
        if self.server.get_port() != settings.port:  # taken since it was checked
            self.server.stop()
            raise ConfigError("view.port", settings.port, "is used by another program; choose another")
        self.server.on_client_connect(self._greet)
        self.stage = Stage(self.server.scene, self._grabbed)
        self._make_controls(names)
        self.stage.build(self.world)

    # --- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Fly and draw until `end`; while nobody looks, nothing moves and nothing is computed."""
        began, drawn, told = time.monotonic(), 0.0, 0.0
        while not self._ended.is_set():
            now = time.monotonic()
            if self.settings.seconds and now - began > self.settings.seconds:
                break
            self._do_what_was_asked()
            if not self.server.get_clients():
                self.clock.stop()
                self._ended.wait(0.2)
                continue
            if self.paused:
                self.clock.stop()
            else:
                self._fly(now)
            if now - drawn >= self.draw_seconds:
                drawn = now
                self._draw()
            if now - told >= TELL:
                told = now
                self._tell()
            self._ended.wait(max(0.001, TICK - (time.monotonic() - now)))

    def end(self) -> None:
        """Ask the loop to end."""
        self._ended.set()

    def close(self) -> None:
        self.end()
        with contextlib.redirect_stdout(io.StringIO()):
            self.server.stop()
        self.world.close()

    def _fly(self, now: float) -> None:
        steps, flown = self.clock.due(now), 0
        while flown < steps and time.monotonic() - now < 2 * self.draw_seconds:
            self.world.step()
            flown += 1
        self.clock.flown(flown)

    def _do_what_was_asked(self) -> None:
        while not self._do.empty():
            try:
                self._do.get()()
                self.error = ""
            except (ConfigError, ValueError) as error:  # the world stays as it was
                self.error = one_line(str(error))

    # --- the world ----------------------------------------------------------------------------------------------

    def _new_world(self) -> World:
        policies = [self._loaded[name] for name in self._policies]
        where = self._scenario, self._seed, self._drones
        return World(*where, policies, self.sim, self.task, self.sim.decimation)

    def rebuild(self) -> None:
        """Begin anew with what was chosen."""
        world = self._new_world()
        self.world.close()
        self.world = world
        self.followed = min(self.followed, world.drones - 1)
        self._looked = None
        self._origins.clear()
        self.stage.build(world)

    def choose_world(self, scenario: Scenario, seed: int, drones: int) -> None:
        before = self._scenario, self._seed, self._drones
        self._scenario, self._seed, self._drones = scenario, seed, drones
        try:
            self.rebuild()
        except ValueError:
            self._scenario, self._seed, self._drones = before
            raise

    def choose_policies(self, policy: str, ghost: str) -> None:
        """Fly these from the same starts; counting begins anew."""
        names = [policy, *([ghost] if ghost != NOBODY else [])]
        loaded = {name: self._loaded[name] if name in self._loaded else self._load(name) for name in names}
        self._policies, self._loaded = names, loaded
        self.rebuild()

    def _grabbed(self, kind: str, number: int, pulled: np.ndarray | None) -> None:
        self._do.put(lambda: self._pull(kind, number, pulled))

    def _pull(self, kind: str, number: int, pulled: np.ndarray | None) -> None:
        """Move what a person has grabbed to where it was then, plus how far it was pulled since."""
        world, crew = self.world, self.world.crews[0]
        moving = world.sim.moving_position[0].T
        places = {"goal": crew.env.goal, "drone": world.sim.position, "obstacle": moving}[kind]
        if number >= len(places):  # of a world that is gone
            return
        if pulled is None or (kind, number) not in self._origins:
            self._origins[kind, number] = places[number].numpy().copy()
            return
        moves = {"goal": world.move_goal, "drone": world.move_drone, "obstacle": world.move_obstacle}
        moves[kind](number, self._origins[kind, number] + pulled)

    def drop(self, kind: str) -> None:
        """Put a box or a moving obstacle into the way of the drone that is followed, 3 m ahead."""
        ahead = self._heading() * 3.0
        place = self.world.sim.position[self.followed].numpy() + [*ahead[:2], 0.0]
        if kind == "box":
            self.world.add_box(*place[:2])
        else:
            self.world.add_obstacle(place, tall=kind == "cylinder")
        self.stage.build(self.world)

    def _heading(self) -> np.ndarray:
        """The horizontal direction in which the followed drone flies, or wants to."""
        sim, goal = self.world.sim, self.world.crews[0].env.goal[self.followed].numpy()
        velocity = sim.velocity[self.followed].numpy() * [1, 1, 0]
        way = velocity if np.linalg.norm(velocity) > 0.4 else (goal - sim.position[self.followed].numpy()) * [1, 1, 0]
        length = np.linalg.norm(way)
        return way / length if length > 1e-6 else np.array([1.0, 0.0, 0.0])

    # --- drawing ------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        with self.server.atomic():
            self.stage.update(self.world, self.followed, self.show)
        if self.view == "free":
            self._looked = None
            return
        world = self.world
        place, way = world.sim.position[self.followed].numpy(), self._heading()
        if self.view == "eyes":
            eye, target = place + way * 0.25 + [0, 0, 0.1], place + way * 5.0
        else:
            eye, target = over_boxes(place - way * 4.5 + [0, 0, 2.4], place, world.scene.boxes_of(0)), place + way * 1.0
        wanted = np.concatenate([eye, target])
        near = self._looked is not None and np.linalg.norm(self._looked[3:] - target) < 6.0
        share = 0.12 if self.view == "follow" else 0.35  # of the way there per picture: smooth
        self._looked = self._looked + share * (wanted - self._looked) if near and self._looked is not None else wanted
        for client in self.server.get_clients().values():
            with client.atomic():
                client.camera.position, client.camera.look_at = self._looked[:3], self._looked[3:]

    async def _greet(self, client: Any) -> None:
        """A camera that sees the whole field, until the drone is followed."""
        with client.atomic():
            client.camera.position, client.camera.look_at = np.array([-28.0, -28.0, 26.0]), np.zeros(3)
            client.camera.fov = np.deg2rad(60.0)

    def _tell(self) -> None:
        """Figures beside the flights."""
        world, clock = self.world, self.clock
        slow = clock.factor < 0.95 * clock.speed and not self.paused
        pace = f"{clock.factor:.2f} × real time" + (
            f", asked for {clock.speed:g} ×: this machine is too slow" if slow else ""
        )
        lines = [f"<b>{world.seconds:.1f} s</b> simulated, {'paused' if self.paused else pace}"]
        if self.error:
            lines.append(f"<span style='color:#d62728'>{html.escape(self.error)}</span>")
        speed = float(np.linalg.norm(world.sim.velocity[self.followed].numpy()))
        left = float(np.linalg.norm((world.crews[0].env.goal - world.sim.position)[self.followed].numpy()))
        lines.append(f"drone {self.followed + 1}: {speed:.1f} m/s, {left:.1f} m to its goal")
        names = [html.escape(one_line(name, 60)) for name in self._policies]
        tables = [_counts(name, crew.counts) for name, crew in zip(names, world.crews, strict=True)]
        self._status.content = _styled("<br>".join(lines) + "".join(tables))
        if self._companion and (policy := self._companion.refresh()):
            self._loaded[self._companion.policy] = policy
            for crew, name in zip(world.crews, self._policies, strict=True):
                if name == self._companion.policy:  # the flights under way continue with it
                    crew.policy = policy
                    crew.counts[:] = 0

    # --- controls -----------------------------------------------------------------------------------------------

    def _make_controls(self, names: Sequence[str]) -> None:
        gui = self.server.gui
        gui.configure_theme(
            show_logo=False, show_share_button=False, control_width="medium", brand_color=(24, 118, 210)
        )
        self._status = gui.add_html(_styled("…"))
        if self._companion:
            self._companion.build(gui)
        self._flight_controls(gui)
        self._policy_controls(gui, names)
        self._world_controls(gui)
        self._show_controls(gui)

    def _ask(self, handle: Any, what: Callable[[], None]) -> None:
        """Have the loop do it when a person touches a control."""

        async def asked(_: Any) -> None:  # in the server's own thread: in order, and without a pool of threads
            self._do.put(what)

        (handle.on_click if hasattr(handle, "on_click") else handle.on_update)(asked)

    def _flight_controls(self, gui: Any) -> None:
        with gui.add_folder("Flight"):
            self._pause = gui.add_button("Pause")
            step, restart = gui.add_button("Step"), gui.add_button("Restart")
            self._speed = gui.add_slider(
                "Speed ×", 0.1, 4.0, 0.1, self.settings.speed if self.settings.speed <= 4 else 4.0
            )
            self._view = gui.add_dropdown("Camera", VIEWS, initial_value=self.view)
            self._drone = gui.add_number("Drone", 1, min=1, max=MOST_DRONES, step=1)
        with gui.add_folder("Touch"):
            gui.add_html(_styled("Drag a goal, a drone or a moving obstacle; with Shift up and down."))
            for kind in ("box", "cylinder", "cuboid"):
                button = gui.add_button(f"Drop a {kind} in its way")
                self._ask(button, lambda kind=kind: self.drop(kind))
        self._ask(self._pause, self.toggle_pause)
        self._ask(step, self.single_step)
        self._ask(restart, self.rebuild)
        self._ask(self._speed, self._set_speed)
        self._ask(self._view, self._set_camera)
        self._ask(self._drone, self._set_camera)

    def toggle_pause(self) -> None:
        self.paused = not self.paused
        self._pause.label = "Resume" if self.paused else "Pause"

    def single_step(self) -> None:
        """Stop, and fly until the next decision has been carried out."""
        if not self.paused:
            self.toggle_pause()
        for _ in range(self.world.decide_every):
            self.world.step()

    def _set_speed(self) -> None:
        self.clock.speed = float(self._speed.value)

    def _set_camera(self) -> None:
        self.view = self._view.value
        self.followed = min(int(self._drone.value), self.world.drones) - 1

    def _policy_controls(self, gui: Any, names: Sequence[str]) -> None:
        known = tuple(dict.fromkeys([*self._policies, *names]))
        with gui.add_folder("Policy"):
            self._first = gui.add_dropdown("Policy", known, initial_value=self._policies[0])
            ghost = self._policies[1] if len(self._policies) > 1 else NOBODY
            self._second = gui.add_dropdown("Ghost", (NOBODY, *known), initial_value=ghost)
            self._rate = gui.add_slider("Steps per decision", 1, 8, 1, min(8, self.sim.decimation))
            for handle in (self._first, self._second):
                self._ask(handle, self._set_policies)
            self._ask(self._rate, self._set_rate)
            if self.settings.local:  # who comes from elsewhere must not name files of this machine
                self._file = gui.add_text("File", "", hint="a policy.pt on this machine")
                self._ask(gui.add_button("Fly the file"), self._fly_file)

    def _set_policies(self) -> None:
        self.choose_policies(self._first.value, self._second.value)

    def _set_rate(self) -> None:
        self.world.decide_every = int(self._rate.value)
        self.sim = replace(self.sim, decimation=self.world.decide_every)

    def _fly_file(self) -> None:
        name = self._file.value.strip()
        self.choose_policies(name, self._second.value)
        options = tuple(dict.fromkeys([*self._first.options, name]))
        self._first.options, self._second.options = options, (NOBODY, *options)
        self._first.value = name

    def _world_controls(self, gui: Any) -> None:
        here = self._scenario
        with gui.add_folder("World"):
            self._route = gui.add_dropdown("Route", ROUTES, initial_value=here.route)
            self._boxes = gui.add_number("Boxes", here.num_static, min=0, max=MAX_STATIC, step=10)
            self._movers = gui.add_number("Moving obstacles", here.num_moving, min=0, max=MAX_MOVING, step=8)
            self._seed_control = gui.add_number("Seed", self._seed, min=SEED[0], max=SEED[1], step=1)
            self._number = gui.add_slider("Drones", 1, MOST_DRONES, 1, self._drones)
        for handle in (self._route, self._boxes, self._movers, self._seed_control, self._number):
            self._ask(handle, self._set_world)

    def _set_world(self) -> None:
        wanted = Scenario(self._route.value, int(self._boxes.value), int(self._movers.value))
        chosen = wanted, int(self._seed_control.value), int(self._number.value)
        if chosen != (self._scenario, self._seed, self._drones):
            self.choose_world(*chosen)

    def _show_controls(self, gui: Any) -> None:
        with gui.add_folder("Show"):
            self._beams = gui.add_dropdown("LiDAR", BEAMS, initial_value=self.show.beams)
            self._tracks = gui.add_checkbox("Tracked obstacles", self.show.tracks)
            self._velocities = gui.add_checkbox("Velocities (commanded, flown)", self.show.velocities)
            self._trails = gui.add_checkbox("Trails", self.show.trails)
        for handle in (self._beams, self._tracks, self._velocities, self._trails):
            self._ask(handle, self._set_show)

    def _set_show(self) -> None:
        switches = self._tracks.value, self._velocities.value, self._trails.value
        self.show = Show(self._beams.value, *switches)


def over_boxes(eye: np.ndarray, drone: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """The eye, raised until it sees the drone over the boxes (n, 5) between them; 9 m at most."""
    height = eye[2]
    for share in np.linspace(0.15, 1.0, 10):  # of the way from the drone to the eye
        x, y = (drone + share * (eye - drone))[:2]
        inside = (boxes[:, 0] < x) & (x < boxes[:, 2]) & (boxes[:, 1] < y) & (y < boxes[:, 3])
        if inside.any():
            height = max(height, drone[2] + (boxes[inside, 4].max() + 0.3 - drone[2]) / share)
    return np.array([*eye[:2], min(height, 9.0)])


def _styled(content: str) -> str:
    return f"<div style='padding:0.3em 0.8em;font-size:0.85em;line-height:1.5'>{content}</div>"


def _counts(name: str, counts: np.ndarray) -> str:
    """How flights ended, in % with 95 % intervals."""
    total = int(counts.sum())
    rows = []
    for outcome, count in zip(OUTCOMES, counts, strict=True):
        low, high = wilson_interval(int(count), total) if total else (0.0, 1.0)
        share = f"{100 * count / total:.0f} % <small>({100 * low:.0f}–{100 * high:.0f})</small>" if total else "–"
        mark = f"<span style='color:{COLOURS[outcome]}'>●</span> {SHORT[outcome]}"
        rows.append(f"<tr><td>{mark}</td><td {RIGHT}>{count}</td><td {RIGHT}>{share}</td></tr>")
    head = f"<div style='margin-top:0.5em'><b>{name}</b>, {total} flight{'' if total == 1 else 's'}</div>"
    return f"{head}<table style='width:100%'>{''.join(rows)}</table>"
