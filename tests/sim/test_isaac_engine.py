"""Isaac Lab's physics and RayCaster against Warp's, and quirks the engine must hide. Run with: make test-isaac"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("isaaclab", reason="Isaac Lab is not installed: make test-isaac")

from conftest import EVAL, sim_settings
from navrl.sim.engine import make_simulator
from navrl.sim.isaac_check import IsaacMissing, check_isaac
from navrl.sim.isaac_engine import IsaacSimulator
from navrl.sim.lidar import LidarSpec
from navrl.sim.scene import Scene, generate_scene

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import parity


@pytest.fixture
def isaac() -> Iterator[list[IsaacSimulator]]:
    """Collect simulators that are closed when the test ends."""
    made: list[IsaacSimulator] = []
    yield made
    for sim in made:
        sim.close()


def pair(isaac: list, scene: Scene, n: int, **settings) -> tuple:
    warp = make_simulator(scene, sim_settings(n, **settings))
    isaac.append(make_simulator(scene, sim_settings(n, "isaac", **settings)))
    return warp, isaac[-1]


def assert_alike(result: dict) -> None:
    assert result["position_max_m"] < 0.01 and result["velocity_max_mps"] < 0.02 and result["attitude_max_deg"] < 1.0
    assert result["lidar_within_1mm"] > 0.985 and result["lidar_within_1mm_same_pose"] > 0.9999
    assert result["moving_max_m"] == 0.0 and result["same_events"] == 1.0


def test_parity() -> None:
    result, flown = parity.compare(drones=24, seconds=2.0, maps=4, physics="ovphysx")
    assert_alike(result)
    assert np.ptp(flown["isaac"], axis=0).max() > 1.0, "they flew"


def test_parity_with_newton(tmp_path) -> None:
    """Runs in a separate process: physics engines of Isaac Lab cannot share one."""
    script = Path(__file__).parents[2] / "scripts/parity.py"
    command = [sys.executable, str(script), "--physics", "newton", "--drones", "12", "--maps", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert_alike(json.loads(done.stdout.splitlines()[-1]))
    assert (tmp_path / "runs/parity.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "spec", [EVAL.sim.lidar, LidarSpec(range=10.0, vfov=(-30.0, 30.0), vbeams=5, hres=20.0, sees_moving=False)]
)
def test_raycaster_matches_warp_lidar(isaac, spec: LidarSpec) -> None:
    """Any yaw, any map, more than ten drones (whose sensors are numbered in a different order)."""
    scene = generate_scene(5, 9, 350, 0)
    n = 150
    warp, sim = pair(isaac, scene, n, lidar=spec)
    rng = np.random.default_rng(0)
    at = torch.tensor(np.column_stack([rng.uniform(-23, 23, (n, 2)), rng.uniform(0.3, 3.9, n)])).float()
    for one in (warp, sim):
        one.reset(torch.arange(n), at, torch.linspace(-3.1, 3.1, n), torch.arange(n, dtype=torch.int32) % 9)
    outside = warp.lidar.flatten(1).amin(1) > 0.0  # inside a box Warp reports 0; a mesh has no inside
    difference = (warp.lidar - sim.lidar)[outside].abs()
    assert outside.float().mean() > 0.8 and (difference > 1e-3).float().mean() < 1e-4
    assert (warp.lidar < spec.range).float().mean() > 0.1
    for _ in range(40):  # ... and tilted: beams follow the yaw only
        command = 4 * torch.rand(n, 3, generator=torch.Generator().manual_seed(1)) - 2
        warp.step(command), sim.step(command)
    tilt = 1 - 2 * (sim.quaternion[:, 1] ** 2 + sim.quaternion[:, 2] ** 2)
    assert tilt.min() < 0.99
    warp.load_state_dict({**warp.state_dict(), "position": sim.position.clone(), "quaternion": sim.quaternion.clone()})
    outside = warp.lidar.flatten(1).amin(1) > 0.3
    assert ((warp.lidar - sim.lidar)[outside].abs() > 1e-3).float().mean() < 1e-4


def test_moving_obstacles_are_seen_as_on_warp(isaac) -> None:
    scene = generate_scene(5, 4, 0, 40)
    n = 64
    warp, sim = pair(isaac, scene, n, lidar=replace(EVAL.sim.lidar, sees_moving=True))
    maps = torch.arange(n, dtype=torch.int32) % 4
    at = torch.tensor(scene.moving_origin[np.arange(n) % 4, np.arange(n) % 40]) + torch.tensor([1.0, 0.2, 0.0])
    at[:, 2] = at[:, 2].clamp(0.5, 3.5)
    for one in (warp, sim):
        one.reset(torch.arange(n), at, torch.linspace(-3.1, 3.1, n), maps)
        one.step(torch.zeros(n, 3))
    assert (warp.lidar[:, :, 1] < 4.0).float().mean() > 0.05  # level beams: only obstacles stop them
    assert ((warp.lidar - sim.lidar).abs() > 0.01).float().mean() < 5e-3  # poses differ by a millimetre


def test_obstacle_bodies_follow_the_rule(isaac, scene) -> None:
    """Kinematic bodies in PhysX are at the positions the task observes, up to rounding of world coordinates."""
    _, sim = pair(isaac, scene, 8, decimation=4)
    for _ in range(20):
        sim.step(torch.zeros(8, 3))
    bodies, expected = sim.obstacle_bodies(), sim.moving_position.transpose(1, 2)
    assert len(bodies) == int(scene.moving_count.sum())
    moved = (expected - torch.tensor(scene.moving_origin)).norm(dim=-1)
    assert (bodies - expected[sim.real_obstacles]).abs().max() < 1e-4 and moved.mean() > 0.5


def test_descending_drone_stops_at_the_ground(isaac) -> None:
    """PhysX collides with the terrain: a command straight down ends on the ground, not below it."""
    _, sim = pair(isaac, generate_scene(0, 1, 0, 0), 2)
    for _ in range(300):
        sim.step(torch.tensor([[0.0, 0.0, -2.0]]).expand(2, 3))
    assert (sim.position[:, 2] > 0.04).all() and (sim.position[:, 2] < 0.06).all()


def test_one_world_per_process(isaac, scene) -> None:
    pair(isaac, scene, 2)
    with pytest.raises(RuntimeError, match="close the previous one"):
        make_simulator(scene, sim_settings(2, "isaac"))
    isaac.pop().close()
    isaac.append(make_simulator(scene, sim_settings(3, "isaac")))
    isaac[-1].step(torch.zeros(3, 3))


def test_next_world_has_its_own_boxes(isaac) -> None:
    at, yaw, first = torch.tensor([[0.0, -20.5, 1.0]]), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    for seed in (1, 2):
        warp, sim = pair(isaac, generate_scene(seed, 1, 900, 0), 1)
        for one in (warp, sim):
            one.reset(torch.tensor([0]), at, yaw, first)
        assert (warp.lidar < 4.0).any() and (warp.lidar - sim.lidar).abs().max() < 1e-3
        isaac.pop().close()


def test_usd_is_not_imported_before_isaac_sim_starts() -> None:
    """Kit loads its own USD and aborts if another one is already loaded."""
    program = "import sys, navrl.sim.isaac_engine; sys.exit('pxr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_check_isaac_on_this_machine() -> None:
    assert check_isaac("ovphysx") == ("ovphysx", "as requested")
    if torch.cuda.is_available():
        pytest.skip("on a GPU machine the answers differ")
    assert check_isaac("auto")[0] == "ovphysx"
    with pytest.raises(IsaacMissing, match=r"needs Isaac Sim .* and a GPU; set sim.physics=ovphysx"):
        check_isaac("physx")
