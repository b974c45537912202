"""Static obstacles, origins of the moving ones, starts and goals: drawn with numpy from a seed.

A `Scene` does not depend on an engine. Both engines, the tests and the pictures are built from the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from navrl.settings import SEED, ConfigError, setting, whole

MAP_HALF = 20.0  # m: obstacles live in ±20 m
GROUND_HALF = 25.0  # m: flat ground reaches 5 m further; flights start and end on it
BORDER = 24.0  # m: starts and goals lie on this square
CELL = 0.1  # m: the grid static obstacles are drawn on
CEILING = 4.5  # m: moving obstacles choose goals below this

# NavRL's height field: 401 vertices a side of which the outer ring stays flat.
VERTICES = 399
LATTICE = np.arange(0, VERTICES, 4)  # corners of static boxes, in vertices
WIDTHS = np.array([4, 8])  # vertices a box covers along one axis
HEIGHT_BINS = np.array([1.0, 1.5, 2.0, 4.0, 6.0])  # m
HEIGHT_PROBABILITY = np.array([0.10, 0.15, 0.20, 0.55])
FORBIDDEN_GAP = (2, 10)  # vertices: too wide to count as closed, too narrow to fly through

MOVING_WIDTHS = np.array([0.25, 0.5, 0.75, 1.0])  # m
CUBOID_HEIGHT = 1.0  # m, floating
CYLINDER_HEIGHT = 5.0  # m, standing on the ground: can only be passed sideways
MOVING_KINDS = 2 * len(MOVING_WIDTHS)

MAX_BOX_CELLS = 10  # longer rectangles are cut, so that a search by box centre has a bounded margin
MAPS_A_CHUNK = 32

# "Fits" means: obstacles cover at most half of the map (static boxes 0.25 m² on average, moving ones up to 1 m²).
MAX_STATIC = int(0.5 * (2 * MAP_HALF) ** 2 / 0.25)
MAX_MOVING = int(0.5 * (2 * MAP_HALF) ** 2 / 1.0)

TRAINING, EVALUATION = 0, 1

ROUTES = ("borders", "crossing", "mixed")


def counts(most: int) -> Callable[[Any, str], int | list[int]]:
    """A parser for a number of obstacles per map, or a list that is cycled over the maps."""

    def parse(value: Any, key: str) -> int | list[int]:
        several = [whole(v) for v in (value if isinstance(value, list | tuple) else [value])]
        for count in several:
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ConfigError(key, value, "must be a whole number of at least 0, or a list of them")
            if count > most:
                raise ConfigError(key, value, f"more than fit on a 40 × 40 m map; use at most {most}")
        if not several:
            raise ConfigError(key, value, "must not be an empty list")
        return several if isinstance(value, list | tuple) else several[0]

    return parse


@dataclass(frozen=True)
class SceneSettings:
    """Which maps to draw; the arguments of `generate_scene`."""

    seed: int = setting("seed", *SEED)
    num_maps: int = setting("env.num_maps", 1, 4096)
    num_static: int | list[int] = setting("env.num_obstacles", 0, MAX_STATIC, parse=counts(MAX_STATIC))
    num_moving: int | list[int] = setting("env_dyn.num_obstacles", 0, MAX_MOVING, parse=counts(MAX_MOVING))
    route: str = setting("env.route", options=ROUTES)


@dataclass(frozen=True)
class Scene:
    """Many maps. Static boxes are stored map after map; everything else has a leading map axis."""

    boxes: np.ndarray  # (B, 5) float32: x_min, y_min, x_max, y_max, height; all stand on z = 0
    box_offsets: np.ndarray  # (M + 1,) int32: boxes of map m are boxes[box_offsets[m]:box_offsets[m + 1]]
    moving_origin: np.ndarray  # (M, K, 3) float32
    moving_size: np.ndarray  # (M, K, 2) float32: width, height
    moving_count: np.ndarray  # (M,) int32: obstacles beyond this index are padding
    starts: np.ndarray  # (M, S, 3) float32
    goals: np.ndarray  # (M, S, 3) float32

    @property
    def num_maps(self) -> int:
        return len(self.moving_count)

    @property
    def border(self) -> float:
        """Half the side of the square on which flights start and end, m."""
        return BORDER

    @property
    def ground_half(self) -> float:
        """Half the side of the ground, m."""
        return GROUND_HALF

    def boxes_of(self, index: int) -> np.ndarray:
        """Static boxes (n, 5) of one map."""
        return self.boxes[self.box_offsets[index] : self.box_offsets[index + 1]]


def generate_scene(
    seed: int,
    num_maps: int = 1,
    num_static: int | Sequence[int] = 350,
    num_moving: int | Sequence[int] = 80,
    route: str = "borders",
    starts_per_map: int = 1024,
    stream: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Scene:
    """Draw `num_maps` maps. Map m depends only on (seed, stream, m); counts given as a list are cycled over maps.

    Training and evaluation use different streams (`TRAINING`, `EVALUATION`), so that no map is ever in both.
    `progress(done, total)` is called as maps are finished.
    """
    if num_maps < 1:
        raise ValueError(f"num_maps={num_maps} must be at least 1")
    if route not in ROUTES:
        raise ValueError(f"route={route!r} is not one of {', '.join(ROUTES)}")
    static_count = _counts_per_map("num_static", num_static, num_maps, MAX_STATIC)
    moving_count = round_moving(_counts_per_map("num_moving", num_moving, num_maps, MAX_MOVING))

    parts = []
    for first in range(0, num_maps, MAPS_A_CHUNK):
        maps = range(first, min(first + MAPS_A_CHUNK, num_maps))
        rngs = [np.random.default_rng([seed, stream, m]) for m in maps]
        field = paint_field(place_boxes(rngs, static_count[maps.start : maps.stop]))
        counts = moving_count[maps.start : maps.stop]
        origin, size = spread_moving(rngs, counts, moving_count.max())
        starts, goals = draw_routes(rngs, route, starts_per_map)
        parts.append((*boxes_from_field(field), origin, size, starts, goals))
        if progress:
            progress(maps.stop, num_maps)

    boxes, box_counts, origin, size, starts, goals = (np.concatenate(p) for p in zip(*parts, strict=True))
    return Scene(
        boxes=boxes.astype(np.float32),
        box_offsets=np.concatenate([[0], np.cumsum(box_counts)]).astype(np.int32),
        moving_origin=origin.astype(np.float32),
        moving_size=size.astype(np.float32),
        moving_count=moving_count.astype(np.int32),
        starts=starts.astype(np.float32),
        goals=goals.astype(np.float32),
    )


def round_moving(count: np.ndarray) -> np.ndarray:
    """Moving obstacles come in equal numbers of 8 kinds, so a count is rounded down to a multiple of 8."""
    return np.asarray(count) // MOVING_KINDS * MOVING_KINDS


def _counts_per_map(name: str, counts: int | Sequence[int], num_maps: int, most: int) -> np.ndarray:
    given = np.atleast_1d(counts)
    for count in given:
        if not 0 <= count <= most:
            raise ValueError(f"{name}={count} must be between 0 and {most}, the most that fits on a map")
    return np.resize(given, num_maps)


# --- static obstacles -------------------------------------------------------------------------------------------


def place_boxes(rngs: Sequence[np.random.Generator], counts: np.ndarray) -> np.ndarray:
    """Boxes by NavRL's rule, (M, most, 5) in vertices and decimetres: x, y, width, length, height; 0 is padding.

    NavRL redraws a corner until no gap to an earlier box is forbidden. Which lattice corners are still allowed is
    kept as a mask per box size instead, and one of them is drawn: the same distribution without endless retries.
    """
    num_maps, most = len(rngs), int(counts.max())
    side, tries = len(LATTICE), 48
    placed = np.zeros((num_maps, most, 5), int)
    if most == 0:
        return placed
    draws = [_draw_boxes(rng, count, tries) for rng, count in zip(rngs, counts, strict=True)]
    heights, sizes, candidates, fallback = (_stack(d, most) for d in zip(*draws, strict=True))
    # The actual corner of lattice point k for a box of each width: shifted inside at the far edge.
    corner = np.minimum(LATTICE, VERTICES - WIDTHS[:, None])  # (2, 100)
    blocked = np.zeros((num_maps, 2, 2, side, side), bool)  # [map, width, length, x, y]
    rows = np.arange(num_maps)
    reach = np.arange(-5, 6)  # lattice points a box can forbid: (8 + 10 vertices) / 4, rounded up

    for n in range(most):
        live = rows[n < counts]
        width, length = sizes[live, n].T
        tried = candidates[live, n]  # (m, tries, 2)
        ok = ~blocked[live[:, None], width[:, None], length[:, None], tried[..., 0], tried[..., 1]]
        chosen = tried[np.arange(len(live)), ok.argmax(1)]
        for i in np.flatnonzero(~ok.any(1)):  # few corners left: choose among them directly
            allowed = np.argwhere(~blocked[live[i], width[i], length[i]])
            if len(allowed) == 0:
                raise ValueError(f"num_static={counts[live[i]]}: a map is full after {n} boxes; use fewer")
            chosen[i] = allowed[int(fallback[live[i], n] * len(allowed))]
        x, y = corner[width, chosen[:, 0]], corner[length, chosen[:, 1]]
        placed[live, n] = np.column_stack([x, y, WIDTHS[width], WIDTHS[length], heights[live, n]])

        kx = np.clip(chosen[:, :1] + reach, 0, side - 1)  # (m, 11)
        ky = np.clip(chosen[:, 1:] + reach, 0, side - 1)
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            dx = np.abs(corner[i][kx] - x[:, None])[:, :, None] - WIDTHS[i]
            dy = np.abs(corner[j][ky] - y[:, None])[:, None, :] - WIDTHS[j]
            gap2 = dx * dx + dy * dy
            bad = ((dx >= 0) | (dy >= 0)) & (gap2 >= FORBIDDEN_GAP[0] ** 2) & (gap2 <= FORBIDDEN_GAP[1] ** 2)
            blocked[live[:, None, None], i, j, kx[:, :, None], ky[:, None, :]] |= bad
    return placed


def paint_field(placed: np.ndarray) -> np.ndarray:
    """Vertex heights (M, 399, 399) in decimetres; later boxes overwrite earlier ones."""
    field = np.zeros((len(placed), VERTICES, VERTICES), np.int16)
    for heights, boxes in zip(field, placed, strict=True):
        for x, y, width, length, height in boxes[boxes[:, 4] > 0]:
            heights[x : x + width, y : y + length] = height
    return field


def _draw_boxes(rng: np.random.Generator, count: int, tries: int) -> tuple[np.ndarray, ...]:
    """Random numbers for `count` boxes of one map: height (dm), size indices, candidate corners, a spare uniform."""
    bins = rng.choice(len(HEIGHT_PROBABILITY), count, p=HEIGHT_PROBABILITY)
    heights = rng.uniform(HEIGHT_BINS[bins], HEIGHT_BINS[bins + 1])
    sizes = rng.integers(len(WIDTHS), size=(count, 2))
    candidates = rng.integers(len(LATTICE), size=(count, tries, 2), dtype=np.int32)
    return np.rint(heights / CELL), sizes, candidates, rng.random(count)


def _stack(arrays: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Stack arrays of different length, padded with zeros."""
    out = np.zeros((len(arrays), length, *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


def boxes_from_field(field: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solid boxes (B, 5) of vertex heights (M, 399, 399), and how many belong to each map.

    A cell is as high as its lowest corner vertex, except that two boxes touching only diagonally close their shared
    cell: that is what Isaac's slope correction makes of the height field.
    """
    v00, v01, v10, v11 = field[:, :-1, :-1], field[:, :-1, 1:], field[:, 1:, :-1], field[:, 1:, 1:]
    low_a, high_a = np.minimum(v00, v11), np.maximum(v00, v11)
    low_b, high_b = np.minimum(v01, v10), np.maximum(v01, v10)
    cells = np.where(low_a > high_b, low_a, np.where(low_b > high_a, low_b, np.minimum(low_a, low_b)))

    # Runs of one height along y, then equal runs in consecutive x rows joined into rectangles.
    padded = np.pad(cells, ((0, 0), (0, 0), (1, 1)))
    change = padded[:, :, 1:] != padded[:, :, :-1]
    begin = np.argwhere(change & (padded[:, :, 1:] > 0))  # map, row, first column of a run
    end = np.argwhere(change & (padded[:, :, :-1] > 0))[:, 2]
    height = cells[begin[:, 0], begin[:, 1], begin[:, 2]]
    runs = np.column_stack([begin[:, 0], begin[:, 2], end, height, begin[:, 1]])  # map, y0, y1, height, x
    runs = runs[np.lexsort(runs.T[::-1])]
    same = (np.diff(runs[:, :4], axis=0) == 0).all(1) & (np.diff(runs[:, 4]) == 1)
    first = np.flatnonzero(np.concatenate([[True], ~same])) if len(runs) else np.zeros(0, int)
    last = np.concatenate([first[1:], [len(runs)]]) - 1 if len(runs) else first
    rectangles = np.column_stack([runs[first, 0], runs[first, 4], runs[first, 1], runs[last, 4] + 1, runs[first, 2:4]])
    rectangles = _cut(_cut(rectangles, 1, 3), 2, 4)  # map, x0, y0, x1, y1, height

    boxes = np.empty((len(rectangles), 5))
    boxes[:, :4] = rectangles[:, 1:5] * CELL - (MAP_HALF - CELL)  # cell 0 starts at the first interior vertex
    boxes[:, 4] = rectangles[:, 5] * CELL
    order = np.argsort(rectangles[:, 0], kind="stable")
    return boxes[order], np.bincount(rectangles[:, 0], minlength=len(field))


def _cut(rectangles: np.ndarray, low: int, high: int) -> np.ndarray:
    """Cut rectangles longer than MAX_BOX_CELLS between columns `low` and `high` into pieces."""
    pieces = -(-(rectangles[:, high] - rectangles[:, low]) // MAX_BOX_CELLS)
    out = np.repeat(rectangles, pieces, axis=0)
    nth = np.arange(len(out)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    out[:, low] += nth * MAX_BOX_CELLS
    out[:, high] = np.minimum(out[:, high], out[:, low] + MAX_BOX_CELLS)
    return out


# --- moving obstacles -------------------------------------------------------------------------------------------


def spread_moving(
    rngs: Sequence[np.random.Generator], counts: np.ndarray, most: int, pool: int = 2048
) -> tuple[np.ndarray, np.ndarray]:
    """Evenly spread origins (M, most, 3) and sizes (M, most, 2): first the floating cuboids, then the cylinders.

    Each origin is the first point of a random pool that keeps NavRL's spacing 2·sqrt(400/N) from those before it;
    where no point does, the spacing of that obstacle shrinks by 0.8 until one fits.
    """
    num_maps = len(rngs)
    origin = np.zeros((num_maps, most, 3))
    size = np.ones((num_maps, most, 2))
    points = np.stack([rng.uniform(-MAP_HALF, MAP_HALF, (pool, 2)) for rng in rngs])
    height = _stack([rng.uniform(0.0, CEILING, count) for rng, count in zip(rngs, counts, strict=True)], most)
    nearest = np.full((num_maps, pool), np.inf)  # distance of each pool point to the origins placed so far
    preferred = 2.0 * np.sqrt(MAP_HALF * MAP_HALF / np.maximum(counts, 1))
    rows = np.arange(num_maps)
    for j in range(most):
        spacing = preferred.copy()
        while (crowded := nearest.max(1) <= spacing).any():
            spacing[crowded] *= 0.8
        origin[:, j, :2] = points[rows, (nearest > spacing[:, None]).argmax(1)]
        nearest = np.minimum(nearest, np.linalg.norm(points - origin[:, j : j + 1, :2], axis=-1))

    kind = np.arange(most) * MOVING_KINDS // np.maximum(counts, 1)[:, None]  # (M, most), >= 8 is padding
    cuboid = kind < len(MOVING_WIDTHS)
    origin[..., 2] = np.where(cuboid, height, CYLINDER_HEIGHT / 2)
    size[..., 0] = MOVING_WIDTHS[kind % len(MOVING_WIDTHS)]
    size[..., 1] = np.where(cuboid, CUBOID_HEIGHT, CYLINDER_HEIGHT)
    return origin, size


# --- starts and goals -------------------------------------------------------------------------------------------


def draw_routes(rngs: Sequence[np.random.Generator], route: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and goals (M, count, 3).

    `borders`: both independently on the four sides at 24 m, 0.5 to 2.5 m high (a quarter share a side).
    `crossing`: 48 m parallel flights from south to north at 2 m. `mixed`: every other flight is a crossing.
    """
    starts, goals = np.empty((2, len(rngs), count, 3))
    for m, rng in enumerate(rngs):
        if route != "crossing":
            starts[m], goals[m] = _on_border(rng, count), _on_border(rng, count)
        if route != "borders":
            every = slice(None, None, 2 if route == "mixed" else 1)
            lane = rng.uniform(-16.0, 16.0, count)[every]
            starts[m, every] = np.column_stack([lane, np.full_like(lane, -BORDER), np.full_like(lane, 2.0)])
            goals[m, every] = starts[m, every] * [1.0, -1.0, 1.0]
    return starts, goals


def _on_border(rng: np.random.Generator, count: int) -> np.ndarray:
    points = np.empty((count, 3))
    along = rng.uniform(-BORDER, BORDER, count)
    side = rng.integers(4, size=count)
    across = np.where(side < 2, BORDER, -BORDER)
    points[:, 0] = np.where(side % 2, across, along)
    points[:, 1] = np.where(side % 2, along, across)
    points[:, 2] = rng.uniform(0.5, 2.5, count)
    return points
