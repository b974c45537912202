# pyright: reportInvalidTypeForm=false
"""The LiDAR: distance along every beam to the nearest static box or the ground.

Beams form an `azimuths × elevations` grid that follows the yaw of the body but not its tilt. All beams of one azimuth
lie in one vertical plane, so a box is first cut by that plane (a 2-D slab test), then compared with each beam's height.

The inner loop is C++ inside a Warp kernel. On a CPU one thread handles one drone: it collects the boxes within reach
from a grid of buckets, finds the azimuths each box covers, and tests eight beams at once. On CUDA the same code runs
with one azimuth per thread. `tests/sim/test_lidar.py` contains the brute-force reference it must match.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import warp as wp

from navrl.settings import setting
from navrl.sim.scene import CELL, GROUND_HALF, MAP_HALF, MAX_BOX_CELLS, Scene

COLUMNS = int(2 * MAP_HALF)  # buckets are 1 m wide (x) ...
BAND = 4  # ... and 4 m deep (y)
BANDS = COLUMNS // BAND
MARGIN = 0.5 * MAX_BOX_CELLS * CELL + 1e-3  # m: no box extends further from its centre than this


@dataclass(frozen=True)
class LidarSpec:
    """Beam layout. Azimuth 0 points along yaw, then counter-clockwise; elevations rise from vfov[0] to vfov[1]."""

    range: float = setting("sensor.lidar_range", 0.5, 40.0)  # m
    vfov: tuple[float, float] = setting("sensor.lidar_vfov", rising=True)  # degrees, up positive
    vbeams: int = setting("sensor.lidar_vbeams", 1, 64)
    hres: float = setting("sensor.lidar_hres", 0.5, 90.0)  # degrees between azimuths
    sees_moving: bool = setting("sensor.lidar_sees_moving")

    @property
    def azimuths(self) -> int:
        return round(360.0 / self.hres)

    @property
    def shape(self) -> tuple[int, int]:
        return self.azimuths, self.vbeams

    def azimuth_angles(self) -> np.ndarray:
        return np.arange(self.azimuths) * (2 * np.pi / self.azimuths)

    def elevation_angles(self) -> np.ndarray:
        return np.deg2rad(np.linspace(*self.vfov, self.vbeams))

    def azimuth_table(self) -> np.ndarray:
        """Return cosine and sine of every azimuth for the kernels, (2, azimuths)."""
        angle = self.azimuth_angles()
        return np.stack([np.cos(angle), np.sin(angle)])

    def beam_table(self) -> np.ndarray:
        """Return tangent, its inverse for descending beams (else 0) and 1 / cosine, (3, azimuths·elevations + 8)."""
        tangent = np.tan(self.elevation_angles())
        sink = np.divide(1.0, tangent, out=np.zeros_like(tangent), where=tangent < 0)
        rows = np.stack([tangent, sink, 1.0 / np.cos(self.elevation_angles())])
        return np.pad(np.tile(rows, self.azimuths), ((0, 0), (0, 8)))  # vector loads may read past the last beam


def bucket_boxes(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Sort boxes by bucket: boxes (5, B + 8) and the start of each bucket (M, BANDS · COLUMNS + 1).

    A bucket holds the boxes whose centre lies in it: COLUMNS columns of 1 m in each band of BAND m. The boxes of a
    band between two columns are contiguous in memory, so that eight can be tested at once.
    """
    size, outermost = scene.boxes[:, 2:4] - scene.boxes[:, 0:2], np.abs(scene.boxes[:, :4]).max(initial=0.0)
    if size.max(initial=0.0) > 2 * MARGIN or outermost > MAP_HALF:
        raise ValueError(
            f"static boxes must be at most {2 * MARGIN:.1f} m long (split longer ones) and within ±{MAP_HALF} m"
        )
    per_map = np.diff(scene.box_offsets)
    owner = np.repeat(np.arange(scene.num_maps), per_map)
    centre = (scene.boxes[:, 0:2] + scene.boxes[:, 2:4]) / 2 + MAP_HALF
    column = np.clip(centre[:, 0].astype(int), 0, COLUMNS - 1)
    band = np.clip((centre[:, 1] / BAND).astype(int), 0, BANDS - 1)
    key = (owner * BANDS + band) * COLUMNS + column
    order = np.argsort(key, kind="stable")
    edges = np.searchsorted(key[order], np.arange(scene.num_maps * BANDS * COLUMNS + 1))
    first = np.arange(scene.num_maps)[:, None] * BANDS * COLUMNS + np.arange(BANDS * COLUMNS + 1)
    return np.pad(scene.boxes[order].T, ((0, 0), (0, 8))), edges[first].astype(np.int32)


