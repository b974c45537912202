"""The obstacle fields follow NavRL's rules."""

from __future__ import annotations

import numpy as np
import pytest

from navrl.sim import scene as scenes
from navrl.sim.scene import boxes_from_field, generate_scene


def test_same_seed_gives_the_same_maps_for_any_number_of_maps() -> None:
    few, many = generate_scene(5, 2, starts_per_map=8), generate_scene(5, 40, starts_per_map=8)
    for m in range(2):
        assert np.array_equal(few.boxes_of(m), many.boxes_of(m))
    for name in ("moving_origin", "moving_size", "starts", "goals"):
        assert np.array_equal(getattr(few, name), getattr(many, name)[:2])
    other = generate_scene(6, 2, starts_per_map=8)
    unseen = generate_scene(5, 2, starts_per_map=8, stream=scenes.EVALUATION)
    assert not np.array_equal(few.moving_origin, other.moving_origin)
    assert not np.array_equal(few.moving_origin, unseen.moving_origin)


def test_map_does_not_depend_on_the_counts_of_other_maps() -> None:
    mixed = generate_scene(5, 3, num_static=[350, 40, 0], num_moving=[80, 16, 0], starts_per_map=4)
    assert list(np.diff(mixed.box_offsets) > 0) == [True, True, False]
    assert list(mixed.moving_count) == [80, 16, 0]
    alone = generate_scene(5, 2, num_static=[350, 40], num_moving=[80, 16], starts_per_map=4)
    assert np.array_equal(mixed.boxes_of(1), alone.boxes_of(1))
    assert np.array_equal(mixed.moving_origin[1, :16], alone.moving_origin[1, :16])
    assert np.array_equal(mixed.starts[1], alone.starts[1])


def test_no_obstacles() -> None:
    empty = generate_scene(0, 3, num_static=0, num_moving=0)
    assert len(empty.boxes) == 0 and empty.moving_origin.shape == (3, 0, 3)


