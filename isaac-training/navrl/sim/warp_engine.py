"""The embedded engine: drones, moving obstacles and LiDAR as Warp kernels, one source for CPU and CUDA."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import warp as wp

from navrl.sim.crew import Crew
from navrl.sim.lidar import bucket_boxes, lidar_functions
from navrl.sim.obstacles import REDRAW_SECONDS, move_obstacles
from navrl.sim.quadrotor import MODELS, Airframe, Body, airframe, controlled_wrench, integrate
from navrl.sim.runtime import FORWARD_ONLY, start_warp
from navrl.sim.scene import Scene
from navrl.sim.simulator import SimSettings

wp.set_module_options(FORWARD_ONLY)


@wp.func_native("""
    // Inside any moving obstacle of this map, grown by `radius`?
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
    position: wp.array4d(dtype=float),
    size: wp.array3d(dtype=float),
    map: int,
    count: int,
    substep: int,
    px: float,
    py: float,
    pz: float,
    radius: float,
) -> bool: ...


@wp.kernel
def place(
    mask: wp.array(dtype=wp.bool),
    new_position: wp.array(dtype=wp.vec3),
    new_yaw: wp.array(dtype=float),
    new_map: wp.array(dtype=int),
    drone: Airframe,
    position: wp.array(dtype=wp.vec3),
    quaternion: wp.array(dtype=wp.vec4),
    velocity: wp.array(dtype=wp.vec3),
    rate: wp.array(dtype=wp.vec3),
    throttle: wp.array(dtype=wp.vec4),
    map_index: wp.array(dtype=int),
):
    i = wp.tid()
    if not mask[i]:
        return
    h = drone.hover_throttle
    half = 0.5 * new_yaw[i]
    position[i] = new_position[i]
    quaternion[i] = wp.vec4(wp.cos(half), 0.0, 0.0, wp.sin(half))
    velocity[i] = wp.vec3()
    rate[i] = wp.vec3()
    throttle[i] = wp.vec4(h, h, h, h)
    map_index[i] = new_map[i]


@cache
def beam_kernels(azimuths: int, elevations: int) -> tuple[wp.Kernel, wp.Kernel]:
    """The two kernels that depend on the beam layout: `fly` (physics and contacts) and `scan` (LiDAR)."""
    scan_beams, beam_touches = lidar_functions(azimuths, elevations)

    @wp.kernel(module="unique", module_options=FORWARD_ONLY)
    def fly(
        offset: int,
        substeps: int,
        dt: float,
        radius: float,
        drone: Airframe,
        boxes: wp.array2d(dtype=float),
        buckets: wp.array2d(dtype=int),
        azimuth: wp.array2d(dtype=wp.float64),
        beams: wp.array2d(dtype=float),
        moving_position: wp.array4d(dtype=float),
        moving_size: wp.array3d(dtype=float),
        moving_count: wp.array(dtype=int),
        command: wp.array(dtype=wp.vec3),
        map_index: wp.array(dtype=int),
        position: wp.array(dtype=wp.vec3),
        quaternion: wp.array(dtype=wp.vec4),
        velocity: wp.array(dtype=wp.vec3),
        rate: wp.array(dtype=wp.vec3),
        throttle: wp.array(dtype=wp.vec4),
        trace: wp.array2d(dtype=wp.vec3),
        static_contact: wp.array2d(dtype=wp.uint8),
        moving_contact: wp.array2d(dtype=wp.uint8),
    ):
        i = offset + wp.tid()
        c = command[i]
        if not (wp.isfinite(c[0]) and wp.isfinite(c[1]) and wp.isfinite(c[2])):
            c = wp.vec3()
        m = map_index[i]
        q = quaternion[i]
        body = Body()
        body.position = position[i]
        body.rotation = wp.quat(q[1], q[2], q[3], q[0])
        body.velocity = velocity[i]
        body.rate = rate[i]
        body.throttle = throttle[i]
        for k in range(substeps):
            body = integrate(drone, body, controlled_wrench(drone, body, c), dt)
            p = body.position
            r = body.rotation
            q = wp.vec4(r[3], r[0], r[1], r[2])
            trace[k, i] = p
            static_contact[k, i] = wp.uint8(
                beam_touches(boxes, buckets, azimuth, beams, m, p[0], p[1], p[2], q[0], q[1], q[2], q[3], radius)
            )
            moving_contact[k, i] = wp.uint8(
                inside_moving(moving_position, moving_size, m, moving_count[m], k, p[0], p[1], p[2], radius)
            )
        position[i] = body.position
        quaternion[i] = q
        velocity[i] = body.velocity
        rate[i] = body.rate
        throttle[i] = body.throttle

    @wp.kernel(module="unique", module_options=FORWARD_ONLY)
    def scan(
        offset: int,
        mask: wp.array(dtype=wp.bool),
        reach: float,
        boxes: wp.array2d(dtype=float),
        buckets: wp.array2d(dtype=int),
        azimuth: wp.array2d(dtype=wp.float64),
        beams: wp.array2d(dtype=float),
        map_index: wp.array(dtype=int),
        position: wp.array(dtype=wp.vec3),
        quaternion: wp.array(dtype=wp.vec4),
        ranges: wp.array3d(dtype=float),
    ):
        # On CUDA the second dimension is the azimuth; on a CPU it is 1 and one thread scans all around.
        local, first = wp.tid()
        i = offset + local
        if mask[i]:
            p = position[i]
            q = quaternion[i]
            scan_beams(
                boxes, buckets, azimuth, beams, map_index[i], p[0], p[1], p[2], q[0], q[1], q[2], q[3], reach,
                i, first, ranges,
            )  # fmt: skip

    return fly, scan


