# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""The drone's physics against closed-form solutions, and the controller against a plain reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import warp as wp

from conftest import place
from navrl.native.runtime import start_warp
from navrl.sim.quadrotor import GRAVITY, MODELS, Airframe, Body, Wrench, airframe, integrate

DT = 0.016
DRONE = MODELS["Hummingbird"]


@wp.kernel
def coast(
    drone: Airframe, torque: wp.vec3, thrust: float, steps: int, dt: float, start: wp.array(dtype=Body),
    end: wp.array(dtype=Body),
):  # fmt: skip
    wrench = Wrench()
    wrench.torque = torque
    wrench.thrust = thrust
    body = start[0]
    for _ in range(steps):
        body = integrate(drone, body, wrench, dt)
    end[0] = body


def fly_freely(steps: int, thrust: float = 0.0, torque=(0.0, 0.0, 0.0), **start) -> dict[str, np.ndarray]:
    """Integrate one body under a constant wrench; returns its fields."""
    start_warp()
    body = Body()
    body.rotation = wp.quat_identity()
    for name, value in start.items():
        setattr(body, name, value)
    first = wp.array([body], dtype=Body, device="cpu")
    last = wp.zeros(1, dtype=Body, device="cpu")
    wp.launch(coast, 1, inputs=[airframe(DRONE, DT), wp.vec3(*torque), thrust, steps, DT, first, last], device="cpu")
    record = last.numpy()[0]
    return {name: np.array(record[name], float).ravel() for name in ("position", "rotation", "velocity", "rate")}


def test_constants() -> None:
    assert 4 * DRONE.max_thrust / (DRONE.mass * GRAVITY) == pytest.approx(3.42, abs=0.01)
    assert DRONE.max_thrust == pytest.approx(6.0, abs=0.01)


def test_free_fall() -> None:
    """v after n steps is the geometric series of gravity and damping; in continuous time, -g/c (1 - e^-ct)."""
    n, keep = 125, 1 - DRONE.damping * DT
    fallen = fly_freely(n)
    assert fallen["velocity"][2] == pytest.approx(-GRAVITY * DT * keep * (1 - keep**n) / (1 - keep), rel=1e-5)
    continuous = -GRAVITY / 0.2 * (1 - np.exp(-0.2 * n * DT))
    assert fallen["velocity"][2] == pytest.approx(continuous, rel=5e-3)
    assert np.all(fallen["velocity"][:2] == 0) and np.all(fallen["rate"] == 0)


def test_thrust_along_the_body_axis() -> None:
    tilt = wp.quat_from_axis_angle(wp.vec3(1.0, 0.0, 0.0), 0.5)
    v = fly_freely(1, thrust=10.0, rotation=tilt)["velocity"]
    keep = 1 - DRONE.damping * DT
    push = 10.0 / DRONE.mass * DT * keep
    assert v == pytest.approx([0.0, -np.sin(0.5) * push, np.cos(0.5) * push - GRAVITY * DT * keep], abs=1e-6)


def test_spin_up_about_each_axis() -> None:
    n, keep = 50, 1 - DRONE.damping * DT
    for axis in range(3):
        torque = np.eye(3)[axis] * 1e-3
        rate = fly_freely(n, torque=torque)["rate"]
        expected = torque / np.array(DRONE.inertia) * DT * keep * (1 - keep**n) / (1 - keep)
        assert rate == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_angular_momentum_of_a_free_spin() -> None:
    """Torque-free tumbling: momentum keeps its direction in the world and decays only through damping."""
    n = 300
    inertia = np.array(DRONE.inertia)
    spin = np.array([3.0, -2.0, 4.0])
    end = fly_freely(n, rate=wp.vec3(*spin))
    momentum = rotate(end["rotation"], inertia * end["rate"])
    expected = inertia * spin * (1 - DRONE.damping * DT) ** n
    assert np.linalg.norm(momentum) == pytest.approx(np.linalg.norm(expected), rel=1e-4)
    cosine = momentum @ expected / np.linalg.norm(momentum) / np.linalg.norm(expected)
    assert np.degrees(np.arccos(min(1.0, cosine))) < 2.0  # first-order integration drifts a little
    assert abs(end["rate"][0] - expected[0] / inertia[0]) > 0.1  # it tumbles


