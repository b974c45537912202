"""Do both engines fly alike? The same maps, start states and commands on Warp and on Isaac Lab; JSON on the last line.

    make parity                                             256 drones, 2 s of aggressive flight
    make parity ARGS='drones=64 physics=newton'

Starts are at rest among the obstacles, commands are velocities of up to 2 m/s along each axis, redrawn four times a
second. A flight is compared until it touches something in either engine: after that PhysX bounces where Warp does not.
The picture shows flights of both from above, one over the other.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navrl.cli import command, fail, options
from navrl.monitor.flights import pyplot, write_figure
from navrl.sim.engine import make_simulator
from navrl.sim.isaac_check import PHYSICS, IsaacMissing, check_isaac
from navrl.sim.scene import Scene, generate_scene
from navrl.sim.simulator import Simulator
from navrl.train.settings import compose_config, read_eval

HOLD_SECONDS, SPEED, CLEAR = 0.25, 2.0, 1.0  # s between commands, m/s along each axis, m around a start


def starts(warp: Simulator, scene: Scene, seed: int) -> tuple[torch.Tensor, ...]:
    """Places with nothing within CLEAR, spread over the maps; yaws; maps."""
    n, rng = warp.settings.num_envs, np.random.default_rng(seed)
    maps, yaw = torch.arange(n, dtype=torch.int32) % scene.num_maps, torch.tensor(rng.uniform(-3.1, 3.1, n)).float()
    position, bad = torch.zeros(n, 3), torch.arange(n)
    while len(bad):
        draw = np.column_stack([rng.uniform(-18, 18, (len(bad), 2)), rng.uniform(1.5, 2.5, len(bad))])
        position[bad] = torch.tensor(draw).float()
        warp.reset(torch.arange(n), position, yaw, maps)
        gap = (warp.moving_position[maps.long()][:, :2] - position[:, :2, None]).norm(dim=1).amin(1)
        bad = ((warp.lidar.flatten(1).amin(1) < CLEAR) | (gap < CLEAR)).nonzero().view(-1)
    return position, yaw, maps


def angle(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Between attitudes (n, 4), in degrees; by the sine of half of it, which is exact where the cosine is not."""
    w = (a * b).sum(-1)
    v = a[:, :1] * b[:, 1:] - b[:, :1] * a[:, 1:] - torch.linalg.cross(a[:, 1:], b[:, 1:])
    return torch.rad2deg(2.0 * torch.atan2(v.norm(dim=-1), w.abs()))


def events(sim: Simulator) -> torch.Tensor:
    """What happened to each drone in this step: 0 nothing, 1 touched a box, 2 a moving obstacle, 3 left the height."""
    height = sim.position[:, 2]
    out = torch.where((height < 0.2) | (height > 4.0), 3, 0)
    out = torch.where(sim.moving_contact[0].bool(), 2, out)
    return torch.where(sim.static_contact[0].bool(), 1, out)


def compare(drones: int, seconds: float, maps: int, physics: str, seed: int = 0) -> tuple[dict, dict]:
    """Fly both; the numbers, and paths (steps, drones, 3) for the picture."""
    scene = generate_scene(seed, maps, 350, 80)
    settings = read_eval(compose_config("eval", [f"env.num_envs={drones}", f"seed={seed}", "device=cpu"])).sim
    warp = make_simulator(scene, settings)
    isaac: Any = make_simulator(scene, replace(settings, engine="isaac", physics=physics))
    begin = starts(warp, scene, seed)
    for sim in (warp, isaac):
        sim.reset(torch.arange(drones), *begin)
    generator = torch.Generator().manual_seed(seed)
    hold = max(1, round(HOLD_SECONDS / settings.dt))
    flying = torch.ones(drones, dtype=torch.bool)
    first = {sim: torch.zeros(2, drones, dtype=torch.long) for sim in (warp, isaac)}  # event and step
    worst: dict[str, float] = dict.fromkeys(
        ("position_max_m", "velocity_max_mps", "attitude_max_deg", "moving_max_m"), 0.0
    )
    rays = near = 0
    paths = {"warp": [], "isaac": []}
    for step in range(round(seconds / settings.dt)):
        if step % hold == 0:
            command = SPEED * (2.0 * torch.rand(drones, 3, generator=generator) - 1.0)
        for name, sim in (("warp", warp), ("isaac", isaac)):
            sim.step(command)
            paths[name].append(sim.position.clone())
            now = events(sim)
            new = (first[sim][0] == 0) & (now > 0)
            first[sim][0] = torch.where(new, now, first[sim][0])
            first[sim][1] = torch.where(new, step, first[sim][1])
        flying &= (first[warp][0] == 0) & (first[isaac][0] == 0)
        a, b = ({key: getattr(sim, key)[flying] for key in COMPARED} for sim in (warp, isaac))
        if flying.any():
            found = {
                "position_max_m": (a["position"] - b["position"]).norm(dim=-1).max().item(),
                "velocity_max_mps": (a["velocity"] - b["velocity"]).norm(dim=-1).max().item(),
                "attitude_max_deg": angle(a["quaternion"], b["quaternion"]).max().item(),
                "moving_max_m": (warp.moving_position - isaac.moving_position).abs().max().item(),
            }
            worst = {key: max(value, found[key]) for key, value in worst.items()}
            rays += a["lidar"].numel()
            near += int(((a["lidar"] - b["lidar"]).abs() <= 1e-3).sum())
    # Why the others differ: from exactly Isaac's poses, does Warp see what Isaac saw?
    bodies = isaac.obstacle_bodies()  # where PhysX has them, in map coordinates
    if bodies is not None:
        told = warp.moving_position.transpose(1, 2)[isaac.real_obstacles]
        worst["moving_bodies_max_m"] = (bodies - told).abs().max().item()
    there = {name: getattr(isaac, name).clone() for name in ("position", "quaternion")}
    warp.load_state_dict({**warp.state_dict(), **there})
    equal = ((warp.lidar - isaac.lidar)[flying].abs() <= 1e-3).float().mean().item()
    isaac.close()
    same = (first[warp][0] == first[isaac][0]) & ((first[warp][1] - first[isaac][1]).abs() <= 1)
    result = worst | {
        "lidar_within_1mm": near / max(1, rays),
        "lidar_within_1mm_same_pose": equal,
        "rays": rays,
        "same_events": float(same.float().mean()),
        "flights_with_an_event": int((first[warp][0] > 0).sum()),
        "drones": drones,
        "seconds": seconds,
        "physics": physics,
    }
    return result, {name: torch.stack(path).numpy() for name, path in paths.items()} | {
        "maps": begin[2],
        "scene": scene,
    }


