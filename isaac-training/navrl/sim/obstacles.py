# pyright: reportInvalidTypeForm=false, reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""NavRL's rule for moving obstacles, as a Warp kernel used by both engines.

Every obstacle wanders around its origin. It draws a new local goal when it is within 0.5 m of the old one, but its
speed and heading are redrawn only every two seconds, so it overshoots. All draws depend only on (seed, step, obstacle).
"""

from __future__ import annotations

import numpy as np
import torch
import warp as wp

from navrl.native.launch import Recorded
from navrl.native.runtime import FORWARD_ONLY
from navrl.sim.scene import CEILING, CYLINDER_HEIGHT, MAP_HALF, Scene
from navrl.sim.simulator import SimSettings, constant

wp.set_module_options(FORWARD_ONLY)

REDRAW_SECONDS = 2.0
GOAL_RADIUS = 0.5  # m


@wp.func
def stream(seed: int, step: int, obstacle: int) -> wp.uint32:
    """Random state of one obstacle at one step."""
    return wp.rand_init(seed + step * 1013904223, obstacle)


@wp.func_native("""
    const int K = position.shape[3], maps = position.shape[1];
    const float* from = position.data + ((long long)before * maps + map) * 3 * K;
    float* to = position.data + ((long long)after * maps + map) * 3 * K;
    const float* speed = velocity.data + (long long)map * 3 * K;
    for (int axis = 0; axis < 3; ++axis)
        for (int j = first; j < end; ++j) to[axis * K + j] = from[axis * K + j] + speed[axis * K + j] * dt;
""")
def advance(
    position: wp.array4d(dtype=float),
    velocity: wp.array3d(dtype=float),
    map: int,
    before: int,
    after: int,
    first: int,
    end: int,
    dt: float,
):
    """Move obstacles `first` to `end` of a map by one step, from slot `before` to slot `after`."""
    ...


@wp.func_native("""
    const int K = position.shape[3];
    const float* p = position.data + ((long long)slot * position.shape[1] + map) * 3 * K;
    const float* g = goal.data + (long long)map * 3 * K;
    constexpr int BLOCK = 16; // test many at once: arrivals are rare
    for (int j = first; j < end; j += BLOCK) {
        const int stop = j + BLOCK < end ? j + BLOCK : end;
        int any = 0;
        for (int k = j; k < stop; ++k) {
            const float dx = p[k] - g[k], dy = p[K + k] - g[K + k], dz = p[2 * K + k] - g[2 * K + k];
            any |= dx * dx + dy * dy + dz * dz < radius * radius;
        }
        if (any)
            for (int k = j; k < stop; ++k) {
                const float dx = p[k] - g[k], dy = p[K + k] - g[K + k], dz = p[2 * K + k] - g[2 * K + k];
                if (dx * dx + dy * dy + dz * dz < radius * radius) return k;
            }
    }
    return end;