# Code shared by both native functions. `lanes` is eight floats on a CPU and one on CUDA.
_SHARED = """
    constexpr int H = %(azimuths)d, V = %(elevations)d, COLUMNS = %(columns)d, BANDS = %(bands)d;
    constexpr float MARGIN = %(margin).8ff, HALF = %(half).8ff, GROUND = %(ground).8ff, NEVER = 1e30f;
#if defined(__CUDA_ARCH__) || defined(__CUDACC__)
    constexpr int W = 1;
    typedef float lanes;
    auto low = [](lanes a, lanes b) { return a < b ? a : b; };
    auto high = [](lanes a, lanes b) { return a > b ? a : b; };
    auto nearer = low;
    auto load = [](const float* p) { return *p; };
    auto store = [](float* p, lanes v) { *p = v; };
    auto all = [](float v) { return v; };
#else
    constexpr int W = 8;
    typedef float lanes __attribute__((vector_size(32)));
    auto low = [](lanes a, lanes b) { return a < b ? a : b; };
    auto high = [](lanes a, lanes b) { return a > b ? a : b; };
    // Minimum of distances. They are never negative, so their bits sort like integers; a float comparison would be
    // compiled to a masked store, which is very slow on some processors.
    typedef int bits __attribute__((vector_size(32)));
    auto nearer = [](lanes a, lanes b) { return (lanes)__builtin_elementwise_min((bits)a, (bits)b); };
    auto load = [](const float* p) { lanes v; __builtin_memcpy(&v, p, sizeof(v)); return v; };
    auto store = [](float* p, lanes v) { __builtin_memcpy(p, &v, sizeof(v)); };
    auto all = [](float v) { return lanes{v, v, v, v, v, v, v, v}; };
#endif
    // Per beam, flattened [azimuth][elevation] as in the output: tangent of the elevation, its inverse for
    // descending beams (else 0), and 1 / cosine, which converts horizontal distance to beam length.
    constexpr int BEAMS = H * V, PADDED = BEAMS + 8;
    const float *slope = beams.data, *sink = slope + PADDED, *stretch = sink + PADDED;

    // Call visit(first, end) for each run of boxes whose bucket lies within `reach` of the drone.
    const int all_boxes = boxes.shape[1];
    const float *west = boxes.data, *south = west + all_boxes, *east = south + all_boxes, *north = east + all_boxes,
                *tall = north + all_boxes;
    auto each_run_within = [&](float reach, auto&& visit) {
        const int* start = buckets.data + (long long)map * (BANDS * COLUMNS + 1);
        auto clip = [](float v, int n) { return v <= 0.0f ? 0 : v >= n ? n - 1 : (int)v; };
        if (px + reach < -HALF || px - reach > HALF || py + reach < -HALF || py - reach > HALF) return;
        const int left = clip(px - reach - MARGIN + HALF, COLUMNS), right = clip(px + reach + MARGIN + HALF, COLUMNS);
        const int last = clip((py + reach + MARGIN + HALF) / %(band)d.0f, BANDS);
        for (int band = clip((py - reach - MARGIN + HALF) / %(band)d.0f, BANDS); band <= last; ++band)
            visit(start[band * COLUMNS + left], start[band * COLUMNS + right + 1]);
    };

    // Horizontal distance at which beams (inverse direction ix, iy) hit the box x0..x1, y0..y1 (relative to the
    // drone), 0..h: through a side, or from above through the top.
    auto meet = [&](float x0, float y0, float x1, float y1, float h, lanes ix, lanes iy, lanes slope, lanes sink) {
        const lanes tx0 = all(x0) * ix, tx1 = all(x1) * ix, ty0 = all(y0) * iy, ty1 = all(y1) * iy;
        const lanes enter = high(high(low(tx0, tx1), low(ty0, ty1)), all(0.0f));
        const lanes leave = low(high(tx0, tx1), high(ty0, ty1));
        const lanes z = all(pz) + slope * enter, down = all(h - pz) * sink;
        const lanes side = ((z <= all(h)) & (z >= all(0.0f)) & (enter <= leave)) ? enter : all(NEVER);
        return ((down > enter) & (down <= leave)) ? down : side;
    };

    // Horizontal distance at which beam e with direction (dx, dy) hits the ground.
    auto ground = [&](float dx, float dy, int e) {
        const float t = -pz * sink[e], gx = px + t * dx, gy = py + t * dy;
        return t > 0.0f && gx >= -GROUND && gx <= GROUND && gy >= -GROUND && gy <= GROUND ? t : NEVER;
    };

    // Beams follow the yaw only. In double precision: a beam must not pass a corner on the wrong side.
    double yaw_cos = (double)qw * qw + (double)qx * qx - (double)qy * qy - (double)qz * qz;
    double yaw_sin = 2.0 * ((double)qw * qz + (double)qx * qy);
    auto normalize_yaw = [&]() {
        const double scale = 1.0 / sqrt(yaw_cos * yaw_cos + yaw_sin * yaw_sin);
        yaw_cos *= scale;
        yaw_sin *= scale;
    };
    auto direction = [&](int a, float& dx, float& dy) {
        const double c = azimuth.data[a], s = azimuth.data[H + a];
        dx = (float)(c * yaw_cos - s * yaw_sin);
        dy = (float)(s * yaw_cos + c * yaw_sin);
    };
    auto inverse = [](float d) { return 1.0f / (d < 1e-9f && d > -1e-9f ? 1e-9f : d); };
"""

