# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false
"""How fast is the environment on this machine? One run, everything measured side by side; JSON on the last line.

    python scripts/bench/env.py [quick=true]

A step is a full one: moving obstacles, controller, rotors, rigid body, contacts, LiDAR, observation, reward, done and
the reset of drones that finished, through TorchRL's `step_and_maybe_reset`. Drones fly straight at their goals, crash
and start again, after a warm-up that spreads them over the maps. Figures are the best of several rounds, because other
people's work on the machine only ever adds time; ratios compare rounds of the same run.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import psutil
import torch
import warp as wp

from navrl.cli import options
from navrl.native.runtime import start_warp
from navrl.sim.scene import VERTICES, Scene, generate_scene, paint_field, place_boxes
from navrl.sim.warp_engine import WarpSimulator
from navrl.task.env import NavigationEnv
from navrl.train.settings import compose_config, read_eval

DEFAULTS = read_eval(compose_config("eval", ["device=cpu", "reward=navrl"]))  # all costly terms of the reward
WARM_UP = 700  # steps: by then drones are all over the maps


class Flight:
    """One environment kept flying."""

    def __init__(self, scene: Scene, num_envs: int, threads: int, decimation: int = 1) -> None:
        settings = replace(DEFAULTS.sim, num_envs=num_envs, threads=threads, decimation=decimation)
        self.env = NavigationEnv(WarpSimulator(scene, settings), DEFAULTS.task)
        self.data = self.env.reset()

    def fly(self, steps: int) -> None:
        for _ in range(steps):
            self.data["agents", "action"] = 2.0 * self.data["agents", "observation", "direction"][:, 0]
            _, self.data = self.env.step_and_maybe_reset(self.data)

    def rate(self, steps: int) -> float:
        """Drone steps per second of one round."""
        start = time.perf_counter()
        self.fly(steps)
        return steps * self.env.num_envs / (time.perf_counter() - start)

    def close(self) -> None:
        self.env.close()


def best_rates(flights: dict, rounds: int) -> dict:
    """Best rate of each flight; rounds alternate, so that all meet the same neighbours."""
    best = dict.fromkeys(flights, 0.0)
    for _ in range(rounds):
        for name, flight in flights.items():
            best[name] = max(best[name], flight.rate(max(5, min(100, 60_000 // flight.env.num_envs))))
    return best


def best_time(run: Callable[[], None], rounds: int, repeat: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeat):
            run()
        times.append((time.perf_counter() - start) / repeat)
    return min(times)


# --- the peer: a triangle mesh, as Isaac Lab's RayCaster uses ------------------------------------------------------


@wp.kernel
def cast(
    mesh: wp.uint64,
    position: wp.array(dtype=wp.vec3),
    yaw: wp.array(dtype=float),
    beams: wp.array(dtype=wp.vec3),
    reach: float,
    ranges: wp.array2d(dtype=float),
):
    i, b = wp.tid()
    turn = wp.quat_from_axis_angle(wp.vec3(0.0, 0.0, 1.0), yaw[i])
    query = wp.mesh_query_ray(mesh, position[i], wp.quat_rotate(turn, beams[b]), reach)
    ranges[i, b] = wp.where(query.result, query.t, reach)


def height_field_mesh(seed: int, count: int) -> wp.Mesh:
    """The height field of map 0 as a grid of triangles; low vertices are pulled to high ones, so that walls stand."""
    field = paint_field(place_boxes([np.random.default_rng([seed, 0, 0])], np.array([count])))[0].astype(float) / 10
    heights = np.pad(field, 1)
    x, y = np.meshgrid(np.arange(VERTICES + 2), np.arange(VERTICES + 2), indexing="ij")
    px, py = x.astype(float), y.astype(float)
    for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
        step = np.roll(heights, (-dx, -dy), (0, 1)) - heights > 0.5
        px = np.where(step & (px == x), x + dx, px)
        py = np.where(step & (py == y), y + dy, py)
    last = VERTICES + 1
    px = np.select([x == 0, x == last], [-50, last + 50], px)  # the outer ring reaches to the end of the ground
    py = np.select([y == 0, y == last], [-50, last + 50], py)
    points = np.stack([px / 10 - 20, py / 10 - 20, heights], -1).reshape(-1, 3)
    side = VERTICES + 2
    corner = (x[:-1, :-1] * side + y[:-1, :-1]).reshape(-1)
    faces = np.stack([corner, corner + side, corner + side + 1, corner, corner + side + 1, corner + 1], -1)
    return wp.Mesh(wp.array(points, dtype=wp.vec3, device="cpu"), wp.array(faces.ravel(), dtype=int, device="cpu"))


def compare_with_mesh(scene_seed: int, rounds: int) -> dict[str, float]:
    """Million rays per second of our scan and of a triangle mesh, one thread each, same map, poses and beams."""
    n = 1024
    scene = generate_scene(scene_seed, 1, 350, 0)
    sim = WarpSimulator(scene, replace(DEFAULTS.sim, num_envs=n, threads=1))
    rng = np.random.default_rng(0)
    position = torch.tensor(np.column_stack([rng.uniform(-20, 20, (n, 2)), rng.uniform(0.5, 3.5, n)])).float()
    yaw = torch.tensor(rng.uniform(-3, 3, n)).float()
    sim.reset(torch.arange(n), position, yaw, torch.zeros(n, dtype=torch.int32))

    spec = sim.settings.lidar
    azimuth = np.repeat(spec.azimuth_angles(), spec.vbeams)
    elevation = np.tile(spec.elevation_angles(), spec.azimuths)
    beams = np.stack([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)], -1)
    mesh = height_field_mesh(scene_seed, 350)
    ranges = torch.zeros(n, len(beams))
    inputs = [mesh.id, wp.from_torch(position, dtype=wp.vec3), wp.from_torch(yaw), wp.array(beams, dtype=wp.vec3)]
    launch = wp.launch(
        cast, (n, len(beams)), [*inputs, spec.range, wp.from_torch(ranges)], device="cpu", record_cmd=True
    )
    assert launch is not None  # because of record_cmd
    mesh_time = best_time(launch.launch, max(3, rounds // 3), 1)
    our_time = best_time(sim.scan, rounds, 20)
    rays = n * len(beams) / 1e6
    ours = sim.lidar.view(n, -1)
    outside = ours.min(dim=1).values > 0  # a drone inside a box sees its walls from within on a mesh
    agree = ((ranges - ours)[outside].abs() < 0.01).float().mean().item()
    sim.close()
    return {
        "lidar_mrays_per_s": rays / our_time,
        "mesh_lidar_mrays_per_s": rays / mesh_time,
        "speedup_vs_mesh_lidar": mesh_time / our_time,
        "rays_agreeing_with_mesh": agree,
    }


# --- scaling and memory -------------------------------------------------------------------------------------------


def scaling(cores: int, quick: bool) -> dict[str, dict[str, float]]:
    """Steps per second over numbers of drones and of boxes; all sizes take turns."""
    scene = generate_scene(0, 64)
    flights = {("drones", n): Flight(scene, n, cores) for n in (64, 256, 1024, 4096, 16384)}
    flights |= {("boxes", n): Flight(generate_scene(0, 64, n), 1024, cores) for n in (0, 100, 350, 1000)}
    for flight in flights.values():
        flight.fly(WARM_UP if flight.env.num_envs <= 1024 else WARM_UP // 4)
    best = best_rates(flights, 3 if quick else 20)
    for (what, n), rate in best.items():
        print(f"  {n:6d} {what:7s}  {rate / 1e6:6.2f} M steps/s")
        flights[what, n].close()
    return {
        f"steps_per_s_by_{kind}": {str(n): rate for (what, n), rate in best.items() if what == kind}
        for kind in ("drones", "boxes")
    }


def memory_per_drone() -> float:
    """Resident bytes that 16 384 drones add, each."""
    scene = generate_scene(0, 64)
    process = psutil.Process()
    Flight(scene, 64, 1).close()  # what one environment costs whatever its size
    gc.collect()
    before = process.memory_info().rss
    flight = Flight(scene, 16384, 1)
    flight.fly(3)
    after = process.memory_info().rss
    flight.close()
    return (after - before) / 16384


def main() -> None:
    quick = options(__doc__, quick=False).quick  # fewer rounds: seconds instead of two minutes
    cores = min(2, os.cpu_count() or 1)
    torch.set_num_threads(cores)
    start_warp()
    result: dict = {"cpu_count": os.cpu_count(), "drones": 1024, "static": 350, "moving": 80}

    print("memory ...")
    result["memory_per_drone_bytes"] = round(memory_per_drone())
    print(f"  {result['memory_per_drone_bytes'] / 1024:6.1f} KiB per drone")

    scene = generate_scene(0, 64)
    flights = {
        "1 thread": Flight(scene, 1024, 1),
        "2 threads": Flight(scene, 1024, cores),
        "2 threads, 4 physics steps an action": Flight(scene, 1024, cores, 4),
    }
    for flight in flights.values():
        flight.fly(WARM_UP)
    best = dict.fromkeys(flights, 0.0)

    def measure() -> None:
        """Again and again during the run: a neighbour's busy minute must not decide the figure."""
        for name, rate in best_rates(flights, 5 if quick else 25).items():
            best[name] = max(best[name], rate)

    print("full environment steps, 1024 drones, 350 boxes, 80 moving obstacles ...")
    measure()
    print("LiDAR against a triangle mesh (wp.Mesh), one thread ...")
    result |= compare_with_mesh(0, 6 if quick else 20)
    ours, mesh, ratio = (result[k] for k in ("lidar_mrays_per_s", "mesh_lidar_mrays_per_s", "speedup_vs_mesh_lidar"))
    print(f"  ours {ours:.0f}, mesh {mesh:.1f} million rays/s: {ratio:.0f} times")
    print(f"  {100 * result['rays_agreeing_with_mesh']:.1f} % of rays agree within 1 cm")
    measure()
    print("scaling ...")
    result |= scaling(cores, quick)
    measure()

    one, two, held = best.values()
    result["steps_per_s_1_thread"], result["steps_per_s_2_threads"] = one, two
    result["thread_speedup"] = two / one
    result["physics_steps_per_s_decimation_4"] = 4 * held
    print("full environment steps, 1024 drones, 350 boxes, 80 moving obstacles:")
    for name, rate in best.items():
        print(f"  {name:38s} {rate / 1e6:6.2f} M steps/s")
    for flight in flights.values():
        flight.close()
    print(json.dumps({key: _rounded(value) for key, value in result.items()}))


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
