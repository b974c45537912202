"""The navigation task as a TorchRL environment, on any `Simulator`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import warp as wp
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from navrl.io.snapshot import Live
from navrl.native.launch import Recorded
from navrl.schema import NEAREST, STAT_COUNT, STATS, TERMS, observation_shapes
from navrl.settings import SEED, ConfigError, setting
from navrl.sim.simulator import Simulator
from navrl.task import kernels

DONE_KEYS = ("done", "terminated", "truncated")


def reward_weights(value: Any, key: str) -> dict[str, float]:
    """Parse the section `reward`: one finite number per term."""
    weights: dict[str, Any] = {term: value.get(term) if isinstance(value, dict) else None for term in TERMS}
    for term, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError(f"{key}.{term}", weight, "must be a number")
    return {term: float(weight) for term, weight in weights.items()}


def height_band(value: Any, key: str) -> tuple[float, float]:
    """Parse two heights with room to fly between them."""
    numbers = isinstance(value, list | tuple) and len(value) == 2
    numbers = numbers and all(type(v) in (int, float) and abs(v) <= 1000.0 for v in value)
    if not numbers or value[1] - value[0] < 0.1:
        raise ConfigError(key, value, "must be a list of 2 numbers (m), from low to high, at least 0.1 apart")
    return float(value[0]), float(value[1])


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What the drone has to do. `reward` gives weights to `TERMS`; a term that is missing weighs nothing."""

    max_episode_length: int = setting("env.max_episode_length", 1, 1e7)  # physics steps of sim.dt
    goal_radius: float = setting("env.goal_radius", 0.01, 10.0)  # m
    height_limits: tuple[float, float] = setting("env.height_limits", parse=height_band)  # m
    end_at_goal: bool = setting("env.end_at_goal")  # False: fly on until the time is up, as NavRL does
    action_limit: float = setting("drone.action_limit", 0.01, 20.0)  # m/s along each axis of the goal frame
    seed: int = setting("seed", *SEED)
    reward: dict[str, float] = setting("reward", parse=reward_weights)
    starts_in_order: bool = False  # True: drone i always flies its own start; False: redrawn for every episode