_SCAN = """
    float* out = ranges.data + (long long)drone * BEAMS;
    normalize_yaw();
#if defined(__CUDA_ARCH__) || defined(__CUDACC__)
    float dx, dy, best[V];
    direction(first, dx, dy);
    const int e = first * V;
    for (int v = 0; v < V; ++v) best[v] = ground(dx, dy, e + v);
    each_run_within(reach, [&](int begin, int end) {
        for (int k = begin; k < end; ++k)
            for (int v = 0; v < V; ++v)
                best[v] = low(best[v], meet(west[k] - px, south[k] - py, east[k] - px, north[k] - py, tall[k],
                                            inverse(dx), inverse(dy), slope[e + v], sink[e + v]));
    });
    for (int v = 0; v < V; ++v) out[e + v] = low(best[v] * stretch[e + v], reach);
#else
    float dx[H], dy[H], kx[H], ky[H], ix[PADDED], iy[PADDED], best[PADDED];
    for (int a = 0; a < H; ++a) direction(a, dx[a], dy[a]);
    for (int a = 0; a < H; ++a) { kx[a] = inverse(dx[a]); ky[a] = inverse(dy[a]); }
    for (int a = 0; a < H; ++a)
        for (int v = 0; v < V; ++v) { ix[a * V + v] = kx[a]; iy[a * V + v] = ky[a]; }
    for (int e = BEAMS; e < PADDED; ++e) ix[e] = iy[e] = 1.0f;
    for (int e = 0; e < PADDED; ++e) best[e] = NEVER;
    if (-pz * sink[0] * stretch[0] < reach) // the lowest beam hits the ground within reach
        for (int a = 0; a < H; ++a)
            for (int v = 0; v < V; ++v) best[a * V + v] = ground(dx[a], dy[a], a * V + v);

    const float lowest = pz + (slope[0] < 0.0f ? slope[0] / stretch[0] * reach : 0.0f); // no beam in reach gets lower
    const lanes c = all((float)yaw_cos), s = all((float)yaw_sin), zero = all(0.0f);
    const float per_radian = H / 6.28318530718f, guard = 2e-3f * per_radian;
    auto azimuth_of = [&](lanes wx, lanes wy) { // of a point, in azimuth steps, accurate to 1e-3 rad
        const lanes u = wx * c + wy * s, t = wy * c - wx * s;
        const lanes au = high(u, -u), at = high(t, -t);
        const lanes q = low(au, at) / (high(au, at) + all(1e-20f)), q2 = q * q;
        lanes angle = all(0.14626446f) - q2 * all(0.03898651f);
        angle = q * (all(0.99921406f) + q2 * (all(-0.32117498f) + q2 * angle));
        angle = at > au ? all(1.57079633f) - angle : angle;
        angle = u < zero ? all(3.14159265f) - angle : angle;
        return (t < zero ? -angle : angle) * all(per_radian);
    };
    each_run_within(reach, [&](int begin, int end) {
        for (int first = begin; first < end; first += W) {
            const lanes ax = load(west + first) - all(px), bx = load(east + first) - all(px);
            const lanes ay = load(south + first) - all(py), by = load(north + first) - all(py);
            const lanes ex = high(high(ax, -bx), zero), ey = high(high(ay, -by), zero), gap = ex * ex + ey * ey;
            float hidden[W], a[W], b[W]; // hidden > 0: out of reach, or below every beam
            store(hidden, high(gap - all(reach * reach), all(lowest) - load(tall + first)));

            // Azimuths covered by a box: between its two outermost corners as seen from the drone.
            const lanes near_x = ax > zero ? ax : bx, near_y = ay > zero ? ay : by;
            const lanes from =
                azimuth_of(ay > zero ? bx : by < zero ? ax : near_x, ax > zero ? ay : bx < zero ? by : near_y);
            const lanes to =
                azimuth_of(ay > zero ? ax : by < zero ? bx : near_x, ax > zero ? by : bx < zero ? ay : near_y);
            // Above or inside a box: all azimuths.
            store(a, gap > zero ? from : zero);
            store(b, gap > zero ? (to < from ? to + all(H) : to) : all(H - 1));

            const int count = end - first < W ? end - first : W;
            int chosen[W], n = 0;
            for (int w = 0; w < W; ++w) { chosen[n] = w; n += (hidden[w] <= 0.0f) & (w < count); }
            for (int i = 0; i < n; ++i) {
                const int w = chosen[i], k = first + w;
                const float x0 = west[k] - px, y0 = south[k] - py, x1 = east[k] - px, y1 = north[k] - py;
                auto sweep = [&](int low_azimuth, int high_azimuth) {
                    for (int e = low_azimuth * V; e < (high_azimuth + 1) * V; e += W) {
                        const lanes t =
                            meet(x0, y0, x1, y1, tall[k], load(ix + e), load(iy + e), load(slope + e), load(sink + e));
                        store(best + e, nearer(load(best + e), t));
                    }
                };
                int low_azimuth = (int)(a[w] + (2 * H + 1 - guard)) - 2 * H; // rounded up
                int high_azimuth = (int)(b[w] + (2 * H + guard)) - 2 * H;    // rounded down
                if (low_azimuth < 0) { low_azimuth += H; high_azimuth += H; }
                sweep(low_azimuth, high_azimuth < H ? high_azimuth : H - 1);
                if (high_azimuth >= H) sweep(0, high_azimuth - H); // wraps around
            }
        }
    });
    for (int e = 0; e < BEAMS; ++e) {
        const float t = best[e] * stretch[e];
        out[e] = t < reach ? t : reach;
    }
#endif
"""

