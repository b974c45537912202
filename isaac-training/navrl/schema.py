"""Names, sizes and offsets of the task, defined once: observations, outcomes, reward terms, flight statistics.

Kernels, environment, networks, rollouts and export all import them from here. Plain numbers, no other imports, so every
room may know this file.
"""

from __future__ import annotations

NEAREST = 5  # moving obstacles in an observation, nearest first
ACTIONS = 3  # velocity along x, y, z

# --- observation --------------------------------------------------------------------------------------------------
# All vectors are in the goal frame: x along the horizontal line from start to goal, z up.

STATE_PARTS = {"goal_direction": 3, "goal_distance": 1, "goal_height": 1, "velocity": 3}  # unit vector, m, m, m/s
OBSTACLE_PARTS = {"direction": 3, "distance": 1, "height": 1, "velocity": 3, "width_class": 1, "floating_height": 1}
STATE, DIRECTION, OBSTACLE = sum(STATE_PARTS.values()), 3, sum(OBSTACLE_PARTS.values())
STATE_TOWARD, STATE_DISTANCE, STATE_HEIGHT, STATE_VELOCITY = 0, 3, 4, 5  # offsets
OBSTACLE_TOWARD, OBSTACLE_DISTANCE, OBSTACLE_HEIGHT, OBSTACLE_VELOCITY, OBSTACLE_WIDTH, OBSTACLE_FLOATING = (
    0,
    3,
    4,
    5,
    8,
    9,
)
WIDTH_STEP = 0.25  # m: an obstacle's width class is width / WIDTH_STEP - 1

OBSERVED = ("agents", "observation")
NETWORK_INPUTS = ("state", "lidar", "dynamic_obstacle")  # what encoders read, in the order of their arguments
POLICY_INPUTS = ("state", "lidar", "direction", "dynamic_obstacle")  # what a deployed policy reads


def observation_shapes(beams: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Shape of each observation of one drone, in the order in which the kernels write them."""
    return {
        "lidar": (1, *beams),  # range - distance in m, azimuth by elevation; 0: clear
        "state": (STATE,),
        "direction": (1, DIRECTION),  # the goal frame's x axis in the world
        "dynamic_obstacle": (1, NEAREST, OBSTACLE),  # zeros: no obstacle
    }


# --- outcome ------------------------------------------------------------------------------------------------------
# The outcome of an episode is its first event.

FLYING = 0
OUTCOMES = ("success", "static_collision", "dynamic_collision", "out_of_bounds", "timeout")
SUCCESS, STATIC_COLLISION, DYNAMIC_COLLISION, OUT_OF_BOUNDS, TIMEOUT = range(1, 6)
OUTCOME_COUNT = len(OUTCOMES)

# --- reward and statistics ------------------------------------------------------------------------------------------

TERMS = (  # each has a weight in cfg/reward
    "velocity", "progress", "alive", "static_clearance", "moving_clearance", "smoothness", "height", "time", "goal",
    "collision",
)  # fmt: skip
(
    TERM_VELOCITY, TERM_PROGRESS, TERM_ALIVE, TERM_STATIC_CLEARANCE, TERM_MOVING_CLEARANCE, TERM_SMOOTHNESS,
    TERM_HEIGHT, TERM_TIME, TERM_GOAL, TERM_COLLISION,
) = range(len(TERMS))  # fmt: skip
TERM_COUNT = len(TERMS)

# Per drone and episode: the outcome as flags, then what was flown, then the weighted sum of each reward term.
FLOWN = ("return", "length", "path_length", "straight_distance", "goal_distance")
STATS = OUTCOMES + FLOWN + tuple(f"reward_{term}" for term in TERMS)
RETURN, LENGTH, PATH, STRAIGHT, LEFT = range(len(OUTCOMES), len(OUTCOMES) + len(FLOWN))
FIRST_TERM, STAT_COUNT = len(OUTCOMES) + len(FLOWN), len(STATS)