@pytest.mark.parametrize("kwargs", [{"num_static": -1}, {"num_static": 99999}, {"num_moving": 5000}, {"num_maps": 0}])
def test_impossible_numbers_are_rejected(kwargs: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        generate_scene(0, **kwargs)


def test_box_sizes_and_heights() -> None:
    """One box per map: sides of 0.3 or 0.7 m with equal probability, heights from NavRL's distribution."""
    single = generate_scene(1, 2000, num_static=1, num_moving=0, starts_per_map=1)
    assert np.array_equal(np.diff(single.box_offsets), np.ones(2000))
    widths = np.round(single.boxes[:, 2:4] - single.boxes[:, 0:2], 3)
    assert set(widths.ravel()) == {np.float32(0.3), np.float32(0.7)}
    assert abs((widths == np.float32(0.7)).mean() - 0.5) < 0.03
    heights = single.boxes[:, 4]
    assert np.allclose(heights * 10, np.rint(heights * 10), atol=1e-4)
    shares = np.histogram(heights, [1.0, 1.5, 2.0, 4.0, 6.01])[0] / 2000
    assert np.allclose(shares, scenes.HEIGHT_PROBABILITY, atol=0.05)  # rounding moves a few across an edge
    assert single.boxes[:, :4].min() >= -scenes.MAP_HALF and single.boxes[:, :4].max() <= scenes.MAP_HALF


def test_gaps_are_closed_or_wide_enough() -> None:
    """Check every box against every earlier one by NavRL's rule."""
    rngs = [np.random.default_rng(seed) for seed in range(6)]
    for boxes in scenes.place_boxes(rngs, np.array([350, 350, 350, 120, 1000, 1])):
        boxes = [tuple(box) for box in boxes if box[4] > 0]
        for n, (x, y, width, length, _) in enumerate(boxes):
            assert {width, length} <= {4, 8} and 0 <= x <= 399 - width and 0 <= y <= 399 - length
            assert (x % 4 == 0 or x == 399 - width) and (y % 4 == 0 or y == 399 - length)
            for earlier_x, earlier_y, *_ in boxes[:n]:
                dx, dy = abs(x - earlier_x) - width, abs(y - earlier_y) - length
                overlapping = dx < 0 and dy < 0
                assert overlapping or not 2 <= (dx**2 + dy**2) ** 0.5 <= 10


def plain_cells(field: np.ndarray) -> np.ndarray:
    """Compute cell heights by the rule, one cell at a time."""
    n = field.shape[0] - 1
    cells = np.zeros((n, n), int)
    for i in range(n):
        for j in range(n):
            a, b, c, d = field[i, j], field[i, j + 1], field[i + 1, j], field[i + 1, j + 1]
            cells[i, j] = min(a, b, c, d)
            if min(a, d) > max(b, c):
                cells[i, j] = min(a, d)
            if min(b, c) > max(a, d):
                cells[i, j] = min(b, c)
    return cells


def test_boxes_cover_exactly_the_high_cells() -> None:
    field = scenes.paint_field(scenes.place_boxes([np.random.default_rng(9)], np.array([500])))
    boxes, count = boxes_from_field(field)
    assert count[0] == len(boxes)
    corner = np.rint((boxes[:, :4] + scenes.MAP_HALF - scenes.CELL) / scenes.CELL).astype(int)
    drawn = np.zeros((398, 398), int)
    for (x0, y0, x1, y1), height in zip(corner, np.rint(boxes[:, 4] * 10).astype(int), strict=True):
        assert (drawn[x0:x1, y0:y1] == 0).all(), "boxes overlap"
        assert max(x1 - x0, y1 - y0) <= scenes.MAX_BOX_CELLS
        drawn[x0:x1, y0:y1] = height
    assert np.array_equal(drawn, plain_cells(field[0]))


def test_diagonal_touch_is_closed_and_a_notch_is_open() -> None:
    field = np.zeros((1, scenes.VERTICES, scenes.VERTICES), np.int16)
    field[0, 10:14, 10:14] = 30
    field[0, 14:18, 14:18] = 20  # touches the first only at a corner
    field[0, 50:54, 50:54] = 30
    field[0, 50:58, 54:58] = 30  # an L: the inner corner stays open
    cells = plain_cells(field[0])
    assert cells[13, 13] == 20 and cells[52, 53] == 30 and cells[53, 53] == 0
    boxes, _ = boxes_from_field(field)
    area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sum()
    assert area == pytest.approx((cells > 0).sum() * scenes.CELL**2)


def test_moving_obstacles_of_eight_kinds_are_spread_out() -> None:
    scene = generate_scene(2, 6, num_static=0, num_moving=83)
    assert (scene.moving_count == 80).all()
    size = scene.moving_size[0]
    assert np.array_equal(size[:, 0], np.tile(np.repeat([0.25, 0.5, 0.75, 1.0], 10), 2).astype(np.float32))
    assert (size[:40, 1] == 1.0).all() and (size[40:, 1] == 5.0).all()
    z = scene.moving_origin[..., 2]
    assert (z[:, 40:] == 2.5).all() and z[:, :40].min() >= 0.0 and z[:, :40].max() <= 4.5
    xy = scene.moving_origin[..., :2].astype(float)
    assert np.abs(xy).max() <= 20
    gaps = np.linalg.norm(xy[:, :, None] - xy[:, None], axis=-1) + 99 * np.eye(80)
    preferred = 2 * np.sqrt(400 / 80)
    # Each keeps the preferred spacing, or the largest 0.8^k of it that still fits: far more than random placement.
    assert gaps.min() > preferred * 0.8**3
    assert np.median(gaps.min(-1)) > 0.75 * preferred


def test_routes() -> None:
    scene = generate_scene(2, 2, num_static=0, num_moving=0, route="borders", starts_per_map=20000)
    for points in (scene.starts, scene.goals):
        assert np.allclose(np.abs(points[..., :2]).max(-1), 24.0)
        assert points[..., 2].min() >= 0.5 and points[..., 2].max() <= 2.5

    def side(points: np.ndarray) -> np.ndarray:
        return np.where(np.abs(points[..., 0]) == 24, np.sign(points[..., 0]), 2 * np.sign(points[..., 1]))

    assert abs((side(scene.starts) == side(scene.goals)).mean() - 0.25) < 0.02

    crossing = generate_scene(2, 1, num_static=0, num_moving=0, route="crossing", starts_per_map=500)
    way = crossing.goals - crossing.starts
    assert np.allclose(way, [0.0, 48.0, 0.0]) and (crossing.starts[..., 2] == 2.0).all()
    assert np.abs(crossing.starts[..., 0]).max() <= 16.0
    mixed = generate_scene(2, 1, num_static=0, num_moving=0, route="mixed", starts_per_map=500)
    assert ((mixed.goals - mixed.starts)[0, ::2] == [0.0, 48.0, 0.0]).all()


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    generate_scene(0, 70, num_static=5, num_moving=8, starts_per_map=1, progress=lambda a, b: seen.append((a, b)))
    assert seen == [(32, 70), (64, 70), (70, 70)]
