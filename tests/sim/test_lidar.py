"""The LiDAR against brute force: every beam against every box, in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import EVAL, place
from navrl.sim.lidar import LidarSpec
from navrl.sim.scene import GROUND_HALF, Scene, generate_scene

CHUNK = 16_384  # rays tested together: small enough to stay in the processor's cache


def brute_force(origin: np.ndarray, direction: np.ndarray, boxes: np.ndarray, reach: float) -> np.ndarray:
    """Return lengths of rays (R, 3) to the nearest of the solid boxes (B, 5) or the ground square, at most `reach`."""
    parts = []
    for first in range(0, len(origin), CHUNK):
        o = [torch.tensor(x) for x in origin[first : first + CHUNK].T]
        d = [torch.tensor(x) for x in direction[first : first + CHUNK].T]
        d = [torch.where(x == 0, 1e-300, x) for x in d]
        inverse = [1.0 / x for x in d]
        t = -o[2] * inverse[2]
        over_ground = ((o[0] + t * d[0]).abs() <= GROUND_HALF) & ((o[1] + t * d[1]).abs() <= GROUND_HALF)
        nearest = torch.where((d[2] < 0) & over_ground & (t < reach), t, reach)
        for x0, y0, x1, y1, height in boxes.tolist():
            enter, leave = torch.zeros(()), torch.full((), reach)
            for (low, high), o_, i_ in zip(((x0, x1), (y0, y1), (0.0, height)), o, inverse, strict=True):
                a, b = (low - o_) * i_, (high - o_) * i_
                enter, leave = torch.maximum(enter, torch.minimum(a, b)), torch.minimum(leave, torch.maximum(a, b))
            nearest = torch.where(enter <= leave, torch.minimum(enter, nearest), nearest)
        parts.append(nearest.numpy())
    return np.concatenate(parts)


def beams_of(spec: LidarSpec, position: np.ndarray, yaw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return origins and directions (N · azimuths · elevations, 3), elevation varying fastest."""
    azimuth = yaw[:, None, None] + spec.azimuth_angles()[:, None]  # (N, H, 1)
    elevation = np.broadcast_to(spec.elevation_angles(), (len(yaw), *spec.shape))
    azimuth = np.broadcast_to(azimuth, elevation.shape)
    direction = np.stack(
        [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)], axis=-1
    )
    origin = np.broadcast_to(position[:, None, None], direction.shape)
    return origin.reshape(-1, 3), direction.reshape(-1, 3)


def compare(make_sim, scene: Scene, spec: LidarSpec, position: np.ndarray, yaw: np.ndarray) -> None:
    sim = make_sim(scene, len(position), lidar=spec)
    place(sim, torch.tensor(position), torch.tensor(yaw, dtype=torch.float32))
    position = sim.position.double().numpy()
    q = sim.quaternion.double().numpy()
    yaw = np.arctan2(2 * q[:, 0] * q[:, 3], q[:, 0] ** 2 - q[:, 3] ** 2)
    origin, direction = beams_of(spec, position, yaw)
    expected = brute_force(origin, direction, scene.boxes_of(0).astype(float), spec.range)
    error = np.abs(sim.lidar.double().numpy().ravel() - expected)
    wrong = np.flatnonzero(error > 1e-4)
    # A beam may pass within a rounding error of an edge; then a beam rotated by a millionth of a radian must agree.
    assert len(wrong) <= 1e-5 * len(error) + 1
    for k in wrong:
        nudges = np.random.default_rng(0).normal(size=(64, 3)) * 1e-6
        near = brute_force(np.tile(origin[k], (64, 1)), direction[k] + nudges, scene.boxes_of(0), spec.range)
        assert np.abs(near - sim.lidar.flatten()[k].item()).min() < 1e-4, f"beam {k} is off by {error[k]}"


def test_a_million_rays_at_random_poses(make_sim) -> None:
    scene = generate_scene(11, 1)
    rng = np.random.default_rng(0)
    n = 7000  # × 144 beams
    position = np.column_stack([rng.uniform(-25, 25, (n, 2)), rng.uniform(0.02, 6.5, n)])
    compare(make_sim, scene, EVAL.sim.lidar, position, rng.uniform(-10, 10, n))