class NavigationEnv(EnvBase):
    """Fly to the goal without touching anything. Actions are world-frame velocities in m/s.

    Every step returns fresh tensors: the observation under "next" stays the true last one of an episode when a reset
    follows, so that truncated episodes bootstrap from it. All arithmetic is in `navrl.task.kernels`.
    """

    def __init__(self, simulator: Simulator, settings: TaskSettings) -> None:
        n = simulator.settings.num_envs
        super().__init__(device=simulator.position.device, batch_size=(n,))
        self.simulator, self.settings, self.num_envs = simulator, settings, n
        self._make_specs()
        self._make_buffers()
        self._make_launches()

    # --- TorchRL's interface ------------------------------------------------------------------------------------

    def _make_specs(self) -> None:
        n, device = self.num_envs, self.device

        def batch(**content) -> Composite:
            return Composite(content, shape=(n,), device=device)

        def floats(*shape: int) -> Unbounded:
            return Unbounded(torch.Size((n, *shape)), device=device)

        shapes = observation_shapes(self.simulator.settings.lidar.shape)
        observation = batch(**{name: floats(*shape) for name, shape in shapes.items()})
        stats = batch(**{name: floats(1) for name in STATS})
        self.observation_spec = batch(agents=batch(observation=observation), stats=stats)
        # Up to action_limit along each axis of the goal frame, as seen from the world frame.
        high = torch.tensor([2**0.5, 2**0.5, 1.0], device=device).expand(n, 3) * self.settings.action_limit
        self.action_spec = batch(agents=batch(action=Bounded(-high, high, device=device)))
        self.reward_spec = batch(agents=batch(reward=floats(1)))
        self.done_spec = batch(**{k: Binary(1, torch.Size((n, 1)), dtype=torch.bool, device=device) for k in DONE_KEYS})

    def _set_seed(self, seed: int | None) -> None:
        """Starts and goals drawn from now on follow `seed`."""
        if seed is not None:
            self._seed.fill_(_kernel_seed(seed))
            self._begin.set("seed", int(self._seed))

    def _reset(self, tensordict: TensorDictBase | None = None, **_) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None and self._loaded:  # a collector begins with a reset; after a load that must reset nothing
            self._loaded = False
            return self.observation()
        self._begin_flights(self._everyone if mask is None else _numbers(mask))
        return self.observation()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._pack(*self._fly(tensordict.get(("agents", "action"))), reward=True)

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """As TorchRL's own, without masking every tensor: only drones that finished are reset and observed."""
        results, flags = self._fly(tensordict.get(("agents", "action")))
        tensordict.set("next", self._pack(results, flags, reward=True))
        finished = _numbers(flags[0])
        if len(finished):
            self._begin_flights(finished)
            results, flags = results.clone(), torch.zeros_like(flags)
            self._observe(results, finished)
        return tensordict, self._pack(results, flags, carry=tensordict)

    # --- state --------------------------------------------------------------------------------------------------

    def state_dict(self, *_, **__) -> dict[str, dict[str, torch.Tensor]]:
        """Everything needed to resume exactly from here, the simulator included. Copy the tensors to keep them."""
        return {"task": self._state, "simulator": self.simulator.state_dict()}

    def load_state_dict(self, state: dict[str, dict[str, torch.Tensor]], *_, **__) -> None:
        """Restore the `state_dict()` of an environment built alike. The next reset of all drones resets none."""
        for name in self._kept:
            self._state[name].copy_(state["task"][name])
        self._begin.set("seed", int(self._seed))
        self.simulator.load_state_dict(state["simulator"])
        self._loaded = True

    def observation(self) -> TensorDictBase:
        """What the drones observe now, packed as by `reset` but without resetting; for resuming after a load."""
        results, flags = self._new_results()
        self._observe(results, self._everyone)
        return self._pack(results, flags.zero_())

    @property
    def goal(self) -> torch.Tensor:
        """Where each drone flies to (N, 3), m. Read only: `redirect` changes it."""
        return self._goal

    @property
    def told_obstacles(self) -> torch.Tensor:
        """Numbers (N, NEAREST) of the moving obstacles in the last observation, nearest first; -1: none."""
        return self._nearest

    def redirect(self, drone: int, goal: torch.Tensor) -> None:
        """Give a drone another goal (3,) in flight, as if it had started toward it from where it is."""
        here, goal = self.simulator.position[drone], goal.to(self._goal)
        way = (goal - here)[:2]
        self._goal[drone] = goal
        if way.norm() > 1e-6:
            self._ahead[drone] = way / way.norm()
        self._band[drone] = torch.stack([torch.minimum(here[2], goal[2]), torch.maximum(here[2], goal[2])])

    def place(self, drone: int, position: torch.Tensor) -> None:
        """Put a flying drone at rest somewhere else (3,), facing and heading for its goal from there."""
        position = position.to(self._goal).view(1, 3)
        way = self._goal[drone] - position[0]
        number = torch.tensor([drone], dtype=torch.int32, device=self.device)
        yaw = torch.atan2(way[1], way[0]).view(1)
        self.simulator.reset(number, position, yaw, self.simulator.map_index[drone : drone + 1].clone())
        self._last_position[drone], self._last_velocity[drone] = position[0], 0.0
        self.redirect(drone, self._goal[drone].clone())

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.simulator.close()

    # --- inside -------------------------------------------------------------------------------------------------

    _kept: ClassVar[dict[str, int | None]] = {  # with the axis that counts drones
        "seed": None, "episode": 0, "goal": 0, "ahead": 0, "band": 0, "last_position": 0, "last_velocity": 0,
        "elapsed": 0, "outcome": 0, "stats": 1,
    }  # fmt: skip

    @property
    def drone_axes(self) -> dict[str, dict[str, int | None]]:
        """For every tensor of `state_dict` the axis that counts drones; None: it is the same for all."""
        return {"task": self._kept, "simulator": self.simulator.drone_axes}

    def _make_buffers(self) -> None:
        n = self.num_envs
        self._loaded = False

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self._seed = torch.tensor(_kernel_seed(self.settings.seed))
        self._everyone = torch.arange(n, dtype=torch.int32, device=self.device)
        self._episode = zeros(n, dtype=torch.int32)
        self._goal, self._ahead, self._band = zeros(n, 3), zeros(n, 2), zeros(n, 2)
        self._last_position, self._last_velocity = zeros(n, 3), zeros(n, 3)
        self._elapsed, self._outcome = zeros(n, dtype=torch.int32), zeros(n, dtype=torch.int32)
        # Rows a little longer than n: at a power of two all of a drone's statistics would compete for one cache set.
        self._stats = zeros(STAT_COUNT, n + 16)[:, :n]
        self._state = Live({name: getattr(self, f"_{name}") for name in self._kept})
        self._start, self._yaw = zeros(n, 3), zeros(n)
        self._start_map = zeros(n, dtype=torch.int32)
        self._nearest = zeros(n, NEAREST, dtype=torch.int32)
        self._static_log, self._moving_log = zeros(n), zeros(n)

        observed = observation_shapes(self.simulator.settings.lidar.shape)
        shapes = {name: (n, *shape) for name, shape in observed.items()}
        self._shapes = {**shapes, "reward": (n, 1), "stats": (STAT_COUNT, n, 1)}  # the order in which kernels write
        self._td_size, self._td_device = self.batch_size, self.device
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]

    def _make_launches(self) -> None:
        sim, scene = self.simulator, self.simulator.scene
        rules = self._rules()

        def constant(array: np.ndarray) -> torch.Tensor:
            return torch.as_tensor(np.ascontiguousarray(array)).to(self.device)

        def vec(tensor: torch.Tensor, dtype: type) -> wp.array:
            return wp.from_torch(tensor, dtype=dtype)

        goal, ahead, band = vec(self._goal, wp.vec3), vec(self._ahead, wp.vec2), vec(self._band, wp.vec2)
        last = [vec(self._last_position, wp.vec3), vec(self._last_velocity, wp.vec3)]
        position, velocity = vec(sim.position, wp.vec3), vec(sim.velocity, wp.vec3)
        progress = [*last, self._elapsed, self._outcome, self._stats]
        tables = [vec(constant(scene.starts), wp.vec3), vec(constant(scene.goals), wp.vec3)]
        settings = [int(self._seed), int(self.settings.starts_in_order)]
        flight = [vec(self._start, wp.vec3), self._yaw, self._start_map, goal, ahead, band]
        inputs = [0, sim.settings.first_env, *settings, *tables, self._episode, *flight, *progress]
        self._begin = Recorded(kernels.begin, self.num_envs, inputs, self.device)

        moving = [sim.moving_position, sim.moving_velocity, sim.moving_size, constant(scene.moving_count)]
        logs = [self._static_log, self._moving_log]

        def observe(first: int, size: int, drones: torch.Tensor) -> Recorded:
            seen = [position, velocity, sim.lidar, sim.map_index, *moving, goal, ahead, self._nearest, *logs]
            return Recorded(kernels.observe, size, [first, drones.data_ptr(), rules, *seen, 0], self.device)

        def judge(first: int, size: int) -> Recorded:
            events = [vec(sim.trace, wp.vec3), sim.static_contact, sim.moving_contact]
            inputs = [first, rules, velocity, *events, goal, band, *logs, *progress, 0, 0]
            return Recorded(kernels.judge, size, inputs, self.device)

        self._observe_some = observe(0, self.num_envs, self._everyone)
        self._after_step: list[tuple[Recorded, Recorded]] = []

        def after_slice(first: int, size: int) -> list[Recorded]:
            self._after_step.append((observe(first, size, self._everyone), judge(first, size)))
            return list(self._after_step[-1])

        sim.follow(after_slice)
        self._aim(*self._new_results())

    def _rules(self) -> Any:
        task, sim = self.settings, self.simulator.settings
        rules = kernels.Rules()
        rules.lidar_range = sim.lidar.range
        rules.goal_radius = task.goal_radius
        rules.floor, rules.ceiling = task.height_limits
        rules.max_steps = math.ceil(task.max_episode_length / sim.time_scale)
        rules.end_at_goal = int(task.end_at_goal)
        rules.decision_seconds = sim.step_seconds * sim.decimation
        rules.weights = kernels.Weights(*(float(task.reward.get(term, 0.0)) for term in TERMS))
        return rules

    def _new_results(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Allocate one step's results: all floats in one piece, and done, terminated, truncated."""
        floats = torch.empty(sum(self._sizes), device=self._td_device)
        return floats, torch.empty((3, self.num_envs, 1), dtype=torch.bool, device=self._td_device)

    def _fly(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not math.isfinite(action.sum()):
            bad = (~torch.isfinite(action)).any(-1).nonzero().view(-1)
            if len(bad):
                raise ValueError(
                    f"action of drone {int(bad[0])} is {action[bad[0]].tolist()}, which is not a velocity"
                    f" ({len(bad)} of {self.num_envs} drones); the simulator was not stepped"
                )
        results, flags = self._new_results()
        self._aim(results, flags)
        self.simulator.step(action)
        self._write_stats(results)
        return results, flags

    def _aim(self, results: torch.Tensor, flags: torch.Tensor) -> None:
        """Point the kernels that follow a step at this memory. It is kept until the next call, so that stepping the
        simulator directly cannot write into freed memory."""
        self._target = results, flags
        address = results.data_ptr()
        tail = address + 4 * sum(self._sizes[:4])
        for observe, judge in self._after_step:
            observe.set("address", address)
            judge.set("address", tail)
            judge.set("flags", flags.data_ptr())

    def _begin_flights(self, drones: torch.Tensor) -> None:
        count = len(drones)
        if count == 0:
            return
        self._begin.set("drones", drones.data_ptr())
        self._begin.resize(count)
        self._begin.run()
        self.simulator.reset(drones, self._start[:count], self._yaw[:count], self._start_map[:count])

    def _observe(self, results: torch.Tensor, drones: torch.Tensor) -> None:
        self._observe_some.set("drones", drones.data_ptr())
        self._observe_some.set("address", results.data_ptr())
        self._observe_some.resize(len(drones))
        self._observe_some.run()
        self._write_stats(results)

    def _write_stats(self, results: torch.Tensor) -> None:
        results[-self._stats.numel() :].view(STAT_COUNT, -1).copy_(self._stats)

    def _pack(
        self,
        results: torch.Tensor,
        flags: torch.Tensor,
        reward: bool = False,
        carry: TensorDictBase | None = None,
    ) -> TensorDictBase:
        """Pack results as TorchRL wants them. Other keys of `carry` are kept, as in TorchRL's `step_mdp`."""
        pieces = results.split_with_sizes(self._sizes)
        parts = {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}
        stats, rewards = parts.pop("stats"), parts.pop("reward")
        everything, agents = {}, {}
        if carry is not None:
            everything = {key: value for key, value in carry.items() if key != "next"}
            agents = dict(carry.get("agents").items())
        if reward:
            agents["reward"] = rewards
        agents["observation"] = self._td(parts)
        everything["agents"] = self._td(agents)
        everything["stats"] = self._td(dict(zip(STATS, stats.unbind(0), strict=True)))
        everything.update(zip(DONE_KEYS, flags.unbind(0), strict=True))
        return self._td(everything)

    def _td(self, content: dict) -> TensorDict:
        # Unchecked, because every shape is fixed above: three times faster on a path taken every step.
        return TensorDict._new_unsafe(content, batch_size=self._td_size, device=self._td_device)


def _numbers(mask: torch.Tensor) -> torch.Tensor:
    """Numbers of the drones whose flag is set, as kernels want them."""
    return mask.view(-1).nonzero().view(-1).int()


def _kernel_seed(seed: int) -> int:
    """A 31-bit seed for kernels, well apart from the one that drew the scene."""
    return int(np.random.SeedSequence([seed, 2]).generate_state(1)[0] >> 1)
