"""Flies a policy once from every start and counts how the flights end."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from navrl.schema import FLOWN, OUTCOMES
from navrl.settings import SEED, ConfigError, setting
from navrl.sim.engine import make_simulator
from navrl.sim.scene import EVALUATION, MAX_MOVING, MAX_STATIC, Scene, generate_scene
from navrl.sim.simulator import SimSettings
from navrl.task.env import NavigationEnv, TaskSettings
from navrl.task.recording import FlightRecorder, Recording

Policy = Callable[[TensorDictBase], torch.Tensor]  # observation of B drones to world-frame velocities (B, 3)

Report = Callable[..., None]  # (done, total, what="") as an evaluation proceeds
Cancelled = Callable[[], bool]  # true: end the evaluation early

TRACE_SECONDS = 0.128  # between the drawn points of a flight; bounds what an evaluation keeps in memory
MAX_EPISODES = 16384


# --- policies that need no training -----------------------------------------------------------------------------


def hover(observation: TensorDictBase) -> torch.Tensor:
    """Stay where you are."""
    return torch.zeros_like(observation["direction"][:, 0])


def straight(observation: TensorDictBase) -> torch.Tensor:
    """2 m/s toward the goal, whatever is in the way."""
    x, y, z = observation["state"][:, :3].split(1, dim=-1)
    ahead, left = observation["direction"][:, 0, 0:1], observation["direction"][:, 0, 1:2]
    return 2.0 * torch.cat([ahead * x - left * y, left * x + ahead * y, z], dim=-1)


def random_walk(seed: int) -> Policy:
    """A new velocity of up to 2 m/s along each axis at every decision."""
    generator = torch.Generator().manual_seed(seed)

    def act(observation: TensorDictBase) -> torch.Tensor:
        count = len(observation["direction"])
        return (4.0 * torch.rand(count, 3, generator=generator) - 2.0).to(observation["direction"].device)

    return act


# --- scenarios --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """Route and number of obstacles per map."""

    route: str
    num_static: int
    num_moving: int

    @staticmethod
    def parse(text: str) -> Scenario:
        """Read `<borders|crossing>-<static>-<moving>`."""
        match = re.fullmatch(r"(borders|crossing)-(\d+)-(\d+)", text)
        if not match:
            raise ValueError("must be <borders|crossing>-<static>-<moving>, for example crossing-350-80")
        route, static, moving = match[1], int(match[2]), int(match[3])
        if static > MAX_STATIC or moving > MAX_MOVING:
            raise ValueError(f"at most {MAX_STATIC} static and {MAX_MOVING} moving obstacles fit on a map")
        return Scenario(route, static, moving)

    def __str__(self) -> str:
        return f"{self.route}-{self.num_static}-{self.num_moving}"


def scenarios(value: Any, key: str) -> tuple[Scenario, ...]:
    """Parse a scenario or a list of them."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise ConfigError(key, value, "must be a list such as [crossing-350-80,borders-350-0]")
    out = []
    for name in names:
        try:
            out.append(Scenario.parse(str(name)))
        except ValueError as error:
            raise ConfigError(key, name, str(error)) from error
        if out[-1] in out[:-1]:
            raise ConfigError(key, name, "is there twice")
    return tuple(out)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Which flights an evaluation makes."""

    scenarios: tuple[Scenario, ...] = setting("eval.scenarios", parse=scenarios)
    episodes: int = setting("eval.episodes", 1, MAX_EPISODES)  # flights per scenario
    maps: int = setting("eval.maps", 1, MAX_EPISODES)
    seed: int = setting("eval.seed", *SEED)
    picture: bool = setting("eval.picture")
    replay: bool = setting("eval.replay")
    video: bool = setting("eval.video")

    @property
    def records(self) -> bool:
        """Whether flights are recorded in full."""
        return self.replay or self.video


# --- flying -----------------------------------------------------------------------------------------------------


@dataclass
class Flights:
    """Results of n flights, one row each."""

    outcome: np.ndarray  # (n,) index into OUTCOMES
    length: np.ndarray  # (n,) s
    path_length: np.ndarray  # (n,) m
    straight_distance: np.ndarray  # (n,) m, start to goal
    goal_distance: np.ndarray  # (n,) m, at the end
    trace: np.ndarray  # (n, T, 3) m, every TRACE_SECONDS; stays at the last point after the end
    map_index: np.ndarray  # (n,)
    scene: Scene
    recording: Recording | None = None  # of the first flights, if asked for


def fly_all(
    env: NavigationEnv,
    policy: Policy,
    report: Report | None = None,
    cancelled: Cancelled | None = None,
    record: bool = False,
) -> Flights | None:
    """Fly every drone once, until its first event; None if `cancelled()` turned true before all had ended.

    `report(finished, total)` is called as flights end. `record`: keep the first flights in full.
    """
    sim = env.simulator
    every = max(1, round(TRACE_SECONDS / (sim.settings.step_seconds * sim.settings.decimation)))
    data = env.reset()
    running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    place = sim.position.clone()  # where each drone is, or was when its flight ended
    trace = [place.cpu().numpy().copy()]
    recorder = FlightRecorder(env) if record else None
    step = 0
    while running.any():
        if cancelled and cancelled():
            return None
        observation = data["agents", "observation"]
        if running.all():
            action = policy(observation)
        else:  # finished drones hover unseen: the network runs only for those still flying
            action = torch.zeros_like(place)
            action[running] = policy(observation[running])
        data["agents", "action"] = action
        data = env.step(data)["next"]
        place[running] = sim.position[running]
        if recorder:
            recorder.after_step(action, running, data["done"].view(-1))
        running &= ~data["done"].view(-1)
        step += 1
        if step % every == 0 or not running.any():
            trace.append(place.cpu().numpy().copy())
            if report:
                report(env.num_envs - int(running.sum()), env.num_envs)
    stats = {name: data["stats", name].view(-1).cpu().numpy() for name in OUTCOMES + FLOWN}
    return Flights(
        outcome=np.stack([stats[name] for name in OUTCOMES]).argmax(0),
        length=stats["length"] * sim.settings.step_seconds,
        path_length=stats["path_length"],
        straight_distance=stats["straight_distance"],
        goal_distance=stats["goal_distance"],
        trace=np.stack(trace, axis=1),
        map_index=sim.map_index.cpu().numpy().copy(),
        scene=sim.scene,
        recording=recorder.finish() if recorder else None,
    )


def join_flights(parts: list[Flights]) -> Flights:
    """Flights of one scenario that were shared out, as one; those that ended sooner stay at their last point."""
    points = max(part.trace.shape[1] for part in parts)
    traces = [np.pad(p.trace, ((0, 0), (0, points - p.trace.shape[1]), (0, 0)), mode="edge") for p in parts]
    names = [f.name for f in fields(Flights) if f.name not in ("trace", "scene", "recording")]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Flights(**joined, trace=np.concatenate(traces), scene=parts[0].scene, recording=parts[0].recording)


class Evaluator:
    """Flies a policy through scenarios on maps that no training ever sees; the same flights every time."""

    def __init__(self, settings: EvaluationSettings, sim_settings: SimSettings, task_settings: TaskSettings) -> None:
        self.settings = settings
        self.sim_settings = replace(sim_settings, seed=settings.seed)
        # One flight per drone, over at its first event.
        self.task_settings = replace(task_settings, starts_in_order=True, end_at_goal=True)
        self._scenes: dict[tuple[Scenario, int], Scene] = {}

    def fly(
        self,
        scenario: Scenario,
        policy: Policy,
        episodes: int | None = None,
        report: Report | None = None,
        cancelled: Cancelled | None = None,
        share: tuple[int, int] | None = None,
        record: bool = False,
    ) -> Flights | None:
        """Build drones on the scenario's maps and fly each once; `episodes` flights, or as many as the settings say.

        `share`: only so many of them, from this one on; together the shares are the flights of all. `record`: keep the
        first of them in full.
        """
        episodes = episodes or self.settings.episodes
        first, count = share or (0, episodes)
        report = report or (lambda done, total, what="": None)
        scene = self._scene(scenario, episodes, report)
        report(0, count, what="  building")
        simulator = make_simulator(scene, replace(self.sim_settings, num_envs=count, first_env=first))
        env = NavigationEnv(simulator, self.task_settings)
        try:
            return fly_all(env, policy, report, cancelled, record)
        finally:
            env.close()

    def _scene(self, scenario: Scenario, episodes: int, report: Report) -> Scene:
        """The maps of a scenario. Drawing them takes longer than flying over them, so they are kept."""
        key = scenario, episodes
        if key not in self._scenes:
            maps = min(self.settings.maps, episodes)
            self._scenes[key] = generate_scene(
                self.settings.seed,
                num_maps=maps,
                num_static=scenario.num_static,
                num_moving=scenario.num_moving,
                route=scenario.route,
                starts_per_map=-(-episodes // maps),
                stream=EVALUATION,
                progress=lambda done, total: report(done, total, what="  drawing maps"),
            )
        return self._scenes[key]


# --- counting ---------------------------------------------------------------------------------------------------


def summarize(flights: Flights) -> dict[str, Any]:
    """Fractions of outcomes (they sum to 1) and means, each with a 95 % interval under `<name>_ci95`."""
    total = len(flights.outcome)
    out: dict[str, Any] = {}
    for index, name in enumerate(OUTCOMES):
        count = int((flights.outcome == index).sum())
        out[name] = count / total
        out[f"{name}_ci95"] = wilson_interval(count, total)
    arrived = flights.outcome == OUTCOMES.index("success")
    way = (flights.path_length + flights.goal_distance) / np.maximum(flights.straight_distance, 1e-6)
    values = {
        "speed": flights.path_length / np.maximum(flights.length, 1e-6),  # mean of a flight, m/s
        "path_ratio": way[arrived],  # distance flown over straight distance
        "time_to_goal": flights.length[arrived],  # s
    }
    for name, sample in values.items():
        out[name], out[f"{name}_ci95"] = mean_interval(sample)
    out["episodes"] = total
    return out


def wilson_interval(count: int, total: int, z: float = 1.959964) -> list[float]:
    """95 % interval of a fraction; unlike the normal one it stays inside [0, 1] and is not empty at the ends."""
    p = count / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total**2)) / (1 + z * z / total)
    return [max(0.0, centre - half), min(1.0, centre + half)]


def mean_interval(sample: np.ndarray, z: float = 1.959964) -> tuple[float | None, list[float] | None]:
    """Mean and its 95 % interval; None where there is nothing to average."""
    if len(sample) == 0:
        return None, None
    mean = float(sample.mean())
    half = z * float(sample.std(ddof=1)) / math.sqrt(len(sample)) if len(sample) > 1 else 0.0
    return mean, [mean - half, mean + half]
