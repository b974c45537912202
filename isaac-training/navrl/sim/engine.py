"""Engine selection, and what engines share: the memory behind the `Simulator` interface, moving obstacles, saving."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import warp as wp

from navrl.io.contents import Number, Unfit
from navrl.io.snapshot import Live
from navrl.native.launch import Recorded, Team
from navrl.native.runtime import FORWARD_ONLY, start_warp
from navrl.sim.lidar import bucket_boxes
from navrl.sim.lidar_moving import scan_moving
from navrl.sim.obstacles import MovingObstacles
from navrl.sim.quadrotor import MODELS, airframe
from navrl.sim.scene import Scene
from navrl.sim.simulator import SimSettings, Simulator, constant

FARTHEST = 1e6  # m, m/s, rad/s: no drone comes there

wp.set_module_options(FORWARD_ONLY)


def make_simulator(scene: Scene, settings: SimSettings) -> Simulator:
    """Create the engine selected in `settings`. Isaac is imported only here, and only if selected."""
    if settings.engine == "isaac":
        from navrl.sim.isaac_engine import IsaacSimulator

        return IsaacSimulator(scene, settings)
    from navrl.sim.warp_engine import WarpSimulator

    return WarpSimulator(scene, settings)


@wp.func_native("""
    // Is the point inside any moving obstacle of this map, inflated by `radius`?
    const int K = position.shape[3];
    const float* x = position.data + ((long long)substep * position.shape[1] + map) * 3 * K;
    const float *y = x + K, *z = y + K;
    const float* width = size.data + (long long)map * 2 * K;
    const float* height = width + K;
    int touched = 0;
    for (int j = 0; j < count; ++j) {
        const float dx = x[j] - px, dy = y[j] - py, dz = z[j] - pz;
        const float across = 0.5f * width[j] + radius, up = 0.5f * height[j] + radius;
        touched |= (dx * dx + dy * dy <= across * across) & (dz <= up) & (-dz <= up);
    }
    return touched != 0;
""")
def inside_moving(
    position: wp.array4d(dtype=float),  # pyright: ignore[reportInvalidTypeForm]
    size: wp.array3d(dtype=float),  # pyright: ignore[reportInvalidTypeForm]
    map: int,
    count: int,
    substep: int,
    px: float,
    py: float,
    pz: float,
    radius: float,
) -> bool: ...


class Engine:
    """Memory, moving obstacles and bookkeeping. See `navrl.sim.simulator.Simulator` for the meaning of the tensors."""

    drone_axes: ClassVar[dict[str, int | None]] = {
        "position": 0, "quaternion": 0, "velocity": 0, "angular_velocity": 0, "throttle": 0, "map_index": 0,
        "trace": 1, "static_contact": 1, "moving_contact": 1,
        "moving_position": None, "moving_velocity": None, "moving_goal": None,
    }  # fmt: skip

    def __init__(self, scene: Scene, settings: SimSettings) -> None:
        start_warp()
        self.scene, self.settings = scene, settings
        self.device = torch.device(settings.device)
        if self.device.type == "cuda":  # one stream for torch and Warp, which exchange tensors all the time
            wp.set_stream(wp.stream_from_torch(torch.cuda.current_stream(self.device)), str(self.device))
        self.team = Team(self.device, settings.threads)
        self.airframe = airframe(MODELS[settings.drone], settings.step_seconds)
        n, d = settings.num_envs, settings.decimation
        floats, flags = self._zeros(torch.float32), self._zeros(torch.uint8)
        self.position = floats(n, 3)
        self.quaternion = floats(n, 4)
        self.quaternion[:, 0] = 1.0
        self.velocity = floats(n, 3)
        self.angular_velocity = floats(n, 3)
        self.throttle = floats(n, 4)
        self.map_index = self._zeros(torch.int32)(n)
        self.lidar = floats(n, *settings.lidar.shape)
        self.trace = floats(d, n, 3)
        self.static_contact, self.moving_contact = flags(d, n), flags(d, n)
        self.physics_step = 0  # steps taken so far; the clock of the moving obstacles
        self.command = floats(n, 3)

        self.moving = MovingObstacles(scene, settings, self.device)
        self.moving_position, self.moving_velocity = self.moving.position, self.moving.velocity
        self.moving_size, self.moving_goal = self.moving.size, self.moving.goal
        boxes, buckets = bucket_boxes(scene)
        self.beam_tables = [
            constant(boxes, self.device),
            constant(buckets, self.device, torch.int32),
            constant(settings.lidar.azimuth_table(), self.device, torch.float64),
            constant(settings.lidar.beam_table(), self.device),
        ]
        self._slices: list[list[Recorded]] = [[] for _ in self.team.slices(n)]
        self._prepared: Recorded | None = None
        self._state = Live({name: getattr(self, name) for name in self.drone_axes} | {"physics_step": torch.tensor(0)})

    def follow(self, make_launches: Callable[[int, int], list[Recorded]]) -> None:
        for (first, size), launches in zip(self.team.slices(self.settings.num_envs), self._slices, strict=True):
            launches.extend(make_launches(first, size))
        self._prepared = self.team.prepare(self._slices)

    def moving_scan(self, first: int, size: int, drones: torch.Tensor) -> list[Recorded]:
        """What must follow a scan of the static field if the sensor sees moving obstacles too."""
        spec = self.settings.lidar
        if not spec.sees_moving or not self.moving.any:
            return []
        poses = [wp.from_torch(self.position, wp.vec3), wp.from_torch(self.quaternion, wp.vec4)]
        obstacles = [self.moving.position, self.moving.size, self.moving.count]
        head = [first, drones.data_ptr(), spec.range, *self.beam_tables[2:], self.map_index]
        return [Recorded(scan_moving, size, [*head, *poses, *obstacles, self.lidar], self.device)]

    def move_obstacle(self, map_index: int, number: int, position: torch.Tensor) -> None:
        self.moving.place(map_index, number, position)

    def state_dict(self) -> dict[str, torch.Tensor]:
        self._state["physics_step"].fill_(self.physics_step)
        return self._state

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore a state. Kernels trust these numbers: a wrong map would be read from memory that is not theirs."""
        maps = state["map_index"]
        if len(maps) and not 0 <= int(maps.min()) <= int(maps.max()) < len(self.scene.moving_count):
            raise Unfit("map_index", f"names a map that is not one of the {len(self.scene.moving_count)} there are")
        for name in self.drone_axes:
            if state[name].is_floating_point() and state[name].numel() and float(state[name].abs().max()) > FARTHEST:
                raise Unfit(name, f"is larger than {FARTHEST:g}")
        Number(0, 2**31 - 1, whole=True).check(int(state["physics_step"]), "physics_step")
        for name in self.drone_axes:
            getattr(self, name).copy_(state[name])
        self.moving.stand_still()
        self.physics_step = int(state["physics_step"])

    def close(self) -> None:
        """Nothing to release: memory is freed with the object, threads belong to torch."""

    def check_rows(
        self, drones: torch.Tensor, position: torch.Tensor, yaw: torch.Tensor, map_index: torch.Tensor
    ) -> None:
        """Check that a reset has one row of each tensor for every drone."""
        count = len(drones)
        shapes = [tuple(tensor.shape) for tensor in (drones, position, yaw, map_index)]
        if shapes != [(count,), (count, 3), (count,), (count,)]:
            raise ValueError(f"reset of {count} drones got shapes {shapes}; one row of each is needed for every drone")

    def _zeros(self, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        return lambda *shape: torch.zeros(shape, dtype=dtype, device=self.device)