_TOUCHES = """
    // Squared horizontal distance to the nearest box; boxes too low for any beam do not count.
    float gap[W];
    lanes nearest = all(NEVER);
    each_run_within(radius, [&](int begin, int end) {
        for (int k = begin; k < end; k += W) { // may read past the end: extra boxes only make the test conservative
            const lanes ex = high(high(load(west + k) - all(px), all(px) - load(east + k)), all(0.0f));
            const lanes ey = high(high(load(south + k) - all(py), all(py) - load(north + k)), all(0.0f));
            nearest = nearer(nearest, load(tall + k) < all(pz - radius) ? all(NEVER) : ex * ex + ey * ey);
        }
    });
    store(gap, nearest);
    bool near = pz < radius;
    for (int w = 0; w < W; ++w) near |= gap[w] <= radius * radius;
    if (!near) return false; // the common case
    normalize_yaw();
    for (int a = 0; a < H; ++a) {
        float dx, dy;
        direction(a, dx, dy);
        const lanes ix = all(inverse(dx)), iy = all(inverse(dy));
        for (int e = a * V; e < (a + 1) * V; e += W) {
            bool touched = false;
            const int count = (a + 1) * V - e < W ? (a + 1) * V - e : W;
            for (int w = 0; w < count; ++w) touched |= ground(dx, dy, e + w) * stretch[e + w] < radius;
            each_run_within(radius, [&](int begin, int end) {
                for (int k = begin; k < end; ++k) {
                    float t[W];
                    store(t, meet(west[k] - px, south[k] - py, east[k] - px, north[k] - py, tall[k], ix, iy,
                                  load(slope + e), load(sink + e)));
                    for (int w = 0; w < count; ++w) touched |= t[w] * stretch[e + w] < radius;
                }
            });
            if (touched) return true;
        }
    }
    return false;
"""


@cache
def lidar_functions(azimuths: int, elevations: int) -> tuple[wp.Function, wp.Function]:
    """Build Warp functions `scan_beams` (all ranges of a drone) and `beam_touches` (any beam shorter than a radius)."""
    shared = _SHARED % {
        "azimuths": azimuths,
        "elevations": elevations,
        "columns": COLUMNS,
        "band": BAND,
        "bands": BANDS,
        "margin": MARGIN,
        "half": MAP_HALF,
        "ground": GROUND_HALF,
    }

    @wp.func_native(shared + _SCAN)
    def scan_beams(
        boxes: wp.array2d(dtype=float),
        buckets: wp.array2d(dtype=int),
        azimuth: wp.array2d(dtype=wp.float64),
        beams: wp.array2d(dtype=float),
        map: int,
        px: float,
        py: float,
        pz: float,
        qw: float,
        qx: float,
        qy: float,
        qz: float,
        reach: float,
        drone: int,
        first: int,
        ranges: wp.array3d(dtype=float),
    ): ...

    @wp.func_native(shared + _TOUCHES)
    def beam_touches(
        boxes: wp.array2d(dtype=float),
        buckets: wp.array2d(dtype=int),
        azimuth: wp.array2d(dtype=wp.float64),
        beams: wp.array2d(dtype=float),
        map: int,
        px: float,
        py: float,
        pz: float,
        qw: float,
        qx: float,
        qy: float,
        qz: float,
        radius: float,
    ) -> bool: ...

    return scan_beams, beam_touches  # pyright: ignore[reportReturnType]
