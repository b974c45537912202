# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAssignmentType=false
"""The built-in engine: drones, moving obstacles and LiDAR as Warp kernels, one source for CPU and CUDA."""

from __future__ import annotations

from functools import cache

import torch
import warp as wp

from navrl.native.launch import Recorded, number_at
from navrl.native.runtime import FORWARD_ONLY
from navrl.sim.engine import Engine, inside_moving
from navrl.sim.lidar import lidar_functions
from navrl.sim.quadrotor import Airframe, Body, controlled_wrench, integrate
from navrl.sim.scene import Scene
from navrl.sim.simulator import SimSettings

wp.set_module_options(FORWARD_ONLY)


@wp.kernel
def place(
    drones: wp.uint64,  # addresses of the drone indices and, row by row, of their new poses and maps
    new_position: wp.uint64,
    new_yaw: wp.uint64,
    new_map: wp.uint64,
    maps: int,
    drone: Airframe,
    position: wp.array(dtype=wp.vec3),
    quaternion: wp.array(dtype=wp.vec4),
    velocity: wp.array(dtype=wp.vec3),
    rate: wp.array(dtype=wp.vec3),
    throttle: wp.array(dtype=wp.vec4),
    map_index: wp.array(dtype=int),
):
    r = wp.tid()
    i = number_at(drones, r)
    m = number_at(new_map, r)
    if i < 0 or i >= position.shape[0] or m < 0 or m >= maps:
        return  # no such drone or map: write nothing
    at = wp.array(ptr=new_position, shape=(r + 1,), dtype=wp.vec3)
    yaw = wp.array(ptr=new_yaw, shape=(r + 1,), dtype=float)
    h = drone.hover_throttle
    half = 0.5 * yaw[r]
    position[i] = at[r]
    quaternion[i] = wp.vec4(wp.cos(half), 0.0, 0.0, wp.sin(half))
    velocity[i] = wp.vec3()
    rate[i] = wp.vec3()
    throttle[i] = wp.vec4(h, h, h, h)
    map_index[i] = m


@cache
def beam_kernels(azimuths: int, elevations: int) -> tuple[wp.Kernel, wp.Kernel]:
    """Build the two kernels that depend on the beam layout: `fly` (physics and contacts) and `scan` (LiDAR)."""
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
        drones: wp.uint64,  # address of the drone indices
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
        # On CUDA the second dimension is the azimuth; on a CPU it is 1 and one thread scans all azimuths.
        local, first = wp.tid()
        i = number_at(drones, offset + local)
        if i < 0 or i >= position.shape[0]:
            return
        p = position[i]
        q = quaternion[i]
        scan_beams(
            boxes, buckets, azimuth, beams, map_index[i], p[0], p[1], p[2], q[0], q[1], q[2], q[3], reach,
            i, first, ranges,
        )  # fmt: skip

    return fly, scan  # pyright: ignore[reportReturnType]


class WarpSimulator(Engine):
    """`Simulator` on Warp. See `navrl.sim.simulator.Simulator` for the meaning of its tensors."""

    def __init__(self, scene: Scene, settings: SimSettings) -> None:
        super().__init__(scene, settings)
        self._make_launches()

    def reset(self, drones: torch.Tensor, position: torch.Tensor, yaw: torch.Tensor, map_index: torch.Tensor) -> None:
        count = len(drones)
        if count == 0:
            return
        self.check_rows(drones, position, yaw, map_index)
        drones, map_index = self._plain(drones, torch.int32), self._plain(map_index, torch.int32)
        position, yaw = self._plain(position, torch.float32), self._plain(yaw, torch.float32)
        self._fresh = drones, position, yaw, map_index  # keeps them alive: launches hold only addresses
        self._place.set("drones", drones.data_ptr())
        self._place.set("new_position", position.data_ptr())
        self._place.set("new_yaw", yaw.data_ptr())
        self._place.set("new_map", map_index.data_ptr())
        self._place.resize(count)
        self._place.run()
        for scan, dim in zip(self._rescan, ((count, self._scan_width), count), strict=False):
            scan.set("drones", drones.data_ptr())
            scan.resize(dim)
            scan.run()

    def scan(self) -> None:
        """Scan from the current pose of every drone; `step` and `reset` do this themselves."""
        for launches in self._scans:
            for launch in launches:
                launch.run()

    def step(self, velocity_command: torch.Tensor) -> None:
        self.command.copy_(velocity_command)
        self.moving.advance(self.physics_step)
        self.physics_step += self.settings.decimation
        self.team.run(self._slices, self._prepared)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state_dict(state)
        self.scan()  # ranges follow from the poses and are not saved

    # --- internals ----------------------------------------------------------------------------------------------

    def _make_launches(self) -> None:
        settings, n, dt = self.settings, self.settings.num_envs, self.settings.step_seconds
        on_cuda = self.device.type == "cuda"
        azimuths, elevations = settings.lidar.shape
        self._scan_width = azimuths if on_cuda else 1
        body = [
            wp.from_torch(self.position, wp.vec3),
            wp.from_torch(self.quaternion, wp.vec4),
            wp.from_torch(self.velocity, wp.vec3),
            wp.from_torch(self.angular_velocity, wp.vec3),
            wp.from_torch(self.throttle, wp.vec4),
        ]

        fly, scan = beam_kernels(azimuths, elevations)

        def fly_slice(first: int, size: int) -> Recorded:
            head = [first, settings.decimation, dt, settings.collision_radius, self.airframe]
            obstacles = [self.moving.path, self.moving.size, self.moving.count]
            command = wp.from_torch(self.command, wp.vec3)
            events = [wp.from_torch(self.trace, wp.vec3), self.static_contact, self.moving_contact]
            inputs = [*head, *self.beam_tables, *obstacles, command, self.map_index, *body, *events]
            return Recorded(fly, size, inputs, self.device)

        def scan_slice(first: int, size: int, drones: torch.Tensor) -> list[Recorded]:
            inputs = [
                first,
                drones.data_ptr(),
                settings.lidar.range,
                *self.beam_tables,
                self.map_index,
                *body[:2],
                self.lidar,
            ]
            still = Recorded(scan, (size, self._scan_width), inputs, self.device)
            return [still, *self.moving_scan(first, size, drones)]

        self._everyone = torch.arange(n, dtype=torch.int32, device=self.device)
        head = [0, 0, 0, 0, self.scene.num_maps, self.airframe]
        self._place = Recorded(place, n, [*head, *body, self.map_index], self.device)
        self._rescan = scan_slice(0, n, self._everyone)
        self._scans = [scan_slice(*part, self._everyone) for part in self.team.slices(n)]
        parts = zip(self.team.slices(n), self._scans, strict=True)
        self._slices = [[fly_slice(*part), *scans] for part, scans in parts]
        self._prepared = self.team.prepare(self._slices)

    def _plain(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Convert `tensor` to what kernels read from an address; usually nothing needs converting."""
        if tensor.dtype is dtype and tensor.device == self.device and tensor.is_contiguous():
            return tensor
        return tensor.to(self.device, dtype).contiguous()