def rotate(xyzw: np.ndarray, v: np.ndarray) -> np.ndarray:
    axis, w = xyzw[:3], xyzw[3]
    return v + 2 * np.cross(axis, np.cross(axis, v) + w * v)


def matrix(q: np.ndarray) -> np.ndarray:
    """Rotation matrix of a quaternion w, x, y, z."""
    return np.stack([rotate(np.roll(q, -1), e) for e in np.eye(3)], axis=1)


def plain_step(state: dict[str, np.ndarray], command: np.ndarray) -> dict[str, np.ndarray]:
    """Reference step of controller, rotors and body in double precision."""
    r, inertia = matrix(state["quaternion"]), np.array(DRONE.inertia)
    a = DRONE.velocity_gain * (state["velocity"] - command) - np.array([0, 0, GRAVITY])
    yaw = np.arctan2(r[1, 0], r[0, 0])
    b3 = -a / np.linalg.norm(a)
    b2 = np.cross(b3, [np.cos(yaw), np.sin(yaw), 0])
    b2 /= np.linalg.norm(b2)
    desired = np.stack([np.cross(b2, b3), b2, b3], axis=1)
    e = 0.5 * (desired.T @ r - r.T @ desired)
    error = np.array([e[2, 1], e[0, 2], e[1, 0]])
    angular = -error * np.array(DRONE.attitude_gain) / inertia - state["rate"] * np.array(DRONE.rate_gain) / inertia
    thrust = -DRONE.mass * a @ r[:, 2]
    allocation = DRONE.allocation()
    wanted = allocation.T @ np.linalg.inv(allocation @ allocation.T) @ np.append(angular * inertia, thrust)
    target = np.sqrt(np.clip(wanted / DRONE.max_thrust, 0, 1))
    throttle = state["throttle"] + 0.43 * (target - state["throttle"])
    wrench = allocation @ (throttle**2 * DRONE.max_thrust)
    keep = 1 - 0.2 * DT
    velocity = (state["velocity"] + (r[:, 2] * wrench[3] / DRONE.mass - [0, 0, GRAVITY]) * DT) * keep
    gyro = np.cross(state["rate"], inertia * state["rate"])
    rate = (state["rate"] + (wrench[:3] - gyro) / inertia * DT) * keep
    half = np.linalg.norm(rate) * DT / 2
    turn = np.append(np.cos(half), np.sinc(half / np.pi) * rate * DT / 2)
    w, v = state["quaternion"][0], state["quaternion"][1:]
    q = np.append(w * turn[0] - v @ turn[1:], w * turn[1:] + turn[0] * v + np.cross(v, turn[1:]))
    return {
        "position": state["position"] + velocity * DT, "velocity": velocity, "rate": rate, "throttle": throttle,
        "quaternion": q / np.linalg.norm(q),
    }  # fmt: skip