""")
def next_arrival(
    position: wp.array4d(dtype=float),
    goal: wp.array3d(dtype=float),
    map: int,
    slot: int,
    first: int,
    end: int,
    radius: float,
) -> int:
    """Return the first obstacle from `first` on that is within `radius` of its goal, or `end`."""
    ...


@wp.kernel
def move_obstacles(
    share: int,  # obstacles per thread: all of a map on a CPU, one on CUDA
    origin: wp.array3d(dtype=float),  # (M, 3, K)
    height: wp.array2d(dtype=float),  # (M, K)
    count: wp.array(dtype=int),  # (M,)
    speed_range: wp.vec2,
    local_range: wp.vec3,
    dt: float,
    redraw_steps: int,
    seed: int,
    step: int,  # physics steps taken before this call
    substeps: int,
    goal: wp.array3d(dtype=float),  # (M, 3, K)
    velocity: wp.array3d(dtype=float),  # (M, 3, K)
    position: wp.array4d(dtype=float),  # (substeps, M, 3, K): after each physics step; the last is the current one
):
    m, part = wp.tid()
    first = part * share
    end = wp.min(first + share, count[m])
    before = substeps - 1
    for k in range(substeps):
        now = step + k
        # New goal on arrival (and at step 0, where all goals are drawn).
        j = first
        if now > 0:
            j = next_arrival(position, goal, m, before, first, end, GOAL_RADIUS)
        while j < end:
            random = stream(seed, 2 * now, m * origin.shape[2] + j)
            dx = wp.randf(random, -local_range[0], local_range[0])
            dy = wp.randf(random, -local_range[1], local_range[1])
            # NavRL's vertical range starts at -local_range[1]; its maps were drawn that way.
            dz = wp.randf(random, -local_range[1], 2.0 * local_range[2] - local_range[1])
            goal[m, 0, j] = wp.clamp(origin[m, 0, j] + dx, -MAP_HALF, MAP_HALF)
            goal[m, 1, j] = wp.clamp(origin[m, 1, j] + dy, -MAP_HALF, MAP_HALF)
            goal[m, 2, j] = wp.clamp(origin[m, 2, j] + dz, 0.0, CEILING)
            if height[m, j] >= CYLINDER_HEIGHT:
                goal[m, 2, j] = origin[m, 2, j]
            j += 1
            if now > 0:
                j = next_arrival(position, goal, m, before, j, end, GOAL_RADIUS)
        # New speed, and heading towards the current goal, every two seconds.
        if now % redraw_steps == 0:
            for i in range(first, end):
                random = stream(seed, 2 * now + 1, m * origin.shape[2] + i)
                way = wp.vec3(
                    goal[m, 0, i] - position[before, m, 0, i],
                    goal[m, 1, i] - position[before, m, 1, i],
                    goal[m, 2, i] - position[before, m, 2, i],
                )
                v = wp.normalize(way) * wp.randf(random, speed_range[0], speed_range[1])
                for axis in range(3):
                    velocity[m, axis, i] = v[axis]
        advance(position, velocity, m, before, k, first, end, dt)
        before = k


def obstacle_seed(seed: int) -> int:
    """Derive a 31-bit seed for the kernel, distinct from those of the scene and the task."""
    return int(np.random.SeedSequence([seed, 1]).generate_state(1)[0] >> 1)


class MovingObstacles:
    """Moving obstacles of every map and the launch that moves them. K per map, including padding."""

    def __init__(self, scene: Scene, settings: SimSettings, device: torch.device) -> None:
        self._origin = constant(scene.moving_origin.transpose(0, 2, 1), device)  # (M, 3, K)
        self.size = constant(scene.moving_size.transpose(0, 2, 1), device)  # (M, 2, K): width, height
        self.count = constant(scene.moving_count, device, torch.int32)
        self.velocity, self.goal = torch.zeros_like(self._origin), torch.zeros_like(self._origin)
        self.path = self._origin.repeat(settings.decimation, 1, 1, 1)  # after each physics step of an action
        self.position = self.path[-1]

        maps, _, per_map = self._origin.shape
        self.any = per_map > 0
        share = 1 if device.type == "cuda" else max(1, per_map)  # obstacles per thread
        limits = [wp.vec2(*settings.moving_speed), wp.vec3(*settings.moving_range)]
        redraw = max(1, int(REDRAW_SECONDS / settings.step_seconds + 1e-6))
        seed = obstacle_seed(settings.seed)
        rule = [share, self._origin, self.size[:, 1].contiguous(), self.count, *limits, settings.step_seconds, redraw]
        inputs = [*rule, seed, 0, settings.decimation, self.goal, self.velocity, self.path]
        self._launch = Recorded(move_obstacles, (maps, max(1, per_map) // share), inputs, device)

    def advance(self, step: int) -> None:
        """Move by one action, after `step` physics steps so far."""
        if self.any:
            self._launch.set("step", step)
            self._launch.run()

    def place(self, map_index: int, number: int, position: torch.Tensor) -> None:
        """Put an obstacle, its origin and its goal somewhere else (3,)."""
        for tensor in (self._origin[map_index], self.goal[map_index], *self.path[:, map_index]):
            tensor[:, number] = position.to(tensor)

    def stand_still(self) -> None:
        """Fill the path with the current position after a load, as if it had been held through the last action."""
        self.path.copy_(self.position.clone().expand_as(self.path))