class WarpSimulator:
    """`Simulator` on Warp. See `navrl.sim.simulator.Simulator` for what its tensors mean."""

    def __init__(self, scene: Scene, settings: SimSettings) -> None:
        start_warp()
        self.scene, self.settings = scene, settings
        self.device = torch.device(settings.device)
        n, d = settings.num_envs, settings.decimation
        maps, kinds = scene.num_maps, scene.moving_origin.shape[1]
        azimuths, elevations = settings.lidar.shape

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        def constant(array: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.as_tensor(np.ascontiguousarray(array)).to(self.device, dtype)

        self.position = zeros(n, 3)
        self.quaternion = zeros(n, 4)
        self.quaternion[:, 0] = 1.0
        self.velocity = zeros(n, 3)
        self.angular_velocity = zeros(n, 3)
        self.throttle = zeros(n, 4)
        self.map_index = zeros(n, dtype=torch.int32)
        self.lidar = zeros(n, azimuths, elevations)
        self.trace = zeros(d, n, 3)
        self.static_contact = zeros(d, n, dtype=torch.uint8)
        self.moving_contact = zeros(d, n, dtype=torch.uint8)
        self.physics_step = 0  # taken so far; the clock of the moving obstacles

        origin = constant(scene.moving_origin.transpose(0, 2, 1))  # (M, 3, K)
        self.moving_size = constant(scene.moving_size.transpose(0, 2, 1))
        self.moving_velocity = zeros(maps, 3, kinds)
        self._moving_goal = zeros(maps, 3, kinds)
        self._moving_path = origin.repeat(d, 1, 1, 1)  # after each physics step of an action
        self.moving_position = self._moving_path[-1]
        self._command = zeros(n, 3)
        self._everyone = torch.ones(n, dtype=torch.bool, device=self.device)

        boxes, buckets = bucket_boxes(scene)
        world = [
            constant(boxes),
            constant(buckets, torch.int32),
            constant(settings.lidar.azimuth_table(), torch.float64),
            constant(settings.lidar.beam_table()),
        ]
        count = constant(scene.moving_count, torch.int32)
        dt = settings.step_seconds
        self._airframe = airframe(MODELS[settings.drone], dt)
        self._seed = int(np.random.SeedSequence([settings.seed, 1]).generate_state(1)[0] >> 1)

        fly, scan = beam_kernels(azimuths, elevations)
        wp_of = self._warp
        share = 1 if self.device.type == "cuda" else max(kinds, 1)
        self._move = self._record(
            move_obstacles,
            (maps, max(kinds, 1) // share),
            [
                share,
                wp_of(origin),
                wp_of(self.moving_size[:, 1].contiguous()),
                wp_of(count),
                wp.vec2(*settings.moving_speed),
                wp.vec3(*settings.moving_range),
                dt,
                max(1, int(REDRAW_SECONDS / dt + 1e-6)),
                self._seed,
                0,
                d,
                wp_of(self._moving_goal),
                wp_of(self.moving_velocity),
                wp_of(self._moving_path),
            ],
        )
        body = [
            wp_of(self.position, wp.vec3),
            wp_of(self.quaternion, wp.vec4),
            wp_of(self.velocity, wp.vec3),
            wp_of(self.angular_velocity, wp.vec3),
            wp_of(self.throttle, wp.vec4),
        ]
        world = [wp_of(t) for t in world]
        index = wp_of(self.map_index)

        def fly_slice(first: int, size: int) -> wp.Launch:
            moving = [wp_of(self._moving_path), wp_of(self.moving_size), wp_of(count)]
            events = [wp_of(self.trace, wp.vec3), wp_of(self.static_contact), wp_of(self.moving_contact)]
            command = wp_of(self._command, wp.vec3)
            head = [first, d, dt, settings.collision_radius, self._airframe]
            return self._record(fly, size, [*head, *world, *moving, command, index, *body, *events])

        def scan_slice(first: int, size: int, mask: torch.Tensor) -> wp.Launch:
            shape = (size, azimuths if self.device.type == "cuda" else 1)
            head = [first, wp_of(mask), settings.lidar.range]
            return self._record(scan, shape, [*head, *world, index, *body[:2], wp_of(self.lidar)])

        self._mask = torch.zeros(n, dtype=torch.bool, device=self.device)
        self._new_position, self._new_yaw = zeros(n, 3), zeros(n)
        self._new_map = zeros(n, dtype=torch.int32)
        fresh = [wp_of(self._mask), wp_of(self._new_position, wp.vec3), wp_of(self._new_yaw), wp_of(self._new_map)]
        self._place = self._record(place, n, [*fresh, self._airframe, *body, index])
        self._rescan = scan_slice(0, n, self._mask)

        self.crew = Crew(self.device, settings.threads)
        self._slices = [
            [fly_slice(first, size), scan_slice(first, size, self._everyone)] for first, size in self.crew.slices(n)
        ]

    def follow(self, make_launches: Callable[[int, int], list[wp.Launch]]) -> None:
        for (first, size), launches in zip(self.crew.slices(self.settings.num_envs), self._slices, strict=True):
            launches.extend(make_launches(first, size))

    def reset(self, mask: torch.Tensor, position: torch.Tensor, yaw: torch.Tensor, map_index: torch.Tensor) -> None:
        self._mask.copy_(mask)
        self._new_position.copy_(position)
        self._new_yaw.copy_(yaw)
        self._new_map.copy_(map_index)
        self._place.launch()
        self._rescan.launch()

    def step(self, velocity_command: torch.Tensor) -> None:
        self._command.copy_(velocity_command)
        self.crew.wake()
        if self.scene.moving_origin.shape[1]:
            self._move.set_param_by_name("step", self.physics_step)
            self._move.launch()
        self.physics_step += self.settings.decimation
        self.crew.run(self._slices)

    def state_dict(self) -> dict[str, torch.Tensor]:
        state = {name: getattr(self, name).clone() for name in self._state_names}
        state["physics_step"] = torch.tensor(self.physics_step)
        return state

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name in self._state_names:
            getattr(self, name).copy_(state[name])
        self.physics_step = int(state["physics_step"])

    _state_names = (
        "position", "quaternion", "velocity", "angular_velocity", "throttle", "map_index", "lidar", "trace",
        "static_contact", "moving_contact", "moving_velocity", "_moving_goal", "_moving_path",
    )  # fmt: skip

    def close(self) -> None:
        self.crew.close()

    def _warp(self, tensor: torch.Tensor, dtype: type | None = None) -> wp.array:
        return wp.from_torch(tensor, dtype=dtype)

    def _record(self, kernel: wp.Kernel, dim: int | tuple[int, ...], inputs: list) -> wp.Launch:
        """A launch to be repeated: its arguments are packed once, here."""
        return wp.launch(kernel, dim, inputs=inputs, device=str(self.device), record_cmd=True)
