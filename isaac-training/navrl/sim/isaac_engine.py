# pyright: reportInvalidTypeForm=false, reportMissingImports=false, reportOptionalMemberAccess=false, reportIndexIssue=false, reportAssignmentType=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
"""The Isaac engine: rigid bodies in PhysX, Isaac Lab's RayCaster, the same controller, obstacles and rules as in Warp.

Every map of the scene is a tile of one large world, and a drone flies in the tile of its map; code outside this file
sees map coordinates only. The quirks of Isaac Lab 3.0 stay in this file too: quaternions are x, y, z, w inside and
w, x, y, z at the interface; data are proxies; the sensor must be notified of a reset; without a CUDA driver there is no
pinned memory; if Isaac Sim is used, USD (`pxr`) must not be imported before it has started. Only one simulator of this
kind can exist in a process at a time.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import MISSING
from functools import cache
from types import TracebackType
from typing import ClassVar

import numpy as np
import torch
import warp as wp

from navrl.native.runtime import FORWARD_ONLY, start_warp
from navrl.sim.engine import Engine, inside_moving
from navrl.sim.isaac_check import SETUP, IsaacMissing
from navrl.sim.isaac_world import OBSTACLES, TERRAIN, add_obstacles, add_terrain, tile_origins
from navrl.sim.lidar import lidar_functions
from navrl.sim.quadrotor import GRAVITY, MODELS, Airframe, Body, controlled_wrench
from navrl.sim.scene import Scene
from navrl.sim.simulator import SimSettings, constant

start_warp()
if not wp.is_cuda_available():  # ovphysx requests pinned memory, which needs a CUDA driver
    _cpu = wp.get_device("cpu")
    _cpu.pinned_allocator = _cpu.default_allocator  # pyright: ignore[reportAttributeAccessIssue]

try:
    import isaaclab.sim as sim_utils
    from isaaclab.app import launch_simulation
    from isaaclab.assets import AssetBaseCfg, RigidObject, RigidObjectCfg
    from isaaclab.scene import InteractiveSceneCfg
    from isaaclab.sensors.ray_caster import RayCasterCfg
    from isaaclab.sensors.ray_caster.patterns import PatternBaseCfg
    from isaaclab.utils import configclass, instantiate
    from isaaclab_physx.sim.schemas import PhysxRigidBodyCfg
except Exception as error:  # a broken installation can fail in any way
    reason = str(error).strip().partition("\n")[0]
    fix = f"run: make clean-isaac, {SETUP}"
    raise IsaacMissing(f"Isaac Lab is broken ({type(error).__name__}: {reason}); {fix}") from error

for _name in ("isaaclab", "isaaclab_ov", "isaaclab_physx", "isaaclab_newton"):
    logging.getLogger(_name).setLevel(logging.WARNING)

DRONE_RADIUS = 0.05  # m: collision sphere in PhysX. Small and round, so that at any tilt a contact is detected (0.3 m
# around, 0.05 m below) before PhysX reacts to it; a reaction would matter only if flights continued after a contact


# --- Isaac Lab configuration --------------------------------------------------------------------------------------


def beam_directions(cfg: BeamsCfg, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return origins and directions (R, 3) of our beams, elevation varying fastest."""
    azimuth, elevation = np.meshgrid(cfg.azimuths, cfg.elevations, indexing="ij")
    flat = np.cos(elevation)
    way = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)], axis=-1).reshape(-1, 3)
    directions = torch.tensor(way, dtype=torch.float32, device=device)
    return torch.zeros_like(directions), directions


@configclass
class BeamsCfg(PatternBaseCfg):
    """Our beam layout as a RayCaster pattern."""

    func: object = beam_directions
    azimuths: list[float] = MISSING
    elevations: list[float] = MISSING


def physics_cfg(name: str) -> object:
    """Return Isaac Lab's configuration of an engine. Forces act once per step: with PhysX's default, spread over its
    iterations, a drone is 2 cm off after half a second from the semi-implicit Euler that NavRL was trained with."""
    if name == "ovphysx":
        from isaaclab_ov.physics import OvPhysxCfg

        return OvPhysxCfg(enable_external_forces_every_iteration=False)
    if name == "newton":
        from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg

        solver = MJWarpSolverCfg(njmax=100, nconmax=40, use_mujoco_contacts=False)
        return NewtonCfg(solver_cfg=solver, use_cuda_graph=False)
    from isaaclab_physx.physics import PhysxCfg

    return PhysxCfg(enable_external_forces_every_iteration=False)


# --- the process-wide runtime -------------------------------------------------------------------------------------

