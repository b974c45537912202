# pyright: reportInvalidTypeForm=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
"""The task as Warp kernels: observation, reward, end of a flight, start of the next one.

They read only the tensors of the `Simulator` interface, so they serve every engine. `tests/task/statement.py` states
the same in plain PyTorch; the two must agree.
"""

from __future__ import annotations

import warp as wp

from navrl import schema
from navrl.native.launch import number_at
from navrl.native.runtime import FORWARD_ONLY

wp.set_module_options(FORWARD_ONLY)

Weights = wp.types.vector(length=schema.TERM_COUNT, dtype=float)


@wp.struct
class Rules:
    """Numbers of the task."""

    lidar_range: float
    goal_radius: float
    floor: float
    ceiling: float
    max_steps: int  # physics steps
    end_at_goal: int
    decision_seconds: float
    weights: Weights


@wp.func_native("""
    const float* __restrict__ range = ranges.data + (long long)drone * count;
    float* __restrict__ out = nearness.data + (long long)drone * count;
    for (int e = 0; e < count; ++e) out[e] = reach - range[e];
    constexpr int W = 8, FLUSH = 32;
    double product[W], mantissa = 1.0;
    int exponent = 0;
    // The logarithm of a product is many times cheaper than a sum of logarithms. To keep it in bounds (1e-6 to the 32nd
    // is still a double), exponents are taken out and counted apart.
    union { double value; unsigned long long bits; } split;
    auto take_exponent = [&](double value) {
        split.value = value;
        exponent += (int)(split.bits >> 52) - 1023;
        split.bits = (split.bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
        return split.value;
    };
    for (int first = 0; first < count; first += W * FLUSH) {
        const int end = first + W * FLUSH < count ? first + W * FLUSH : count;
        for (int w = 0; w < W; ++w) product[w] = 1.0;
        int e = first;
        for (; e + W <= end; e += W)
            for (int w = 0; w < W; ++w) product[w] *= range[e + w] > 1e-6f ? range[e + w] : 1e-6f;
        for (; e < end; ++e) product[0] *= range[e] > 1e-6f ? range[e] : 1e-6f;
        for (int w = 0; w < W; ++w) mantissa *= take_exponent(product[w]);
        mantissa = take_exponent(mantissa);
    }
    return (float)((log(mantissa) + exponent * 0.6931471805599453) / count);
""")
def write_nearness(
    ranges: wp.array3d(dtype=float), reach: float, drone: int, count: int, nearness: wp.array(dtype=float)
) -> float:
    """Write `reach - range` of every beam of a drone; returns the mean logarithm of its ranges."""
    ...


@wp.func_native(
    f"constexpr int NEAREST = {schema.NEAREST};"
    """
    const int K = position.shape[2];
    const float* x = position.data + (long long)map * 3 * K;
    const float* y = x + K;
    float near[NEAREST];
    int* index = nearest.data + (long long)drone * NEAREST;
    int found = 0;
    constexpr int BLOCK = 16; // look at many together: few are in reach
    for (int j = 0; j < count; j += BLOCK) {
        const int stop = j + BLOCK < count ? j + BLOCK : count;
        int any = 0;
        for (int k = j; k < stop; ++k) {
            const float dx = x[k] - px, dy = y[k] - py;
            any |= dx * dx + dy * dy <= reach * reach;
        }
        if (!any) continue;
        for (int k = j; k < stop; ++k) {
            const float dx = x[k] - px, dy = y[k] - py, d = dx * dx + dy * dy;
            if (d > reach * reach || (found == NEAREST && d >= near[NEAREST - 1])) continue;
            int place = found < NEAREST ? found++ : NEAREST - 1;
            for (; place > 0 && near[place - 1] > d; --place) {
                near[place] = near[place - 1];
                index[place] = index[place - 1];
            }
            near[place] = d;
            index[place] = k;
        }
    }
    return found;
"""
)
def find_nearest(
    position: wp.array3d(dtype=float),
    map: int,
    count: int,
    px: float,
    py: float,
    reach: float,
    drone: int,
    nearest: wp.array2d(dtype=int),
) -> int:
    """Moving obstacles within `reach` over ground, nearest first, into nearest[drone]; returns how many."""
    ...


