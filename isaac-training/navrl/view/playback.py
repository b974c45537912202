"""A recorded flight at any time, between its samples too, and the track of a camera that follows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from navrl.schema import OUTCOMES
from navrl.task.evaluation import Flights
from navrl.task.recording import CLEAR

BEHIND, ABOVE = 4.6, 2.5  # m from the drone to the camera
TURN_SECONDS = 0.9  # over which the camera's heading is smoothed
SWAY_SECONDS = 0.2  # over which its position is
AZIMUTHS, ELEVATIONS = 45, 6  # beams that are drawn at most; of a finer sensor every second, third, ...


@dataclass(frozen=True)
class Moment:
    """What there is to see at one time."""

    time: float  # s
    position: np.ndarray  # (3,) m
    velocity: np.ndarray  # (3,) m/s, as flown
    command: np.ndarray  # (3,) m/s
    rotation: np.ndarray  # (3, 3) body to world
    eye: np.ndarray  # (3,) m, where the camera is
    heading: float  # rad, where it looks
    trail: np.ndarray  # (k, 3) m, flown so far
    hits: np.ndarray  # (h, 3) m, where beams end on something
    misses: np.ndarray  # (m, 3) m, where the others end
    fan: np.ndarray  # (azimuths, 2) m, the nearest end of the beams of each azimuth
    moving: np.ndarray  # (K, 3) m
    told: np.ndarray  # (K,) bool: obstacles in the observation


class Playback:
    """One flight of a recording."""

    def __init__(self, flights: Flights, index: int) -> None:
        if flights.recording is None:
            raise ValueError("these flights were not recorded; fly them with record=True")
        self.recording, self.index = flights.recording, index
        recording = self.recording
        self.map_index, self.outcome = int(recording.map_index[index]), OUTCOMES[flights.outcome[index]]
        self.start, self.goal = recording.start[index].astype(float), recording.goal[index].astype(float)
        self.size = recording.moving_size[self.map_index].T.astype(float)  # (K, 2) m: width, height
        count = int(recording.samples[index])
        self.seconds = (count - 1) * recording.seconds
        self.length = float(flights.length[index])  # s; ends up to a sample before `seconds`
        self.position = recording.position[:count, index].astype(float)  # (T, 3)
        self.velocity = np.zeros_like(self.position)
        if count > 1:
            self.velocity = np.gradient(self.position, recording.seconds, axis=0)
            self.velocity[-1] = self.velocity[-2]  # the last sample may be of a time before it was due
        self.eye, self.heading = self._camera()

    def _camera(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the camera is (T, 3) and its heading (T,): behind the drone, looking where it flies on the whole."""
        toward = self.goal[:2] - self.position[:, :2]
        toward = toward / np.maximum(np.linalg.norm(toward, axis=1, keepdims=True), 2.0)  # fades close to the goal
        course = _smooth(self.velocity[:, :2] + toward, TURN_SECONDS / self.recording.seconds)
        heading = np.unwrap(np.arctan2(course[:, 1], course[:, 0]))
        place = _smooth(self.position, SWAY_SECONDS / self.recording.seconds)
        offset = np.stack([-BEHIND * np.cos(heading), -BEHIND * np.sin(heading), np.full(len(place), ABOVE)], axis=1)
        return place + offset, heading

    def at(self, time: float) -> Moment:
        """The flight at a time, in s; it stays as it was before its start and after its end."""
        recording, index = self.recording, self.index
        time = min(max(time, 0.0), self.seconds)
        before = int(time / recording.seconds + 1e-6)
        after = min(before + 1, len(self.position) - 1)
        part = time / recording.seconds - before if after > before else 0.0
        nearest = before if part < 0.5 else after
        position = _between(self.position, self.velocity * recording.seconds, before, after, part)
        moving = recording.moving[[before, after], self.map_index].astype(float) * 1e-3  # (2, 3, K)
        hits, misses, fan = self._beams(nearest)
        return Moment(
            time=min(time, self.length),
            position=position,
            velocity=(1 - part) * self.velocity[before] + part * self.velocity[after],
            command=recording.command[after, index].astype(float),
            rotation=self._rotation(before, after, part),
            eye=(1 - part) * self.eye[before] + part * self.eye[after],
            heading=float((1 - part) * self.heading[before] + part * self.heading[after]),
            trail=np.concatenate([self.position[: before + 1], position[None]]),
            hits=hits,
            misses=misses,
            fan=fan,
            moving=((1 - part) * moving[0] + part * moving[1]).T,
            told=np.isin(np.arange(len(self.size)), recording.told[nearest, index]),
        )

    def _rotation(self, before: int, after: int, part: float) -> np.ndarray:
        first, second = self.recording.quaternion[[before, after], self.index].astype(float)
        q = (1 - part) * first + (part if first @ second >= 0 else -part) * second
        w, x, y, z = q / max(float(np.linalg.norm(q)), 1e-9)
        return np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )

    def _beams(self, sample: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ends of beams: those that hit (h, 3), those that do not (m, 3), the nearest of each azimuth (azimuths, 2)."""
        spec, steps = self.recording.sensor, self.recording.beams[sample, self.index]
        clear = steps == CLEAR
        length = np.where(clear, 1.0, steps / 254.0) * spec.range
        forward = self._rotation(sample, sample, 0.0)[:, 0]
        azimuth = spec.azimuth_angles() + math.atan2(forward[1], forward[0])  # beams follow the yaw, not the tilt
        ahead, level = np.stack([np.cos(azimuth), np.sin(azimuth)], axis=1), np.cos(spec.elevation_angles())
        fan = self.position[sample, :2] + ahead * (length * level).min(axis=1, keepdims=True)
        few = (slice(None, None, -(-len(azimuth) // AZIMUTHS)), slice(None, None, -(-len(level) // ELEVATIONS)))
        along = ahead[:, None] * level[None, :, None]  # (azimuths, elevations, 2)
        up = np.broadcast_to(np.sin(spec.elevation_angles()), steps.shape)
        ends = self.position[sample] + np.concatenate([along, up[..., None]], axis=2)[few] * length[few][..., None]
        return ends[~clear[few]], ends[clear[few]], fan


def _smooth(values: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian mean over samples (T, k); the first and the last are continued at the ends."""
    reach = max(1, math.ceil(3 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    padded = np.pad(values, ((reach, reach), (0, 0)), mode="edge")
    return np.stack([np.convolve(column, kernel / kernel.sum(), "valid") for column in padded.T], axis=1)


def _between(values: np.ndarray, slopes: np.ndarray, before: int, after: int, t: float) -> np.ndarray:
    """A point on the smooth curve (cubic Hermite) through two samples, with `slopes` per sample."""
    start = (2 * t**3 - 3 * t**2 + 1) * values[before] + (t**3 - 2 * t**2 + t) * slopes[before]
    return start + (3 * t**2 - 2 * t**3) * values[after] + (t**3 - t**2) * slopes[after]