def test_gaps_tops_edges_and_insides(make_sim) -> None:
    """Places where a shortcut would fail: beside, between, on top of and inside boxes, and at the map's edge."""
    scene = generate_scene(12, 1, num_static=700)
    rng = np.random.default_rng(1)
    box = scene.boxes[rng.integers(len(scene.boxes), size=600)].astype(float)
    centre, half = (box[:, :2] + box[:, 2:4]) / 2, (box[:, 2:4] - box[:, :2]) / 2
    beside = np.column_stack([centre + (half + 0.05) * rng.choice([-1, 1], (600, 2)), rng.uniform(0.1, 4, 600)])
    on_top = np.column_stack([centre + half * rng.uniform(-1, 1, (600, 2)), box[:, 4] + rng.uniform(0.01, 1, 600)])
    inside = np.column_stack([centre, box[:, 4] * rng.uniform(0.1, 0.9, 600)])
    edge = np.column_stack([rng.uniform(19.5, 26, 600), rng.uniform(-26, 26, 600), rng.uniform(0.05, 3, 600)])
    position = np.concatenate([beside, on_top, inside, edge])
    compare(make_sim, scene, EVAL.sim.lidar, position, rng.uniform(-4, 4, len(position)))
    sim = make_sim(scene, 600)
    place(sim, torch.tensor(inside))
    assert (sim.lidar == 0).all()


def test_beams_along_the_axes_and_through_corners(make_sim) -> None:
    """Directions with a zero component, from the coordinates of box centres: division by zero is likely."""
    scene = generate_scene(13, 1)
    box = scene.boxes[:200].astype(float)
    position = np.column_stack([(box[:, 0] + box[:, 2]) / 2, (box[:, 1] + box[:, 3]) / 2 + 1.53, np.full(200, 0.8)])
    compare(make_sim, scene, EVAL.sim.lidar, position, np.zeros(200))