COMPARED = ("position", "velocity", "quaternion", "lidar")
LIMITS = {
    "position_max_m": ("position", 0.01, "m"), "velocity_max_mps": ("velocity", 0.02, "m/s"),
    "attitude_max_deg": ("attitude", 1.0, "°"), "moving_max_m": ("moving obstacles", 0.0, "m"),
    "moving_bodies_max_m": ("… their bodies", 1e-3, "m"),
}  # fmt: skip


def draw(flown: dict, path: Path) -> None:
    """Twelve flights from above: Warp broad, Isaac a thin line on it."""
    plt = pyplot()
    figure, axes = plt.subplots(3, 4, figsize=(13, 10))
    for drone, axis in enumerate(axes.flat):
        if drone >= flown["warp"].shape[1]:
            axis.set_axis_off()
            continue
        ours, theirs = flown["warp"][:, drone], flown["isaac"][:, drone]
        for x0, y0, x1, y1, _ in flown["scene"].boxes_of(int(flown["maps"][drone])):
            axis.fill([x0, x1, x1, x0], [y0, y0, y1, y1], color="#bbbbbb")
        axis.plot(*ours[:, :2].T, color="#9ec5e8", lw=6, solid_capstyle="round", label="Warp")
        axis.plot(*theirs[:, :2].T, color="#c0392b", lw=1.2, label="Isaac Lab")
        middle = ours[:, :2].mean(0)
        axis.set(xlim=middle[0] + np.array([-2.5, 2.5]), ylim=middle[1] + np.array([-2.5, 2.5]), aspect="equal")
        axis.tick_params(labelsize=6)
    axes[0, 0].legend(fontsize=8)
    figure.suptitle("The same commands on both engines, from above (m)")
    figure.tight_layout()
    write_figure(figure, path)


@command
def main() -> None:
    given = options(__doc__, drones=256, seconds=2.0, maps=8, physics="ovphysx", picture="runs/parity.png")
    if given.physics not in PHYSICS:
        fail(f"physics={given.physics}: must be one of {', '.join(PHYSICS)}")
    try:
        physics, _ = check_isaac(given.physics)
    except IsaacMissing as error:
        fail(str(error))
    result, flown = compare(given.drones, given.seconds, given.maps, physics)
    print(f"\n{given.drones} drones, {given.seconds:g} s, Warp against Isaac Lab with {physics}; the worst of all\n")
    alike = result["lidar_within_1mm"] >= 0.985
    for key, (name, limit, unit) in LIMITS.items():
        if key not in result:
            continue
        alike &= result[key] <= limit
        good = "ok" if result[key] <= limit else "TOO MUCH"
        print(f"  {name:18} {result[key]:10.6f} {unit:4} (at most {limit:g})  {good}")
    share = 100 * result["lidar_within_1mm"]
    print(f"  {'LiDAR within 1 mm':18} {share:10.4f} %    (at least 98.5)  {'ok' if share >= 98.5 else 'TOO FEW'}")
    same_pose = 100 * result["lidar_within_1mm_same_pose"]
    print(f"  {'… from equal poses':18} {same_pose:10.4f} %    (the others see from a little beside)")
    ended = result["flights_with_an_event"]
    print(f"  {'same first event':18} {100 * result['same_events']:10.4f} %    (in {ended} flights there was one)")
    picture = Path(given.picture)
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(flown, picture)
    print(f"\ndrawn: {picture}")
    print(json.dumps(result))
    sys.exit(not alike)


if __name__ == "__main__":
    main()
