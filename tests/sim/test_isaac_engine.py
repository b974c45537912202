"""Isaac Lab's physics and RayCaster against Warp's, and the quirks that must not leave the engine. make test-isaac"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("isaaclab", reason="Isaac Lab is not installed: make test-isaac")

from navrl.sim.engine import make_simulator
from navrl.sim.isaac_check import IsaacMissing, check_isaac
from navrl.sim.isaac_engine import IsaacSimulator
from navrl.sim.lidar import LidarSpec
from navrl.sim.scene import Scene, generate_scene
from navrl.sim.simulator import SimSettings

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import parity


@pytest.fixture
def isaac() -> Iterator[list[IsaacSimulator]]:
    """Simulators to be closed when the test ends."""
    made: list[IsaacSimulator] = []
    yield made
    for sim in made:
        sim.close()


def pair(isaac: list, scene: Scene, n: int, **settings) -> tuple:
    warp = make_simulator(scene, SimSettings(n, **settings))
    isaac.append(make_simulator(scene, SimSettings(n, engine="isaac", **settings)))
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
    """In a process of its own: engines of Isaac Lab do not share one."""
    script = Path(__file__).parents[2] / "scripts/parity.py"
    command = [sys.executable, str(script), "--physics", "newton", "--drones", "12", "--maps", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert_alike(json.loads(done.stdout.splitlines()[-1]))
    assert (tmp_path / "runs/parity.png").stat().st_size > 10_000


@pytest.mark.parametrize("spec", [LidarSpec(), LidarSpec(range=10.0, vfov=(-30.0, 30.0), vbeams=5, hres=20.0)])
def test_the_raycaster_sees_what_warp_sees(isaac, spec: LidarSpec) -> None:
    """Any yaw, any map, more than ten drones (whose sensors are numbered in another order)."""
    scene = generate_scene(5, 9, 350, 0)
    n = 150
    warp, sim = pair(isaac, scene, n, lidar=spec)
    rng = np.random.default_rng(0)
    at = torch.tensor(np.column_stack([rng.uniform(-23, 23, (n, 2)), rng.uniform(0.3, 3.9, n)])).float()
    for one in (warp, sim):
        one.reset(torch.arange(n), at, torch.linspace(-3.1, 3.1, n), torch.arange(n, dtype=torch.int32) % 9)
    outside = warp.lidar.flatten(1).amin(1) > 0.0  # inside a box Warp says 0, a mesh has no inside
    difference = (warp.lidar - sim.lidar)[outside].abs()
    assert outside.float().mean() > 0.8 and (difference > 1e-3).float().mean() < 1e-4
    assert (warp.lidar < spec.range).float().mean() > 0.1
    for _ in range(40):  # ... and tilted: beams turn with the yaw only
        command = 4 * torch.rand(n, 3, generator=torch.Generator().manual_seed(1)) - 2
        warp.step(command), sim.step(command)
    tilt = 1 - 2 * (sim.quaternion[:, 1] ** 2 + sim.quaternion[:, 2] ** 2)
    assert tilt.min() < 0.99
    warp.load_state_dict({**warp.state_dict(), "position": sim.position.clone(), "quaternion": sim.quaternion.clone()})
    outside = warp.lidar.flatten(1).amin(1) > 0.3
    assert ((warp.lidar - sim.lidar)[outside].abs() > 1e-3).float().mean() < 1e-4


def test_obstacles_are_where_the_rule_says(isaac, scene) -> None:
    """The kinematic bodies in PhysX are at the positions the task is told, up to the size of a tile's coordinates."""
    _, sim = pair(isaac, scene, 8, decimation=4)
    for _ in range(20):
        sim.step(torch.zeros(8, 3))
    bodies, told = sim.obstacle_bodies(), sim.moving_position.transpose(1, 2)
    assert len(bodies) == int(scene.moving_count.sum())
    moved = (told - torch.tensor(scene.moving_origin)).norm(dim=-1)
    assert (bodies - told[sim.real_obstacles]).abs().max() < 1e-4 and moved.mean() > 0.5


def test_a_body_left_alone_falls_to_the_ground_and_stays(isaac) -> None:
    """PhysX collides with the terrain: a command straight down ends on the ground, not below it."""
    _, sim = pair(isaac, generate_scene(0, 1, 0, 0), 2)
    for _ in range(300):
        sim.step(torch.tensor([[0.0, 0.0, -2.0]]).expand(2, 3))
    assert (sim.position[:, 2] > 0.04).all() and (sim.position[:, 2] < 0.06).all()


def test_one_world_a_process(isaac, scene) -> None:
    pair(isaac, scene, 2)
    with pytest.raises(RuntimeError, match="close the one before"):
        make_simulator(scene, SimSettings(2, engine="isaac"))
    isaac.pop().close()
    isaac.append(make_simulator(scene, SimSettings(3, engine="isaac")))
    isaac[-1].step(torch.zeros(3, 3))


def test_the_next_world_has_its_own_boxes(isaac) -> None:
    at, yaw, first = torch.tensor([[0.0, -20.5, 1.0]]), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    for seed in (1, 2):
        warp, sim = pair(isaac, generate_scene(seed, 1, 900, 0), 1)
        for one in (warp, sim):
            one.reset(torch.tensor([0]), at, yaw, first)
        assert (warp.lidar < 4.0).any() and (warp.lidar - sim.lidar).abs().max() < 1e-3
        isaac.pop().close()


def test_usd_is_not_loaded_before_isaac_sim_could_run() -> None:
    """Kit brings its own USD, and aborts if another one is there already."""
    program = "import sys, navrl.sim.isaac_engine; sys.exit('pxr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_what_can_run_here() -> None:
    assert check_isaac("ovphysx") == ("ovphysx", "as asked for")
    if torch.cuda.is_available():
        pytest.skip("on a GPU box the answers are others")
    assert check_isaac("auto")[0] == "ovphysx"
    with pytest.raises(IsaacMissing, match=r"needs Isaac Sim .* and a GPU; set sim.physics=ovphysx"):
        check_isaac("physx")
