# pyright: reportInvalidTypeForm=false, reportOperatorIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""Beams that end at moving obstacles, for sensors that see them (`sensor.lidar_sees_moving`).

A pass over the ranges of a scan, after either engine has measured the static field. A floating obstacle is a cuboid
along the world's axes, a tall one a cylinder. `tests/sim/test_lidar.py` contains the brute-force reference.
"""

from __future__ import annotations

import warp as wp

from navrl.native.launch import number_at
from navrl.native.runtime import FORWARD_ONLY
from navrl.sim.scene import CUBOID_HEIGHT

wp.set_module_options(FORWARD_ONLY)


@wp.func
def cross_cylinder(dx: float, dy: float, across: float, along: wp.vec2) -> wp.vec2:
    """Horizontal distances at which a beam enters and leaves a cylinder at (dx, dy); enter > leave: it misses."""
    side = dx * along[1] - dy * along[0]
    room = across * across - side * side
    if room < 0.0:
        return wp.vec2(1.0, -1.0)
    middle = dx * along[0] + dy * along[1]
    half = wp.sqrt(room)
    return wp.vec2(middle - half, middle + half)


@wp.func
def cross_square(dx: float, dy: float, across: float, along: wp.vec2) -> wp.vec2:
    """The same for a square along the axes."""
    enter = float(-1.0e30)
    leave = float(1.0e30)
    for axis in range(2):
        d = wp.where(axis == 0, dx, dy)
        a = along[axis]
        if wp.abs(a) < 1.0e-9:
            a = 1.0e-9
        first = (d - across) / a
        second = (d + across) / a
        enter = wp.max(enter, wp.min(first, second))
        leave = wp.min(leave, wp.max(first, second))
    return wp.vec2(enter, leave)


@wp.kernel
def scan_moving(
    offset: int,
    drones: wp.uint64,  # address of the drone indices
    reach: float,
    azimuth: wp.array2d(dtype=wp.float64),  # (2, H): cosine and sine
    beams: wp.array2d(dtype=float),  # (3, H·V + 8): tangent of the elevation, …, 1 / its cosine
    map_index: wp.array(dtype=int),
    position: wp.array(dtype=wp.vec3),
    quaternion: wp.array(dtype=wp.vec4),
    moving_position: wp.array3d(dtype=float),  # (M, 3, K)
    moving_size: wp.array3d(dtype=float),  # (M, 2, K)
    moving_count: wp.array(dtype=int),
    ranges: wp.array3d(dtype=float),  # (N, H, V): shortened where an obstacle is nearer
):
    i = number_at(drones, offset + wp.tid())
    if i < 0 or i >= position.shape[0]:
        return
    m = map_index[i]
    p = position[i]
    q = quaternion[i]
    # Beams follow the yaw only, in double precision as in the scan of the static field.
    w, x, y, z = wp.float64(q[0]), wp.float64(q[1]), wp.float64(q[2]), wp.float64(q[3])
    cosine = w * w + x * x - y * y - z * z
    sine = wp.float64(2.0) * (w * z + x * y)
    scale = wp.float64(1.0) / wp.sqrt(cosine * cosine + sine * sine)
    cosine *= scale
    sine *= scale
    for j in range(moving_count[m]):
        dx = moving_position[m, 0, j] - p[0]
        dy = moving_position[m, 1, j] - p[1]
        across = 0.5 * moving_size[m, 0, j]
        far = reach + 1.4143 * across
        if dx * dx + dy * dy > far * far:
            continue
        height = moving_size[m, 1, j]
        low = moving_position[m, 2, j] - 0.5 * height - p[2]
        high = low + height
        for a in range(ranges.shape[1]):
            c, s = azimuth[0, a], azimuth[1, a]
            along = wp.vec2(float(c * cosine - s * sine), float(s * cosine + c * sine))
            span = wp.vec2()
            if height <= CUBOID_HEIGHT:
                span = cross_square(dx, dy, across, along)
            else:
                span = cross_cylinder(dx, dy, across, along)
            if span[0] > span[1] or span[1] < 0.0 or span[0] > reach:
                continue
            for v in range(ranges.shape[2]):
                slope = beams[0, v]
                enter = wp.max(span[0], 0.0)
                leave = span[1]
                if wp.abs(slope) < 1.0e-9:
                    if low > 0.0 or high < 0.0:
                        continue
                else:
                    enter = wp.max(enter, wp.min(low / slope, high / slope))
                    leave = wp.min(leave, wp.max(low / slope, high / slope))
                if enter <= leave:
                    ranges[i, a, v] = wp.min(ranges[i, a, v], enter * beams[2, v])
