"""The world behind the page: the same flights for two policies, and what a person may change in it."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import EVAL
from navrl.sim.scene import generate_scene
from navrl.task.evaluation import Scenario, fly_all, hover, straight
from navrl.view.world import HOLD_SECONDS, World


def make(*policies, scenario: str = "crossing-60-16", drones: int = 4, **changes) -> World:
    return World(Scenario.parse(scenario), 7, drones, policies or (straight,), EVAL.sim, EVAL.task, **changes)


def fly(world: World, seconds: float) -> None:
    for _ in range(round(seconds / world.step_seconds)):
        world.step()


def test_flights_end_are_counted_and_begin_again() -> None:
    world = make(drones=16)
    fly(world, 60.0)
    crew = world.crews[0]
    assert crew.counts.sum() >= 16 and crew.counts[1:].sum() > 0
    assert len(crew.ended) == min(64, crew.counts.sum())
    assert {trail.outcome for trail in crew.ended} == set(np.flatnonzero(crew.counts))
    assert crew.flying.any()


def test_it_is_the_flight_of_an_evaluation(make_env) -> None:
    world = make(drones=4)
    starts = world.sim.position.numpy().copy()
    fly(world, 40.0)  # longer than any flight
    scene = generate_scene(7, 1, 60, 16, "crossing", starts_per_map=256, stream=1)
    env = make_env(scene, 4, task={"reward": EVAL.task.reward, "seed": 7}, seed=7)
    flights = fly_all(env, straight)
    assert flights is not None and np.array_equal(flights.trace[:, 0], starts)
    ends = {tuple(np.round(trail.points[-1], 4)) for trail in world.crews[0].ended}
    assert {tuple(np.round(end, 4)) for end in flights.trace[:, -1]} <= ends


def test_two_policies_fly_the_same_flights() -> None:
    world = make(straight, hover, scenario="crossing-0-16")
    one, two = world.crews
    fly(world, 3.0)
    assert (one.env.goal == two.env.goal).all() and (one.points[0][0] == two.points[0][0]).all()
    assert (one.env.simulator.moving_position == two.env.simulator.moving_position).all()
    assert (one.env.simulator.position - two.env.simulator.position).norm(dim=1).min() > 1.0
    fly(world, 60.0)  # one has long arrived, and waits for the other to time out: the next flights are shared too
    assert one.counts.sum() == two.counts.sum() == 4 or (one.env.goal == two.env.goal).all()


def test_a_flight_that_ended_is_shown_for_a_while() -> None:
    world = make(scenario="crossing-0-0", drones=1)
    crew = world.crews[0]
    while crew.flying[0]:
        world.step()
    assert crew.outcome[0] == 0 and crew.points[0] == []
    fly(world, HOLD_SECONDS - 0.1)
    assert not crew.flying[0]
    fly(world, 0.3)
    assert crew.flying[0] and crew.outcome[0] == -1


def test_a_goal_that_is_moved_is_flown_to() -> None:
    world = make(scenario="crossing-0-0", drones=2)
    fly(world, 2.0)
    here = world.sim.position.numpy().copy()
    world.move_goal(0, here[0] + [0.0, 6.0, 0.0])
    fly(world, 1.0)
    velocity = world.sim.velocity.numpy()
    way = (here[0] + [0, 6, 0] - world.sim.position.numpy()[0])[:2]
    assert velocity[0, :2] @ way / np.linalg.norm(way) > 1.0  # it turned
    assert abs(velocity[1, 1]) < 1.0 or abs(velocity[1, 0]) < 1.0  # the other one did not


def test_a_drone_can_be_put_elsewhere() -> None:
    world = make(straight, hover, scenario="crossing-0-0", drones=2)
    fly(world, 2.0)
    world.move_drone(1, np.array([3.0, -4.0, 1.5]))
    for crew in world.crews:
        assert crew.env.simulator.position[1].tolist() == pytest.approx([3.0, -4.0, 1.5])
        assert crew.env.simulator.velocity[1].norm() == 0.0
    fly(world, 5.0)
    assert world.crews[0].flying[1]


def test_a_box_in_the_way_stops_a_drone_that_does_not_look() -> None:
    world = make(scenario="crossing-0-0", drones=1)
    fly(world, 2.0)
    ahead = world.sim.velocity[0].numpy()
    place = world.sim.position[0].numpy() + 3.0 * ahead / np.linalg.norm(ahead)
    before = world.sim.position[0].clone()
    world.add_box(*place[:2])
    assert (world.sim.position[0] == before).all()  # nothing else has changed
    assert world.sim.lidar[0].min() < 3.0  # it is seen
    fly(world, 2.0)
    assert world.crews[0].counts.tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("tall", [True, False])
def test_obstacles_can_be_added_and_moved(tall: bool) -> None:
    world = make(scenario="crossing-0-8", drones=2)
    fly(world, 1.0)
    others = world.sim.moving_position[0].clone()
    world.add_obstacle(np.array([2.0, 3.0, 1.0]), tall)
    assert (world.sim.moving_position[0, :, :8] == others).all()
    assert world.sim.moving_position[0, :2, 8].tolist() == [2.0, 3.0]
    fly(world, 3.0)
    assert world.sim.moving_velocity[0, :, 8].norm() > 0.4  # it wanders like the others
    here = world.sim.position[0].numpy()
    world.move_obstacle(8, here + [1.0, 0.0, 0.0])
    assert world.crews[0].env.told_obstacles[0, 0] == 8  # the drone observes it
    world.move_obstacle(8, here)
    world.step()
    assert world.crews[0].counts.tolist() == [0, 0, 1, 0, 0]


def test_nothing_can_be_put_outside() -> None:
    world = make(scenario="crossing-0-8", drones=1)
    world.move_goal(0, np.array([1e6, -1e6, 1e6]))
    world.move_obstacle(0, np.array([1e6, 1e6, -5.0]))
    world.add_box(1e6, 1e6)
    fly(world, 1.0)
    assert world.crews[0].env.goal.abs().max() <= 24.0 and world.sim.moving_position.abs().max() < 25.0
