"""The simulator interface: all that the rest of the program knows of the Warp and the Isaac engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch

from navrl.native.launch import Recorded
from navrl.settings import SEED, device, setting
from navrl.sim.lidar import LidarSpec
from navrl.sim.quadrotor import MODELS
from navrl.sim.scene import Scene


@dataclass(frozen=True, kw_only=True)
class SimSettings:
    """Everything an engine needs besides the scene."""

    num_envs: int = setting("env.num_envs", 1, 1 << 20)
    engine: str = setting("sim.engine", options=("warp", "isaac"))
    device: str = setting("device", parse=device)
    headless: bool = setting("headless")
    seed: int = setting("seed", *SEED)
    dt: float = setting("sim.dt", 1e-4, 0.05)  # s, one physics step
    decimation: int = setting("sim.decimation", 1, 100)  # physics steps per action
    time_scale: float = setting("sim.time_scale", 0.1, 10.0)  # physics runs with dt * time_scale
    threads: int = setting("sim.threads", 0, 256)  # CPU threads; 0: as many as torch uses
    drone: str = setting("drone.model_name", options=tuple(MODELS))
    collision_radius: float = setting("drone.collision_radius", 0.0, 2.0)  # m
    moving_speed: tuple[float, float] = setting("env_dyn.vel_range", 0.0, rising=True)  # m/s
    moving_range: tuple[float, float, float] = setting("env_dyn.local_range", 0.0)  # m around each origin
    lidar: LidarSpec
    first_env: int = 0  # number of the first drone in the whole run, of which this may be a share
    physics: str = "none"  # Isaac's: ovphysx, physx or newton
    window: bool = False  # Isaac Sim's

    @property
    def step_seconds(self) -> float:
        """Simulated time of one physics step."""
        return self.dt * self.time_scale


@runtime_checkable
class Simulator(Protocol):
    """Drones, obstacles and LiDAR. The tensors are views of the engine's own memory: read them, clone to keep.

    N drones, D = decimation physics steps per `step`, M maps, K moving obstacles per map. World frame, z up.
    """

    scene: Scene
    settings: SimSettings
    drone_axes: ClassVar[dict[str, int | None]]  # of every tensor of `state_dict`; None: it is the same for all drones

    position: torch.Tensor  # (N, 3)
    quaternion: torch.Tensor  # (N, 4) w, x, y, z
    velocity: torch.Tensor  # (N, 3)
    angular_velocity: torch.Tensor  # (N, 3) body axes, as a rate gyro measures it
    lidar: torch.Tensor  # (N, azimuths, elevations), metres
    map_index: torch.Tensor  # (N,) int32: the map each drone flies in
    moving_position: torch.Tensor  # (M, 3, K)
    moving_velocity: torch.Tensor  # (M, 3, K)
    moving_size: torch.Tensor  # (M, 2, K): width, height
    trace: torch.Tensor  # (D, N, 3): position after every physics step of the last action
    static_contact: torch.Tensor  # (D, N) uint8: any beam shorter than the collision radius
    moving_contact: torch.Tensor  # (D, N) uint8: inside a moving obstacle grown by the collision radius

    def reset(self, drones: torch.Tensor, position: torch.Tensor, yaw: torch.Tensor, map_index: torch.Tensor) -> None:
        """Put the k drones numbered in `drones` (k,) at rest at `position` (k, 3) facing `yaw` (k,), and scan again."""

    def step(self, velocity_command: torch.Tensor) -> None:
        """Fly D physics steps toward a world-frame velocity (N, 3) in m/s. A command that is not finite means hover."""

    def follow(self, make_launches: Callable[[int, int], list[Recorded]]) -> None:
        """Run `make_launches(first, size)` over drones first to first + size at the end of every `step`.

        On a CPU every thread runs them right after its own share of the drones.
        """

    def move_obstacle(self, map_index: int, number: int, position: torch.Tensor) -> None:
        """Put a moving obstacle of a map somewhere else (3,); from now on it wanders around that place."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Everything needed to resume exactly from here; the tensors are the engine's own, copy them to keep."""
        ...

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the `state_dict()` of an engine with the same scene and settings."""

    def close(self) -> None:
        """Release threads and windows."""


def constant(array: np.ndarray, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A table for kernels to read."""
    return torch.as_tensor(np.ascontiguousarray(array)).to(device, dtype)
