"""A small world that a person may watch and disturb: one map, a few drones, one or two policies on the same flights."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tensordict import TensorDict

from navrl.schema import OUTCOMES
from navrl.sim.engine import make_simulator
from navrl.sim.scene import CUBOID_HEIGHT, CYLINDER_HEIGHT, EVALUATION, MAP_HALF, Scene, generate_scene
from navrl.sim.simulator import SimSettings, Simulator
from navrl.task.env import NavigationEnv, TaskSettings
from navrl.task.evaluation import Policy, Scenario

STARTS = 256  # different flights on a map
HOLD_SECONDS = 1.5  # a flight that has ended is shown for so long before the next one
TRAIL_SECONDS = 0.128  # between points of a trail
TRAILS = 64  # ended flights whose trails are kept
BOX = 0.8, 3.0  # m, width and height of a box that is dropped
OBSTACLE_WIDTH = 0.5  # m


@dataclass(frozen=True)
class Trail:
    """A flight that has ended."""

    outcome: int  # index into OUTCOMES
    points: np.ndarray  # (k, 3) m


class Crew:
    """The drones of one policy. Their flights are their own; the map and its obstacles are the same for every crew."""

    def __init__(self, env: NavigationEnv, policy: Policy) -> None:
        self.env, self.policy = env, policy
        n = env.num_envs
        self.action = torch.zeros(n, 3)
        self.flying = torch.ones(n, dtype=torch.bool)
        self.outcome = np.full(n, -1)  # of the flight that has ended, until the next one begins
        self.counts = np.zeros(len(OUTCOMES), int)
        self.points: list[list[np.ndarray]] = [[] for _ in range(n)]  # of the flights under way
        self.ended: deque[Trail] = deque(maxlen=TRAILS)
        self.observation = env.reset()["agents", "observation"]

    @torch.no_grad()
    def decide(self) -> None:
        """Ask the policy what to fly."""
        self.action = torch.where(self.flying[:, None], self.policy(self.observation).float(), 0.0)

    def step(self, note: bool) -> None:
        """Fly one physics step; `note`: add a point to every trail."""
        sim = self.env.simulator
        if note:
            for i, place in enumerate(sim.position.numpy()):
                if self.flying[i]:
                    self.points[i].append(place.copy())
        command = torch.where(self.flying[:, None], self.action, 0.0)
        n = [self.env.num_envs]
        data = self.env.step(TensorDict({"agents": TensorDict({"action": command}, n)}, n))["next"]
        self.observation = data["agents", "observation"]
        over = (data["done"].view(-1) & self.flying).numpy()
        if over.any():
            outcomes = np.stack([data["stats", name].view(-1).numpy() for name in OUTCOMES]).argmax(0)
            for i in np.flatnonzero(over):
                self.flying[i], self.outcome[i] = False, outcomes[i]
                self.counts[outcomes[i]] += 1
                points = np.stack([*self.points[i], sim.position[i].numpy().copy()])
                self.ended.append(Trail(int(outcomes[i]), points))
                self.points[i] = []

    def begin(self, drones: np.ndarray) -> None:
        """Start the next flight of each of these drones (a mask)."""
        mask = torch.from_numpy(drones).view(-1, 1)
        self.env.reset(TensorDict({"_reset": mask}, [len(mask)]))
        self.flying[mask.view(-1)], self.outcome[drones] = True, -1
        self.action[mask.view(-1)] = 0.0
        for i in np.flatnonzero(drones):
            self.points[i] = []
        self.look()

    def look(self) -> None:
        """Observe again, after something was changed from outside."""
        self.observation = self.env.observation()["agents", "observation"]

    def rebuild(self, scene: Scene, added: int) -> None:
        """Go on in a changed scene, with `added` moving obstacles more than before."""
        old = self.env
        state = {part: {name: t.clone() for name, t in old.state_dict()[part].items()} for part in old.state_dict()}
        for name in ("moving_position", "moving_velocity", "moving_goal") if added else ():
            origin = torch.from_numpy(scene.moving_origin[:, -added:].swapaxes(1, 2).copy())
            new = torch.zeros_like(origin) if name == "moving_velocity" else origin
            state["simulator"][name] = torch.cat([state["simulator"][name], new], dim=2)
        self.env = NavigationEnv(make_simulator(scene, old.simulator.settings), old.settings)
        self.env.load_state_dict(state)
        old.close()
        self.look()


class World:
    """Drones on one map of a scenario; steps at the rate of the physics, so that it can be shown smoothly.

    `policies`: one, or two that fly the same flights. Everything follows from the seed until a person interferes.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        drones: int,
        policies: Sequence[Policy],
        sim: SimSettings,
        task: TaskSettings,
        decide_every: int = 1,
    ) -> None:
        self.scenario, self.seed, self.decide_every = scenario, seed, decide_every
        counts = scenario.num_static, scenario.num_moving
        self.scene = generate_scene(seed, 1, *counts, scenario.route, starts_per_map=STARTS, stream=EVALUATION)
        one = replace(sim, num_envs=drones, decimation=1, seed=seed, engine="warp", device="cpu", threads=1)
        task = replace(task, starts_in_order=False, end_at_goal=True, seed=seed)
        self.crews = [Crew(NavigationEnv(make_simulator(self.scene, one), task), policy) for policy in policies]
        self.steps = 0
        self._waiting = np.zeros(drones)  # s since a drone's flights have ended in all crews
        self.step_seconds = one.step_seconds
        self._note_every = max(1, round(TRAIL_SECONDS / one.step_seconds))

    @property
    def drones(self) -> int:
        return len(self._waiting)

    @property
    def seconds(self) -> float:
        """Simulated time."""
        return self.steps * self.step_seconds

    @property
    def sim(self) -> Simulator:
        """The engine of the first crew; obstacles are the same in all."""
        return self.crews[0].env.simulator

    def step(self) -> None:
        """Fly one physics step; every `decide_every` of them begins with a decision."""
        for crew in self.crews:
            if self.steps % self.decide_every == 0:
                crew.decide()
            crew.step(note=self.steps % self._note_every == 0)
        self.steps += 1
        over = ~np.any([crew.flying.numpy() for crew in self.crews], axis=0)
        self._waiting = np.where(over, self._waiting + self.step_seconds, 0.0)
        if (again := self._waiting > HOLD_SECONDS).any():
            for crew in self.crews:
                crew.begin(again)
            self._waiting[again] = 0.0

    # --- what a person may do -----------------------------------------------------------------------------------

    def move_goal(self, drone: int, position: np.ndarray) -> None:
        """Give a drone another goal."""
        goal = torch.from_numpy(self._inside(position, 24.0))
        for crew in self.crews:
            crew.env.redirect(drone, goal)
            crew.look()

    def move_drone(self, drone: int, position: np.ndarray) -> None:
        """Put a flying drone somewhere else, at rest."""
        place = torch.from_numpy(self._inside(position, 24.0))
        for crew in self.crews:
            if crew.flying[drone]:
                crew.env.place(drone, place)
                crew.look()

    def move_obstacle(self, number: int, position: np.ndarray) -> None:
        """Put a moving obstacle somewhere else; from now on it wanders there."""
        position = self._inside(position, MAP_HALF)
        if self.scene.moving_size[0, number, 1] >= CYLINDER_HEIGHT:
            position[2] = self.scene.moving_origin[0, number, 2]
        self.scene.moving_origin[0, number] = position
        for crew in self.crews:
            crew.env.simulator.move_obstacle(0, number, torch.from_numpy(position))
            crew.look()

    def add_box(self, x: float, y: float) -> None:
        """Drop a box."""
        half, height = BOX[0] / 2, BOX[1]
        x, y = np.clip([x, y], half - MAP_HALF, MAP_HALF - half)
        box = np.array([[x - half, y - half, x + half, y + half, height]], np.float32)
        offsets = self.scene.box_offsets + np.array([0, 1], np.int32)
        self._change(replace(self.scene, boxes=np.concatenate([self.scene.boxes, box]), box_offsets=offsets))

    def add_obstacle(self, position: np.ndarray, tall: bool) -> None:
        """Add a moving obstacle, which wanders around this place."""
        origin = self._inside(position, MAP_HALF)
        if tall:
            origin[2] = CYLINDER_HEIGHT / 2
        scene = self.scene
        size = np.array([OBSTACLE_WIDTH, CYLINDER_HEIGHT if tall else CUBOID_HEIGHT], np.float32)
        changes = {
            "moving_origin": np.concatenate([scene.moving_origin, origin[None, None]], axis=1),
            "moving_size": np.concatenate([scene.moving_size, size[None, None]], axis=1),
            "moving_count": scene.moving_count + 1,
        }
        self._change(replace(scene, **changes), added=1)

    def _change(self, scene: Scene, added: int = 0) -> None:
        self.scene = scene
        for crew in self.crews:
            crew.rebuild(scene, added)

    def _inside(self, position: np.ndarray, half: float) -> np.ndarray:
        """A place in the field and between the height limits."""
        low, high = self.crews[0].env.settings.height_limits
        limits = np.array([half, half, 0.0])
        at = np.clip(position, [-half, -half, low + 0.3], [*limits[:2], max(high - 0.3, low + 0.3)])
        return at.astype(np.float32)

    def close(self) -> None:
        for crew in self.crews:
            crew.env.close()