@wp.func_native("for (int k = 0; k < count; ++k) values.data[first + k] = 0.0f;")
def clear(values: wp.array(dtype=float), first: int, count: int): ...


@wp.func
def to_goal_frame(v: wp.vec3, ahead: wp.vec2) -> wp.vec3:
    """x along the horizontal line from start to goal, z up."""
    return wp.vec3(ahead[0] * v[0] + ahead[1] * v[1], ahead[0] * v[1] - ahead[1] * v[0], v[2])


@wp.func
def unit(v: wp.vec3) -> wp.vec3:
    return v / wp.max(wp.length(v), 1.0e-6)


@wp.kernel
def begin(
    drones: wp.uint64,  # address of their numbers; row r of position, yaw and map_index is for drone number r
    first: int,  # number of drone 0 in the whole run, which may be shared out
    seed: int,
    in_order: int,  # 1: drone i always flies start i // M of map i % M; 0: both are redrawn for every episode
    starts: wp.array2d(dtype=wp.vec3),  # (M, S)
    goals: wp.array2d(dtype=wp.vec3),
    episode: wp.array(dtype=int),
    position: wp.array(dtype=wp.vec3),
    yaw: wp.array(dtype=float),
    map_index: wp.array(dtype=int),
    goal: wp.array(dtype=wp.vec3),
    ahead: wp.array(dtype=wp.vec2),
    band: wp.array(dtype=wp.vec2),
    last_position: wp.array(dtype=wp.vec3),
    last_velocity: wp.array(dtype=wp.vec3),
    elapsed: wp.array(dtype=int),
    outcome: wp.array(dtype=int),
    stats: wp.array2d(dtype=float),
):
    r = wp.tid()
    i = number_at(drones, r)
    maps, slots = starts.shape[0], starts.shape[1]
    m, slot = (first + i) % maps, ((first + i) // maps) % slots
    if in_order == 0:
        random = wp.rand_init(seed + episode[i] * 1013904223, first + i)
        m = wp.randi(random, 0, maps)
        slot = wp.randi(random, 0, slots)
    episode[i] += 1
    start = starts[m, slot]
    target = goals[m, slot]
    way = target - start
    flat = wp.vec2(way[0], way[1])
    forward = wp.vec2(1.0, 0.0)
    if wp.length(flat) > 1.0e-6:
        forward = wp.normalize(flat)

    position[r] = start
    yaw[r] = wp.atan2(forward[1], forward[0])
    map_index[r] = m
    goal[i] = target
    ahead[i] = forward
    band[i] = wp.vec2(wp.min(start[2], target[2]), wp.max(start[2], target[2]))
    last_position[i] = start
    last_velocity[i] = wp.vec3()
    elapsed[i] = 0
    outcome[i] = schema.FLYING
    for k in range(schema.STAT_COUNT):
        stats[k, i] = 0.0
    stats[schema.STRAIGHT, i] = wp.length(way)
    stats[schema.LEFT, i] = wp.length(way)


@wp.kernel
def observe(
    offset: int,
    drones: wp.uint64,  # address of their numbers
    rules: Rules,
    position: wp.array(dtype=wp.vec3),
    velocity: wp.array(dtype=wp.vec3),
    lidar: wp.array3d(dtype=float),
    map_index: wp.array(dtype=int),
    moving_position: wp.array3d(dtype=float),
    moving_velocity: wp.array3d(dtype=float),
    moving_size: wp.array3d(dtype=float),
    moving_count: wp.array(dtype=int),
    goal: wp.array(dtype=wp.vec3),
    ahead: wp.array(dtype=wp.vec2),
    nearest: wp.array2d(dtype=int),  # (N, schema.NEAREST): the obstacles a drone observes; -1: none
    static_log: wp.array(dtype=float),  # for the reward: mean log distance of the beams ...
    moving_log: wp.array(dtype=float),  # ... and of the near moving obstacles
    address: wp.uint64,  # where to write: lidar, state, direction, obstacles, one after the other
):
    i = number_at(drones, offset + wp.tid())
    n = position.shape[0]
    beams = lidar.shape[1] * lidar.shape[2]
    out = wp.array(
        ptr=address,
        shape=(n * (beams + schema.STATE + schema.DIRECTION + schema.NEAREST * schema.OBSTACLE),),
        dtype=float,
    )
    static_log[i] = write_nearness(lidar, rules.lidar_range, i, beams, out)

    p = position[i]
    f = ahead[i]
    way = goal[i] - p
    toward = to_goal_frame(unit(way), f)
    speed = to_goal_frame(velocity[i], f)
    at = n * beams + i * schema.STATE
    for k in range(3):
        out[at + schema.STATE_TOWARD + k] = toward[k]
        out[at + schema.STATE_VELOCITY + k] = speed[k]
    out[at + schema.STATE_DISTANCE] = wp.sqrt(way[0] * way[0] + way[1] * way[1])
    out[at + schema.STATE_HEIGHT] = way[2]

    at = n * (beams + schema.STATE) + i * schema.DIRECTION
    out[at] = f[0]
    out[at + 1] = f[1]
    out[at + 2] = 0.0

    m = map_index[i]
    at = n * (beams + schema.STATE + schema.DIRECTION) + i * schema.NEAREST * schema.OBSTACLE
    found = find_nearest(moving_position, m, moving_count[m], p[0], p[1], rules.lidar_range, i, nearest)
    logs = float(schema.NEAREST - found) * wp.log(rules.lidar_range)
    for r in range(found):
        j = nearest[i, r]
        width, height = moving_size[m, 0, j], moving_size[m, 1, j]
        v = wp.vec3(moving_velocity[m, 0, j], moving_velocity[m, 1, j], moving_velocity[m, 2, j])
        to = wp.vec3(moving_position[m, 0, j], moving_position[m, 1, j], moving_position[m, 2, j]) - p
        floating = height <= 1.0
        if not floating:
            to[2] = 0.0  # a tall cylinder is at every height
        gap = wp.length(to) - 0.5 * width
        logs += wp.log(wp.clamp(gap, 1.0e-6, rules.lidar_range))
        to_g = to_goal_frame(unit(to), f)
        v_g = to_goal_frame(v, f)
        for k in range(3):
            out[at + schema.OBSTACLE_TOWARD + k] = to_g[k]
            out[at + schema.OBSTACLE_VELOCITY + k] = v_g[k]
        out[at + schema.OBSTACLE_DISTANCE] = wp.sqrt(to[0] * to[0] + to[1] * to[1])
        out[at + schema.OBSTACLE_HEIGHT] = to[2]
        out[at + schema.OBSTACLE_WIDTH] = width / schema.WIDTH_STEP - 1.0
        out[at + schema.OBSTACLE_FLOATING] = wp.where(floating, height, 0.0)
        at += schema.OBSTACLE
    for r in range(found, schema.NEAREST):
        nearest[i, r] = -1
    clear(out, at, (schema.NEAREST - found) * schema.OBSTACLE)
    moving_log[i] = logs / float(schema.NEAREST)


@wp.kernel
def judge(
    offset: int,
    rules: Rules,
    velocity: wp.array(dtype=wp.vec3),
    trace: wp.array2d(dtype=wp.vec3),
    static_contact: wp.array2d(dtype=wp.uint8),
    moving_contact: wp.array2d(dtype=wp.uint8),
    goal: wp.array(dtype=wp.vec3),
    band: wp.array(dtype=wp.vec2),
    static_log: wp.array(dtype=float),
    moving_log: wp.array(dtype=float),
    last_position: wp.array(dtype=wp.vec3),
    last_velocity: wp.array(dtype=wp.vec3),
    elapsed: wp.array(dtype=int),
    outcome: wp.array(dtype=int),
    stats: wp.array2d(dtype=float),  # (schema.STAT_COUNT, N), kept by the task
    address: wp.uint64,  # where to write: reward (N)
    flags: wp.uint64,  # where to write: done, terminated, truncated, (N) each
):
    i = offset + wp.tid()
    n = velocity.shape[0]
    target = goal[i]
    before = last_position[i]
    event = outcome[i]
    was_flying = event == schema.FLYING
    crashed = bool(False)
    p = before
    for k in range(trace.shape[0]):
        p = trace[k, i]
        if event == schema.FLYING:
            stats[schema.PATH, i] += wp.length(p - before)
            stats[schema.LENGTH, i] += 1.0
        before = p
        left = wp.length(target - p)
        hit = int(schema.FLYING)
        if static_contact[k, i] != wp.uint8(0):
            hit = schema.STATIC_COLLISION
        elif moving_contact[k, i] != wp.uint8(0):
            hit = schema.DYNAMIC_COLLISION
        elif p[2] < rules.floor or p[2] > rules.ceiling:
            hit = schema.OUT_OF_BOUNDS
        crashed = crashed or hit != schema.FLYING
        if hit == schema.FLYING and left < rules.goal_radius:
            hit = schema.SUCCESS
        if event == schema.FLYING and hit != schema.FLYING:
            event = hit
            stats[schema.LEFT, i] = left
    reached = was_flying and event == schema.SUCCESS
    if event == schema.FLYING:
        stats[schema.LEFT, i] = wp.length(target - p)

    steps = elapsed[i] + trace.shape[0]
    elapsed[i] = steps
    over = crashed
    if rules.end_at_goal != 0:
        over = event != schema.FLYING  # nothing after the first event counts
    late = steps >= rules.max_steps and not over
    if late and event == schema.FLYING:
        event = schema.TIMEOUT
    outcome[i] = event
    ends = wp.array(ptr=flags, shape=(3, n), dtype=wp.bool)
    ends[0, i] = over or late
    ends[1, i] = over
    ends[2, i] = late

    v = velocity[i]
    way = target - p
    moved = wp.length(target - last_position[i]) - wp.length(way)
    outside = wp.max(0.0, wp.max(p[2] - band[i][1] - 0.2, band[i][0] - 0.2 - p[2]))
    terms = Weights()
    terms[schema.TERM_VELOCITY] = wp.dot(v, unit(way))
    terms[schema.TERM_PROGRESS] = moved
    terms[schema.TERM_ALIVE] = 1.0
    terms[schema.TERM_STATIC_CLEARANCE] = static_log[i]
    terms[schema.TERM_MOVING_CLEARANCE] = moving_log[i]
    terms[schema.TERM_SMOOTHNESS] = -wp.length(v - last_velocity[i])
    terms[schema.TERM_HEIGHT] = -outside * outside
    terms[schema.TERM_TIME] = -rules.decision_seconds
    terms[schema.TERM_GOAL] = wp.where(reached, 1.0, 0.0)
    terms[schema.TERM_COLLISION] = wp.where(crashed and not (reached and rules.end_at_goal != 0), -1.0, 0.0)
    last_position[i] = p
    last_velocity[i] = v

    reward = float(0.0)
    for t in range(schema.TERM_COUNT):
        paid = terms[t] * rules.weights[t]
        reward += paid
        stats[schema.FIRST_TERM + t, i] += paid
    stats[schema.RETURN, i] += reward
    for o in range(schema.OUTCOME_COUNT):
        stats[o, i] = wp.where(event == o + 1, 1.0, 0.0)
    out = wp.array(ptr=address, shape=(n,), dtype=float)
    out[i] = reward