@pytest.mark.parametrize(
    "spec",
    [
        LidarSpec(range=10.0, vfov=(-60.0, 60.0), vbeams=7, hres=5.0, sees_moving=False),
        LidarSpec(range=0.7, vfov=(-89.0, 0.0), vbeams=2, hres=90.0, sees_moving=False),
        LidarSpec(range=6.0, vfov=(0.0, 0.0), vbeams=1, hres=1.0, sees_moving=False),
        LidarSpec(range=25.0, vfov=(-5.0, 30.0), vbeams=16, hres=22.5, sees_moving=False),
        LidarSpec(range=4.0, vfov=(10.0, 40.0), vbeams=3, hres=12.0, sees_moving=False),
    ],
    ids=lambda spec: f"{spec.azimuths}x{spec.vbeams}-{spec.range:g}m",
)
def test_other_beam_layouts(make_sim, spec: LidarSpec) -> None:
    scene = generate_scene(14, 1, num_static=1000)
    rng = np.random.default_rng(2)
    n = max(20, 40_000 // (spec.azimuths * spec.vbeams))
    position = np.column_stack([rng.uniform(-26, 26, (n, 2)), rng.uniform(0.05, 5, n)])
    compare(make_sim, scene, spec, position, rng.uniform(-4, 4, n))


@pytest.mark.parametrize("box", [[0.0, 0.0, 3.0, 0.5, 2.0], [19.8, 0.0, 20.5, 0.5, 2.0]])
def test_boxes_too_long_or_outside_the_map_are_rejected(make_sim, box: list[float]) -> None:
    scene = generate_scene(0, 1, num_static=0, num_moving=0)
    scene = Scene(**{**vars(scene), "boxes": np.array([box], np.float32), "box_offsets": np.array([0, 1], np.int32)})
    with pytest.raises(ValueError, match="static boxes must be"):
        make_sim(scene)


def test_beam_order(make_sim) -> None:
    """Azimuth 0 points along yaw, then counter-clockwise; elevations rise; only yaw rotates the beams."""
    wall = np.array([[2.0, -0.05, 2.1, 0.05, 6.0]], np.float32)  # a pole 2 m ahead
    scene = generate_scene(0, 1, num_static=0, num_moving=0)
    scene = Scene(**{**vars(scene), "boxes": wall, "box_offsets": np.array([0, 1], np.int32)})
    sim = make_sim(scene, 3)
    place(sim, torch.tensor([0.0, 0.0, 2.0]), torch.tensor([0.0, -np.pi / 2, np.pi / 2], dtype=torch.float32))
    seen = (sim.lidar < 4).any(-1).nonzero().tolist()
    assert seen == [[0, 0], [1, 9], [2, 27]]  # ahead, then to the left, then to the right
    elevations = np.deg2rad([-10, 0, 10, 20])
    assert sim.lidar[0, 0].numpy() == pytest.approx(2.0 / np.cos(elevations), abs=1e-4)
    before = sim.lidar.clone()
    for tilted in ([0.9, 0.4, 0.0, 0.0], [0.9, 0.0, -0.3, 0.0]):  # roll and pitch do not change the heading
        sim.quaternion[0] = torch.nn.functional.normalize(torch.tensor(tilted), dim=0)
        sim.scan()
        assert torch.equal(sim.lidar[0], before[0])


# --- moving obstacles -------------------------------------------------------------------------------------------------


def brute_force_moving(
    origin: np.ndarray, direction: np.ndarray, place: np.ndarray, size: np.ndarray, reach: float
) -> np.ndarray:
    """Lengths of rays (R, 3) to the nearest moving obstacle (K, 3) of these widths and heights (K, 2), or `reach`."""
    nearest = np.full(len(origin), reach)
    d = np.where(direction == 0, 1e-300, direction)
    for centre, (width, height) in zip(place, size, strict=True):
        to, half = centre - origin, np.array([width / 2, width / 2, height / 2])
        first, second = (to - half) / d, (to + half) / d
        low, high = np.minimum(first, second), np.maximum(first, second)
        enter, leave = low[:, 2], high[:, 2]
        if height <= 1.0:
            enter, leave = np.maximum(enter, low[:, :2].max(1)), np.minimum(leave, high[:, :2].min(1))
        else:  # |to - t d| = width / 2 over ground
            a, b = (d[:, :2] ** 2).sum(1), (to[:, :2] * d[:, :2]).sum(1)
            room = b * b - a * ((to[:, :2] ** 2).sum(1) - width * width / 4)
            half_way = np.sqrt(np.maximum(room, 0.0))
            enter, leave = np.maximum(enter, (b - half_way) / a), np.minimum(leave, (b + half_way) / a)
            leave = np.where(room < 0, -1.0, leave)
        hit = (enter <= leave) & (leave >= 0)
        nearest = np.where(hit, np.minimum(nearest, np.maximum(enter, 0.0)), nearest)
    return nearest


@pytest.mark.parametrize("boxes", [0, 200])
def test_moving_obstacles_are_seen_if_asked_for(make_sim, boxes: int) -> None:
    """Three hundred thousand rays near and inside moving cylinders and cuboids."""
    scene = generate_scene(15, 1, num_static=boxes, num_moving=160)
    spec = replace(EVAL.sim.lidar, sees_moving=True)
    rng = np.random.default_rng(4)
    n = 2100
    sim = make_sim(scene, n, lidar=spec)
    for _ in range(5):  # they have moved
        sim.step(torch.zeros(n, 3))
    moving = sim.moving_position[0].double().numpy().T
    around = moving[rng.integers(len(moving), size=n)] + rng.normal(size=(n, 3)) * [1.5, 1.5, 1.0]
    around[:, 2] = np.clip(around[:, 2], 0.1, 4.9)  # at 5 m a level beam would graze every cylinder
    place(sim, torch.tensor(around), torch.tensor(rng.uniform(-4, 4, n), dtype=torch.float32))
    position, q = sim.position.double().numpy(), sim.quaternion.double().numpy()
    yaw = np.arctan2(2 * q[:, 0] * q[:, 3], q[:, 0] ** 2 - q[:, 3] ** 2)
    origin, direction = beams_of(spec, position, yaw)

    def truth(o: np.ndarray, d: np.ndarray) -> np.ndarray:
        still = brute_force(o, d, scene.boxes_of(0).astype(float), spec.range)
        return np.minimum(still, brute_force_moving(o, d, moving, scene.moving_size[0].astype(float), spec.range))

    expected, seen = truth(origin, direction), sim.lidar.double().numpy().ravel()
    assert (expected < brute_force(origin, direction, scene.boxes_of(0).astype(float), spec.range)).mean() > 0.05
    wrong = np.flatnonzero(np.abs(seen - expected) > 1e-4)
    assert len(wrong) <= 1e-4 * len(seen)
    for k in wrong:  # at a rounding error of an edge: a beam turned by a hundred-thousandth of a radian must agree
        near = truth(np.tile(origin[k], (64, 1)), direction[k] + rng.normal(size=(64, 3)) * 1e-5)
        assert np.abs(near - seen[k]).min() < 1e-3, f"beam {k}: {seen[k]} instead of {expected[k]}"


def test_moving_obstacles_are_not_seen_otherwise(make_sim) -> None:
    scene = generate_scene(15, 1, num_static=0, num_moving=160)
    for sees_moving in (False, True):
        sim = make_sim(scene, 64, lidar=replace(EVAL.sim.lidar, sees_moving=sees_moving))
        place(sim, torch.tensor(scene.moving_origin[0, :64]) + torch.tensor([1.0, 0.0, 0.0]))
        ahead = sim.lidar[:, :, 1]  # the level beams
        assert bool((ahead < 4.0).any()) == sees_moving
        sim.step(torch.zeros(64, 3))  # the same after a step as after a reset
        assert bool((sim.lidar[:, :, 1] < 4.0).any()) == sees_moving
