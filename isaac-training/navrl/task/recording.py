"""Flights in full, for people to look at: poses, commands, LiDAR, and the moving obstacles around them.

An evaluation records its first flights. What can be seen of them later (replay pages, videos) is made from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from navrl.sim.lidar import LidarSpec

if TYPE_CHECKING:
    from navrl.task.env import NavigationEnv

SAMPLE_SECONDS = 0.064  # between samples: 12 cm at full speed, which a page can interpolate
MOST, FEWEST = 256, 16  # flights recorded: 40 MB while an evaluation runs with 36 × 4 beams, fewer with more beams
CLEAR = 255  # of a LiDAR beam that meets nothing


@dataclass
class Recording:
    """The first n flights of an evaluation, sampled T times; a flight that has ended stays as it was.

    Stored small: a LiDAR range of `reach` is 254 steps, millimetres fit into 16 bits.
    """

    seconds: float  # between samples
    sensor: LidarSpec
    radii: tuple[float, float]  # m: around the drone, which nothing may enter; around the goal
    start: np.ndarray  # (n, 3) float32, m
    goal: np.ndarray  # (n, 3) float32, m
    map_index: np.ndarray  # (n,) into the scene, and into `moving`
    position: np.ndarray  # (T, n, 3) float32, m
    quaternion: np.ndarray  # (T, n, 4) float16, w x y z
    command: np.ndarray  # (T, n, 3) float16, m/s in the world: what was flown to get here
    beams: np.ndarray  # (T, n, azimuths, elevations) uint8, CLEAR or 0 to 254 of the sensor's range
    told: np.ndarray  # (T, n, NEAREST) int16: moving obstacles in the observation; -1: none
    moving: np.ndarray  # (T, M, 3, K) int16, mm
    moving_size: np.ndarray  # (M, 2, K) float32, m: width, height
    samples: np.ndarray  # (n,) int: of each flight, the one at its end included

    def clearance(self) -> np.ndarray:
        """The least distance (n,) to anything each flight observed, in m."""
        flown = np.arange(len(self.position))[:, None] < self.samples  # (T, n)
        ranges = self.beams.min(axis=(2, 3)) * (self.sensor.range / 254.0)
        if not self.moving.shape[3]:
            return np.where(flown, ranges, np.inf).min(axis=0)
        moving, rows = np.moveaxis(self.moving, 2, 3), np.arange(len(self.position))[:, None, None]
        maps, index = self.map_index[None, :, None], np.maximum(self.told, 0)
        away = np.abs(moving[rows, maps, index] * 1e-3 - self.position[:, :, None])  # (T, n, NEAREST, 3)
        width, height = self.moving_size[maps, 0, index], self.moving_size[maps, 1, index]
        across = np.hypot(away[..., 0], away[..., 1]) - width / 2
        up = np.maximum(away[..., 2] - height / 2, 0.0)
        gaps = np.where(self.told >= 0, np.hypot(np.maximum(across, 0.0), up), self.sensor.range)
        nearest = np.minimum(ranges, gaps.min(axis=2))
        return np.where(flown, nearest, np.inf).min(axis=0)


class FlightRecorder:
    """Samples the first drones of an environment as they fly; each stays as it was once its flight has ended."""

    def __init__(self, env: NavigationEnv, most: int = MOST) -> None:
        sim = env.simulator
        most = max(FEWEST, min(most, most * 144 // math.prod(sim.settings.lidar.shape)))
        self.env, self.count = env, min(most, env.num_envs)
        decision = sim.settings.step_seconds * sim.settings.decimation
        self._every = max(1, round(SAMPLE_SECONDS / decision))  # decisions
        self.seconds = self._every * decision
        self._step = 0
        self._open = torch.ones(self.count, dtype=torch.bool, device=env.device)  # not yet at its end in a sample
        self._samples = torch.zeros(self.count, dtype=torch.int64, device=env.device)
        self._start = _numpy(sim.position[: self.count])
        self._now = self._look(torch.zeros_like(sim.position))
        self._rows: list[list[np.ndarray]] = []
        self._moving: list[np.ndarray] = []
        self._add(torch.zeros_like(self._open))

    def after_step(self, command: torch.Tensor, flying: torch.Tensor, done: torch.Tensor) -> None:
        """Take note of a step of the drones `flying`, which ended the flights `done`."""
        flying, done = flying[: self.count], done[: self.count]
        self._step += 1
        due, ended = self._step % self._every == 0, flying & done
        if due or ended.any():
            changed = _numpy(flying if due else ended)
            for now, new in zip(self._now, self._look(command), strict=True):
                now[changed] = new[changed]
        if due:
            self._add(done | ~flying)

    def _look(self, command: torch.Tensor) -> list[np.ndarray]:
        sim, n = self.env.simulator, self.count
        beams, reach = _numpy(sim.lidar[:n]), sim.settings.lidar.range
        return [
            _numpy(sim.position[:n]),
            _numpy(sim.quaternion[:n]).astype(np.float16),
            _numpy(command[:n]).astype(np.float16),
            np.where(beams < reach, beams * (254.0 / reach), CLEAR).astype(np.uint8),
            _numpy(self.env.told_obstacles[:n]).astype(np.int16),
        ]

    def _add(self, over: torch.Tensor) -> None:
        self._rows.append([now.copy() for now in self._now])
        self._moving.append((_numpy(self.env.simulator.moving_position) * 1e3).astype(np.int16))
        self._samples += self._open
        self._open &= ~over

    def finish(self) -> Recording:
        """Everything recorded, once the flights are over."""
        if self._open.any():  # the last flight ended between two samples
            self._add(torch.ones_like(self._open))
        sim, n = self.env.simulator, self.count
        position, quaternion, command, beams, told = (np.stack(parts) for parts in zip(*self._rows, strict=True))
        return Recording(
            seconds=self.seconds,
            sensor=sim.settings.lidar,
            radii=(sim.settings.collision_radius, self.env.settings.goal_radius),
            start=self._start,
            goal=_numpy(self.env.goal[:n]),
            map_index=_numpy(sim.map_index[:n]),
            position=position,
            quaternion=quaternion,
            command=command,
            beams=beams,
            told=told,
            moving=np.stack(self._moving),
            moving_size=_numpy(sim.moving_size),
            samples=_numpy(self._samples),
        )


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy: the simulator goes on writing into its own memory."""
    return tensor.cpu().numpy().copy()