def test_aggressive_flight_matches_the_reference(make_sim, empty_scene) -> None:
    sim = make_sim(empty_scene, 4)
    yaw = torch.tensor([0.0, 1.0, -2.0, 3.0])
    place(sim, torch.tensor([0.0, 0.0, 2.0]), yaw)
    h = DRONE.hover_throttle
    states = [
        {
            "position": np.array([0, 0, 2.0]), "velocity": np.zeros(3), "rate": np.zeros(3), "throttle": np.full(4, h),
            "quaternion": np.array([np.cos(y / 2), 0, 0, np.sin(y / 2)]),
        } for y in yaw.tolist()
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    for step in range(250):
        if step % 25 == 0:
            command = rng.uniform(-2, 2, (4, 3))
        sim.step(torch.tensor(command, dtype=torch.float32))
        states = [plain_step(s, c) for s, c in zip(states, command, strict=True)]
    for ours, name, tolerance in (
        (sim.position, "position", 1e-3), (sim.velocity, "velocity", 1e-3), (sim.angular_velocity, "rate", 1e-2),
        (sim.quaternion, "quaternion", 1e-3), (sim.throttle, "throttle", 1e-3),
    ):  # fmt: skip
        assert ours.numpy() == pytest.approx(np.stack([s[name] for s in states]), abs=tolerance), name


def test_hover_holds(make_sim, empty_scene) -> None:
    sim = make_sim(empty_scene, 2)
    place(sim, torch.tensor([1.0, -2.0, 1.5]), torch.tensor([0.0, 2.5]))
    for _ in range(1000):
        sim.step(torch.zeros(2, 3))
    assert (sim.position - torch.tensor([1.0, -2.0, 1.5])).abs().max() < 1e-3
    assert sim.angular_velocity.abs().max() < 1e-4


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_velocity_step(make_sim, empty_scene, axis: int) -> None:
    """A 2 m/s command settles where controller and damping balance, 2·2.2/(2.2+0.2) = 1.833 m/s; t63 is 0.45 s."""
    sim = make_sim(empty_scene, 1)
    place(sim, torch.tensor([0.0, 0.0, 2.0]), torch.tensor([0.7]))
    command = 2.0 * torch.eye(3)[axis : axis + 1]
    speed = []
    for _ in range(400):
        sim.step(command)
        speed.append(sim.velocity[0, axis].item())
    assert speed[-1] == pytest.approx(2 * 2.2 / 2.4, abs=2e-3)
    t63 = DT * (1 + int(np.argmax(np.array(speed) > 0.632 * speed[-1])))
    assert t63 == pytest.approx(0.45, abs=0.04)


def test_attitude_step(make_sim, empty_scene) -> None:
    """A tilted, hovering drone levels out; for small angles roll obeys J·φ'' = -k_att·φ - k_rate·φ' with rotor lag.

    The expected values are that linear system's discrete solution, which involves no quaternions.
    """
    sim = make_sim(empty_scene, 1)
    place(sim, torch.tensor([0.0, 0.0, 2.0]))
    roll = 0.02
    sim.quaternion.copy_(torch.tensor([[np.cos(roll / 2), np.sin(roll / 2), 0.0, 0.0]]))
    j, attitude, rate_gain, keep = 0.007, 0.7, 0.1, 1 - 0.2 * DT
    phi, rate, torque, lateral = roll, 0.0, 0.0, 0.0
    for _ in range(60):
        sim.step(torch.zeros(1, 3))
        # The velocity loop tilts the desired attitude by the drift the roll has caused so far.
        wanted = 2.2 * lateral / GRAVITY
        lateral_push = -GRAVITY * phi
        torque += 0.43 * (-attitude * (phi - wanted) - rate_gain * rate - torque)
        rate = (rate + torque / j * DT) * keep
        lateral = (lateral + lateral_push * DT) * keep
        phi += rate * DT
        q = sim.quaternion[0].double()
        assert 2 * torch.atan2(q[1], q[0]).item() == pytest.approx(phi, abs=0.04 * roll)
    assert abs(phi) < 0.2 * roll


def test_quaternion_stays_normalised(make_sim, empty_scene) -> None:
    sim = make_sim(empty_scene, 4, decimation=20)
    place(sim, torch.tensor([0.0, 0.0, 2.0]))
    generator = torch.Generator().manual_seed(0)
    for _ in range(5000):
        sim.step(4 * torch.rand(4, 3, generator=generator) - 2)
    assert sim.physics_step == 100_000
    assert (sim.quaternion.double().norm(dim=-1) - 1).abs().max() < 1e-6
    assert torch.isfinite(sim.velocity).all()


def test_rotor_lag_does_not_depend_on_the_step() -> None:
    assert airframe(DRONE, 0.016).throttle_filter == pytest.approx(0.43)
    twice = 1 - (1 - airframe(DRONE, 0.008).throttle_filter) ** 2
    assert twice == pytest.approx(0.43, abs=1e-6)
