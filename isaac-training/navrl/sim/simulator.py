"""What a simulator engine is: the only thing the Warp and the Isaac engine share with the rest of the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from navrl.native.launch import Recorded
from navrl.sim.lidar import LidarSpec
from navrl.sim.scene import Scene


@dataclass(frozen=True)
class SimSettings:
    """Everything an engine is told besides the scene."""

    num_envs: int
    engine: str = "warp"  # or isaac
    physics: str = "ovphysx"  # Isaac's: ovphysx, physx or newton
    window: bool = False  # Isaac Sim's
    device: str = "cpu"
    seed: int = 0
    dt: float = 0.016  # s, one physics step
    decimation: int = 1  # physics steps per action
    time_scale: float = 1.0  # physics runs with dt * time_scale
    threads: int = 0  # CPU threads; 0 takes what torch uses
    drone: str = "Hummingbird"
    collision_radius: float = 0.3  # m
    moving_speed: tuple[float, float] = (0.5, 1.5)  # m/s
    moving_range: tuple[float, float, float] = (5.0, 5.0, 4.5)  # m around each origin
    lidar: LidarSpec = field(default_factory=LidarSpec)

    @property
    def step_seconds(self) -> float:
        """Simulated time of one physics step."""
        return self.dt * self.time_scale


@runtime_checkable
class Simulator(Protocol):
    """Drones, obstacles and LiDAR. The tensors are views of the engine's own memory: read them, clone to keep.

    N drones, D = decimation physics steps per `step`, M maps, K moving obstacles a map. World frame, z up.
    """

    scene: Scene
    settings: SimSettings

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
        """Put the k drones numbered in `drones` (k,) at rest at `position` (k, 3) facing `yaw` (k,), and scan anew."""

    def step(self, velocity_command: torch.Tensor) -> None:
        """Fly D physics steps toward a world-frame velocity (N, 3) in m/s. A command that is not finite means hover."""

    def follow(self, make_launches: Callable[[int, int], list[Recorded]]) -> None:
        """Run `make_launches(first, size)` over drones first to first + size at the end of every `step`.

        On a CPU every thread runs them right after its own share of the drones.
        """

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All that is needed to go on exactly from here; the tensors are the engine's own, copy them to keep."""

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from `state_dict()` of an engine with the same scene and settings."""

    def close(self) -> None:
        """Give back threads and windows."""


def constant(array: np.ndarray, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A table for kernels to read."""
    return torch.as_tensor(np.ascontiguousarray(array)).to(device, dtype)