_runtime = contextlib.ExitStack()  # Isaac Sim itself, where used: started once, closed at program exit
_started: str | None = None


def start_runtime(cfg: object, physics: str, window: bool, device: str) -> None:
    """Start the runtime that the physics needs, once per process; ovphysx needs none."""
    global _started
    if _started is None:
        arguments = {"headless": not window, "device": device}
        _runtime.enter_context(launch_simulation(cfg, arguments | ({"visualizer": "kit"} if window else {})))
        _started = physics
    elif _started != physics:
        raise ValueError(f"this process already runs {_started}; sim.physics={physics} needs a separate process")


def leave_runtime(kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
    """Close Isaac Sim at program exit, passing on any exception; this ends the process with the matching exit code."""
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    _runtime.__exit__(kind, error, trace)


# --- kernels ------------------------------------------------------------------------------------------------------


@wp.kernel(module="unique", module_options=FORWARD_ONLY)
def control(
    drone: Airframe,
    dt: float,
    damped: int,  # 1: the engine damps velocities itself; 0: damping is applied as a force
    command: wp.array(dtype=wp.vec3),
    pose: wp.array(dtype=wp.transformf),
    twist: wp.array(dtype=wp.spatial_vectorf),
    throttle: wp.array(dtype=wp.vec4),
    force: wp.array2d(dtype=wp.vec3),
    torque: wp.array2d(dtype=wp.vec3),
):
    i = wp.tid()
    c = command[i]
    if not (wp.isfinite(c[0]) and wp.isfinite(c[1]) and wp.isfinite(c[2])):
        c = wp.vec3()
    v = twist[i]
    body = Body()
    body.rotation = wp.transform_get_rotation(pose[i])
    body.velocity = wp.vec3(v[0], v[1], v[2])
    body.rate = wp.quat_rotate_inv(body.rotation, wp.vec3(v[3], v[4], v[5]))
    body.throttle = throttle[i]
    wrench = controlled_wrench(drone, body, c)
    throttle[i] = wrench.throttle
    push = wp.vec3(0.0, 0.0, wrench.thrust)
    turn = wrench.torque
    if damped == 0:
        lost = 1.0 - drone.keep
        down = wp.quat_rotate_inv(body.rotation, wp.vec3(0.0, 0.0, -GRAVITY * drone.mass))
        glide = wp.quat_rotate_inv(body.rotation, body.velocity)
        push -= lost * (push + down + glide * (drone.mass / dt))
        turn -= lost * (turn + wp.cw_mul(drone.inertia, body.rate) / dt)
    force[i, 0] = push
    torque[i, 0] = turn


@wp.kernel(module="unique", module_options=FORWARD_ONLY)
def turn_beams(
    drones: wp.array(dtype=wp.int64),
    pose: wp.array(dtype=wp.transformf),
    level: wp.array(dtype=wp.vec3),
    directions: wp.array2d(dtype=wp.vec3),
):
    """Rotate beams by the yaw of their drone only. Isaac Lab has no such mode: its `yaw` rotates only the ray origins.
    In double precision, as in the Warp engine."""
    i, r = wp.tid()
    q = wp.transform_get_rotation(pose[int(drones[i])])
    x, y, z, w = wp.float64(q[0]), wp.float64(q[1]), wp.float64(q[2]), wp.float64(q[3])
    c = w * w + x * x - y * y - z * z
    s = wp.float64(2.0) * (w * z + x * y)
    length = wp.sqrt(c * c + s * s)
    b = level[r]
    bx, by = wp.float64(b[0]), wp.float64(b[1])
    directions[i, r] = wp.vec3(float((c * bx - s * by) / length), float((s * bx + c * by) / length), b[2])


@cache
def record_kernel(azimuths: int, elevations: int) -> wp.Kernel:
    """Build the kernel that records state (map coordinates) and contacts after a physics step, for a beam layout."""
    _, beam_touches = lidar_functions(azimuths, elevations)

    @wp.kernel(module="unique", module_options=FORWARD_ONLY)
    def record(
        substep: int,
        radius: float,
        origins: wp.array(dtype=wp.vec3),
        boxes: wp.array2d(dtype=float),
        buckets: wp.array2d(dtype=int),
        azimuth: wp.array2d(dtype=wp.float64),
        beams: wp.array2d(dtype=float),
        moving_position: wp.array4d(dtype=float),
        moving_size: wp.array3d(dtype=float),
        moving_count: wp.array(dtype=int),
        map_index: wp.array(dtype=int),
        pose: wp.array(dtype=wp.transformf),
        twist: wp.array(dtype=wp.spatial_vectorf),
        position: wp.array(dtype=wp.vec3),
        quaternion: wp.array(dtype=wp.vec4),
        velocity: wp.array(dtype=wp.vec3),
        rate: wp.array(dtype=wp.vec3),
        trace: wp.array2d(dtype=wp.vec3),
        static_contact: wp.array2d(dtype=wp.uint8),
        moving_contact: wp.array2d(dtype=wp.uint8),
    ):
        i = wp.tid()
        m = map_index[i]
        p = wp.transform_get_translation(pose[i]) - origins[m]
        r = wp.transform_get_rotation(pose[i])
        q = wp.vec4(r[3], r[0], r[1], r[2])
        v = twist[i]
        position[i] = p
        quaternion[i] = q
        velocity[i] = wp.vec3(v[0], v[1], v[2])
        rate[i] = wp.quat_rotate_inv(r, wp.vec3(v[3], v[4], v[5]))
        trace[substep, i] = p
        static_contact[substep, i] = wp.uint8(
            beam_touches(boxes, buckets, azimuth, beams, m, p[0], p[1], p[2], q[0], q[1], q[2], q[3], radius)
        )
        moving_contact[substep, i] = wp.uint8(
            inside_moving(moving_position, moving_size, m, moving_count[m], substep, p[0], p[1], p[2], radius)
        )

    return record  # pyright: ignore[reportReturnType]


# --- the engine ---------------------------------------------------------------------------------------------------


class IsaacSimulator(Engine):
    """`Simulator` on Isaac Lab. Physics and LiDAR are Isaac's; contacts are detected at every physics step by the
    rule and code of the Warp engine (a RayCaster scan per physics step would cost several times the rest)."""

    drone_axes: ClassVar[dict[str, int | None]] = {**Engine.drone_axes, "world_pose": 0, "world_twist": 0}

    def __init__(self, scene: Scene, settings: SimSettings) -> None:
        if sim_utils.SimulationContext.instance() is not None:
            raise RuntimeError("only one Isaac simulator can exist in a process; close the previous one")
        cfg = sim_utils.SimulationCfg(
            dt=settings.step_seconds, device=settings.device, gravity=(0.0, 0.0, -GRAVITY),
            physics=physics_cfg(settings.physics), render_interval=settings.decimation,
        )  # fmt: skip
        start_runtime(cfg, settings.physics, settings.window, settings.device)
        n = settings.num_envs
        device = torch.device(settings.device)
        # World coordinates, x, y, z and x, y, z, w: subtracting a tile's origin and adding it back loses bits.
        self.world_pose = torch.zeros(n, 7, device=device)
        self.world_twist = torch.zeros(n, 6, device=device)
        super().__init__(scene, settings)
        self._open = True
        origins = tile_origins(scene.num_maps, settings.lidar.range)
        self._origins = constant(origins, device)
        self._isaac = sim_utils.SimulationContext(cfg)
        try:
            self._build(scene, origins)
        except BaseException:
            self.close()
            raise
        everyone = torch.arange(n, device=device)
        somewhere = torch.tensor([0.0, -22.0, 2.0], device=device).expand(n, 3)
        self.reset(everyone, somewhere, torch.zeros(n, device=device), (everyone % scene.num_maps).int())

    def reset(self, drones: torch.Tensor, position: torch.Tensor, yaw: torch.Tensor, map_index: torch.Tensor) -> None:
        self.check_rows(drones, position, yaw, map_index)
        real = (drones >= 0) & (drones < self.settings.num_envs) & (map_index >= 0) & (map_index < self.scene.num_maps)
        drones, maps = drones[real].to(self.device).long(), map_index[real].to(self.device).long()
        if len(drones) == 0:
            return
        half = 0.5 * yaw[real].to(self.device)
        position = position[real].to(self.device)
        self.world_pose[drones] = 0.0
        self.world_pose[drones, :3] = position + self._origins[maps]
        self.world_pose[drones, 5], self.world_pose[drones, 6] = half.sin(), half.cos()
        self.world_twist[drones] = 0.0
        self.throttle[drones] = self.airframe.hover_throttle
        self.map_index[drones] = maps.int()
        self.position[drones] = position
        self.quaternion[drones] = self.world_pose[drones][:, [6, 3, 4, 5]]
        self.velocity[drones] = self.angular_velocity[drones] = 0.0
        self._put(drones)

    def step(self, velocity_command: torch.Tensor) -> None:
        self.command.copy_(velocity_command)
        self.moving.advance(self.physics_step)
        self.physics_step += self.settings.decimation
        self._move_bodies()
        for substep in range(self.settings.decimation):
            pose, twist = self._bodies()
            head = [self.airframe, self.settings.step_seconds, int(self.settings.physics != "newton"), self._command]
            inputs = [*head, pose, twist, self._throttle, self._force, self._torque]
            wp.launch(control, self.settings.num_envs, inputs, device=self._on)
            self._drone.permanent_wrench_composer.set_forces_and_torques_index(forces=self._force, torques=self._torque)
            self._drone.write_data_to_sim()
            self._isaac.step(render=False)
            self._drone.update(self.settings.step_seconds)
            inputs = [substep, *self._before, *self._bodies(), *self._after]
            wp.launch(self._record, self.settings.num_envs, inputs, device=self._on)
        pose, twist = self._bodies()
        self.world_pose.copy_(wp.to_torch(pose))
        self.world_twist.copy_(wp.to_torch(twist))
        if self.settings.window:
            self._isaac.render()
        self._sensor.update(self.settings.step_seconds * self.settings.decimation)
        self.scan()
        self.team.run(self._slices, self._prepared)

    def scan(self) -> None:
        """Compute ranges from the hit points of Isaac's RayCaster; beams without a hit end at infinity."""
        inputs = [wp.from_torch(self._drone_of), self._bodies()[0], self._level, self._directions]
        wp.launch(turn_beams, self._directions.shape, inputs, device=self._on)
        seen = self._sensor.data
        length = (seen.ray_hits_w.torch - seen.pos_w.torch.unsqueeze(1)).norm(dim=-1)
        self.lidar[self._drone_of] = length.clamp_(max=self.settings.lidar.range).view_as(self.lidar)
        for launch in self._moving_scan:
            launch.run()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state_dict(state)
        self._put(torch.arange(self.settings.num_envs, device=self.device))
        self._move_bodies()

    def obstacle_bodies(self) -> torch.Tensor | None:
        """Return the PhysX positions of the moving obstacles in map coordinates, map by map; None without any."""
        if self._obstacles is None:
            return None
        owner = self.real_obstacles.nonzero()[:, 0]
        return self._obstacles.data.root_link_pose_w.torch[:, :3] - self._origins[owner]

    def close(self) -> None:
        """Tear down the world; another one can be built afterwards."""
        if not self._open:
            return
        from isaaclab.sensors.ray_caster.base_ray_caster import BaseRayCaster

        self._open = False
        self._drone = self._sensor = self._obstacles = self._interactive = None
        with contextlib.suppress(Exception):
            self._isaac.stop()
        BaseRayCaster.meshes.clear()  # otherwise the next world's beams might hit this one's boxes
        sim_utils.SimulationContext.clear_instance()

    # --- internals ----------------------------------------------------------------------------------------------

    def _build(self, scene: Scene, origins: np.ndarray) -> None:
        from pxr import UsdGeom

        settings, model = self.settings, MODELS[self.settings.drone]
        stage = self._isaac.stage
        UsdGeom.Xform.Define(stage, "/World")
        add_terrain(stage, scene, origins)
        # Newton has no kinematic bodies outside its environments; there, obstacles count as contacts but are invisible.
        bodies = add_obstacles(stage, scene, origins) if settings.physics != "newton" else 0
        if settings.window:
            light = sim_utils.DomeLightCfg(intensity=2000.0)
            light.func("/World/light", light)
            x, y, _ = origins[0].tolist()
            self._isaac.set_camera_view((x, y - 45.0, 35.0), (x, y, 0.0))  # the first map
        physx = PhysxRigidBodyCfg(
            linear_damping=model.damping, angular_damping=model.damping, sleep_threshold=0.0,
            stabilization_threshold=0.0, enable_gyroscopic_forces=True,
        )  # fmt: skip
        spawn = sim_utils.SphereCfg(
            radius=DRONE_RADIUS,
            rigid_props=[sim_utils.UsdPhysicsRigidBodyCfg(), physx],
            mass_props=sim_utils.MassCfg(mass=model.mass),
            collision_props=sim_utils.UsdPhysicsCollisionCfg(),
        )
        world = InteractiveSceneCfg(num_envs=settings.num_envs, env_spacing=0.0)
        world.terrain = AssetBaseCfg(prim_path=TERRAIN, spawn=None)  # exists already; Newton sees only named assets
        world.drone = RigidObjectCfg(prim_path="{ENV_REGEX_NS}/Drone", spawn=spawn)
        spec = settings.lidar
        beams = BeamsCfg(azimuths=spec.azimuth_angles().tolist(), elevations=spec.elevation_angles().tolist())
        world.sensor = RayCasterCfg(
            prim_path="{ENV_REGEX_NS}/Drone", mesh_prim_paths=[TERRAIN], pattern_cfg=beams,
            ray_alignment="world", max_distance=settings.lidar.range, global_world_only=True,
        )  # fmt: skip
        self._interactive = instantiate(world)
        self._drone, self._sensor = self._interactive["drone"], self._interactive["sensor"]
        self._obstacles = RigidObject(RigidObjectCfg(prim_path=f"{OBSTACLES}/obstacle_.*")) if bodies else None
        self._isaac.reset()

        n = settings.num_envs
        inertia = torch.diag(torch.tensor(model.inertia)).flatten().expand(n, 1, 9).contiguous().to(self.device)
        self._drone.set_inertias_index(inertias=inertia)
        if abs((mass := self._drone.data.body_mass.torch.view(-1)[0].item()) - model.mass) > 1e-6:
            raise RuntimeError(f"{settings.physics} gave the drone a mass of {mass} kg")

        self._on = str(self.device)
        self._command, self._throttle = wp.from_torch(self.command, wp.vec3), wp.from_torch(self.throttle, wp.vec4)
        self._force, self._torque = (wp.zeros((n, 1), dtype=wp.vec3, device=self._on) for _ in range(2))
        self._directions = self._sensor.ray_directions.warp  # (N, R): directions of the RayCaster, rotated by us
        self._level = wp.from_torch(beam_directions(beams, self._on)[1], wp.vec3)
        self._drone_of, self._row_of = self._match_sensor()
        self._everyone = torch.arange(n, dtype=torch.int32, device=self.device)
        self._moving_scan = self.moving_scan(0, n, self._everyone)
        self._record = record_kernel(*settings.lidar.shape)
        arrays = [wp.from_torch(table) for table in (*self.beam_tables, self.moving.path, self.moving.size)]
        numbers = [wp.from_torch(self.moving.count), wp.from_torch(self.map_index)]
        self._before = [settings.collision_radius, wp.from_torch(self._origins, wp.vec3), *arrays, *numbers]
        self._after = [
            wp.from_torch(self.position, wp.vec3), wp.from_torch(self.quaternion, wp.vec4),
            wp.from_torch(self.velocity, wp.vec3), wp.from_torch(self.angular_velocity, wp.vec3),
            wp.from_torch(self.trace, wp.vec3), wp.from_torch(self.static_contact), wp.from_torch(self.moving_contact),
        ]  # fmt: skip
        # Mask of obstacles that are not padding; bodies are in the same order, map by map.
        slots = np.arange(scene.moving_size.shape[1])
        self.real_obstacles = torch.as_tensor(slots < scene.moving_count[:, None]).to(self.device)  # (M, K)
        self._body_pose = torch.zeros(bodies, 7, device=self.device)
        self._body_pose[:, 6] = 1.0

    def _match_sensor(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the drone of each sensor row and the row of each drone. They are numbered differently: bodies as
        0, 1, 2, … and sensors, at least with ovphysx, as 0, 1, 10, 11, …; so they are matched by position."""
        n = self.settings.num_envs
        self.world_pose[:, 0] = torch.arange(n, device=self.device)
        self.world_pose[:, 6] = 1.0
        self._drone.write_root_pose_to_sim_index(root_pose=self.world_pose)
        self._isaac.forward()
        self._sensor.reset()
        drone_of = self._sensor.data.pos_w.torch[:, 0].round().long()
        if not torch.equal(drone_of.sort().values, torch.arange(n, device=self.device)):
            raise RuntimeError("Isaac Lab's RayCaster does not follow the drones")
        return drone_of, drone_of.argsort().int()

    def _bodies(self) -> tuple[wp.array, wp.array]:
        """Return poses and velocities of the drones in PhysX."""
        return self._drone.data.root_link_pose_w.warp, self._drone.data.root_com_vel_w.warp

    def _put(self, drones: torch.Tensor) -> None:
        """Write the state of these drones to PhysX and rescan."""
        some = drones.int()
        self._drone.write_root_pose_to_sim_index(root_pose=self.world_pose[drones], env_ids=some)
        self._drone.write_root_velocity_to_sim_index(root_velocity=self.world_twist[drones], env_ids=some)
        self._isaac.forward()
        self._sensor.reset(self._row_of[drones])  # otherwise its next scan is from the old position
        self.scan()

    def _move_bodies(self) -> None:
        """Move obstacle bodies, once per action: nothing in PhysX collides with them, they are only for display."""
        if self._obstacles is not None:
            world = self.moving.position.transpose(1, 2) + self._origins[:, None]  # (M, K, 3)
            self._body_pose[:, :3] = world[self.real_obstacles]
            self._obstacles.write_root_pose_to_sim_index(root_pose=self._body_pose)
