"""The Warp engine: determinism, resets, save and restore, contacts, memory."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import warp as wp

from conftest import place
from navrl.sim import obstacles, warp_engine
from navrl.sim.scene import generate_scene
from navrl.sim.simulator import Simulator
from navrl.task import kernels


def scatter(sim, seed: int = 0) -> None:
    """Spread drones over the maps."""
    n = sim.settings.num_envs
    rng = np.random.default_rng(seed)
    position = torch.tensor(np.column_stack([rng.uniform(-22, 22, (n, 2)), rng.uniform(0.5, 3.5, n)])).float()
    maps = torch.arange(n, dtype=torch.int32) % sim.scene.num_maps
    sim.reset(torch.arange(n), position, torch.linspace(-3, 3, n), maps)


def commands(n: int, steps: int, seed: int = 0) -> torch.Tensor:
    return 4 * torch.rand(steps, n, 3, generator=torch.Generator().manual_seed(seed)) - 2


def assert_same_state(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_implements_the_simulator_protocol(make_sim, scene) -> None:
    assert isinstance(make_sim(scene), Simulator)


@pytest.mark.parametrize("num_envs", [1, 7, 300])
def test_identical_results_for_any_number_of_threads(make_sim, scene, num_envs: int) -> None:
    sims = [make_sim(scene, num_envs, threads=threads, decimation=2) for threads in (1, 2, 3)]
    for sim in sims:
        scatter(sim)
    for command in commands(num_envs, 150):
        for sim in sims:
            sim.step(command)
    for other in sims[1:]:
        assert_same_state(sims[0].state_dict(), other.state_dict())


def test_restored_state_continues_exactly(make_sim, scene) -> None:
    sim, fresh = make_sim(scene, 70, decimation=3), make_sim(scene, 70, decimation=3)
    scatter(sim)
    flight = commands(70, 260)
    for command in flight[:130]:
        sim.step(command)
    saved = copy.deepcopy(sim.state_dict())
    for command in flight[130:]:
        sim.step(command)
    fresh.load_state_dict(saved)
    for command in flight[130:]:
        fresh.step(command)
    assert_same_state(sim.state_dict(), fresh.state_dict())


def test_decimation_equals_repeated_steps(make_sim, scene) -> None:
    """Commands held for four steps, inside the engine or from outside, lead to the same events."""
    once, four = make_sim(scene, 200), make_sim(scene, 200, decimation=4)
    scatter(once), scatter(four)
    touched = 0
    for command in commands(200, 60):
        four.step(command)
        for k in range(4):
            once.step(command)
            assert torch.equal(four.trace[k], once.trace[0])
            assert torch.equal(four.static_contact[k], once.static_contact[0])
            assert torch.equal(four.moving_contact[k], once.moving_contact[0])
            touched += int(once.static_contact.sum())
        assert torch.equal(four.lidar, once.lidar)
    assert touched > 0


def test_partial_reset_does_not_affect_other_drones(make_sim, scene) -> None:
    sim, control = make_sim(scene, 64), make_sim(scene, 64)
    scatter(sim), scatter(control)
    flight = commands(64, 60)
    for command in flight[:30]:
        sim.step(command), control.step(command)
    some = torch.arange(0, 64, 5)
    mask = torch.zeros(64, dtype=torch.bool)
    mask[some] = True
    target = torch.tensor([3.0, -24.0, 1.0]).expand(len(some), 3)
    sim.reset(some, target, torch.full((len(some),), 0.5), torch.full((len(some),), 2, dtype=torch.int32))
    assert torch.equal(sim.position[mask], target) and (sim.velocity[mask] == 0).all()
    assert (sim.map_index[mask] == 2).all()
    probe = make_sim(scene, 64)
    place(probe, target[0], torch.full((64,), 0.5), map_index=2)
    assert torch.equal(sim.lidar[mask], probe.lidar[mask]), "the first scan after a reset is from the new pose"
    for command in flight[30:]:
        sim.step(command), control.step(command)
    for name in ("position", "quaternion", "velocity", "angular_velocity", "lidar", "throttle"):
        assert torch.equal(getattr(sim, name)[~mask], getattr(control, name)[~mask]), name


def test_reset_of_invalid_drones_or_maps_changes_nothing(make_sim, scene) -> None:
    sim = make_sim(scene, 8)
    scatter(sim)
    before = copy.deepcopy(sim.state_dict())
    for drone, map_index in ((8, 0), (-1, 0), (10**8, 0), (3, scene.num_maps), (3, -1)):
        sim.reset(torch.tensor([drone]), torch.zeros(1, 3), torch.zeros(1), torch.tensor([map_index]))
        assert_same_state(before, sim.state_dict())
    with pytest.raises(ValueError, match="one row of each"):
        sim.reset(torch.tensor([0, 1]), torch.zeros(1, 3), torch.zeros(2), torch.zeros(2))


def test_static_contact_means_a_beam_shorter_than_the_radius(make_sim, scene) -> None:
    sim = make_sim(scene, 3000, collision_radius=0.3)
    scatter(sim, seed=4)
    contacts = 0
    for command in commands(3000, 10):
        sim.step(command)
        assert torch.equal(sim.static_contact[0].bool(), sim.lidar.flatten(1).min(1).values < 0.3)
        contacts += int(sim.static_contact.sum())
    assert contacts > 100


def test_moving_contact_against_the_rule(make_sim, scene) -> None:
    sim = make_sim(scene, 4000)
    scatter(sim, seed=5)
    sim.step(torch.zeros(4000, 3))
    m = sim.map_index.long()
    gap = sim.moving_position[m] - sim.position[:, :, None]  # (N, 3, K)
    width, height = sim.moving_size[m, 0], sim.moving_size[m, 1]
    inside = (gap[:, :2].norm(dim=1) <= width / 2 + 0.3) & (gap[:, 2].abs() <= height / 2 + 0.3)
    assert torch.equal(sim.moving_contact[0].bool(), inside.any(-1))
    assert 20 < int(inside.any(-1).sum()) < 2000


def test_non_finite_command_means_hover(make_sim, empty_scene) -> None:
    sim, control = make_sim(empty_scene, 4), make_sim(empty_scene, 4)
    place(sim, torch.tensor([0.0, 0.0, 2.0])), place(control, torch.tensor([0.0, 0.0, 2.0]))
    bad, good = torch.ones(4, 3), torch.ones(4, 3)
    bad[1] = torch.tensor([float("nan"), 1.0, 1.0])
    bad[2] = torch.tensor([1.0, float("inf"), -float("inf")])
    good[1:3] = 0.0
    for _ in range(50):
        sim.step(bad), control.step(good)
    assert_same_state(sim.state_dict(), control.state_dict())


def test_time_scale_lengthens_the_step(make_sim, empty_scene) -> None:
    sim = make_sim(empty_scene, 1, time_scale=2.0)
    place(sim, torch.tensor([0.0, 0.0, 2.0]))
    for _ in range(200):
        sim.step(torch.tensor([[2.0, 0.0, 0.0]]))
    assert sim.velocity[0, 0] == pytest.approx(1.833, abs=0.01)
    assert sim.position[0, 0] == pytest.approx(1.833 * (6.4 - 0.45), rel=0.03)


def test_memory_does_not_grow(make_sim, scene) -> None:
    sim = make_sim(scene, 64, decimation=10)
    scatter(sim)
    command = commands(64, 1)[0]

    def resident_kb() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    for _ in range(200):
        sim.step(command)
    before = resident_kb()
    for _ in range(2000):  # 1.28 million drone steps
        sim.step(command)
    assert resident_kb() - before < 2048


def test_many_maps_few_drones_and_vice_versa(make_sim) -> None:
    for maps, drones in ((40, 3), (1, 150)):
        sim = make_sim(generate_scene(1, maps, starts_per_map=2), drones)
        scatter(sim)
        sim.step(torch.zeros(drones, 3))
        assert torch.isfinite(sim.lidar).all()


def test_kernels_compile_for_cuda(make_sim, scene, tmp_path) -> None:
    """There may be no GPU here, but the same source must compile for one."""
    make_sim(scene)
    fly, scan = warp_engine.beam_kernels(36, 4)
    for module in (warp_engine, obstacles, kernels, fly.module, scan.module):
        made = wp.compile_aot_module(module, arch=86, module_dir=tmp_path, use_ptx=True)
        assert any(path.suffix == ".ptx" and path.stat().st_size > 0 for path in map(type(tmp_path), made))
