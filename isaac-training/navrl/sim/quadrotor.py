# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
"""The quadrotor: constants, Lee velocity controller and rotor lag, as Warp functions shared by both engines.

From state and velocity command to a wrench in the body frame, which the Warp engine integrates and Isaac applies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import warp as wp

GRAVITY = 9.81  # m/s²
REFERENCE_DT = 0.016  # s: the step at which NavRL's per-step throttle filter was tuned


@dataclass(frozen=True)
class Quadrotor:
    """Constants of one airframe and the gains of its controller."""

    mass: float  # kg
    inertia: tuple[float, float, float]  # kg m², body axes
    arm: float  # m, rotor to centre
    force_constant: float  # N s²
    moment_constant: float  # N m s²
    max_rotor_speed: float  # rad/s
    rotor_angles: tuple[float, ...] = (0.0, np.pi / 2, np.pi, -np.pi / 2)
    rotor_directions: tuple[float, ...] = (-1.0, 1.0, -1.0, 1.0)
    throttle_filter: float = 0.43  # fraction of the gap closed in REFERENCE_DT
    damping: float = 0.2  # 1/s, on linear and angular velocity
    velocity_gain: float = 2.2  # 1/s
    attitude_gain: tuple[float, float, float] = (0.7, 0.7, 0.035)  # N m
    rate_gain: tuple[float, float, float] = (0.1, 0.1, 0.025)  # N m s

    @property
    def max_thrust(self) -> float:
        """Thrust of one rotor at full speed, N."""
        return self.force_constant * self.max_rotor_speed**2

    @property
    def hover_throttle(self) -> float:
        """Relative rotor speed at which four rotors carry the weight."""
        return float(np.sqrt(self.mass * GRAVITY / (4 * self.max_thrust)))

    def allocation(self) -> np.ndarray:
        """Return the (4, 4) matrix from rotor thrusts to roll, pitch and yaw torque and total thrust."""
        angles, directions = np.array(self.rotor_angles), np.array(self.rotor_directions)
        drag = self.moment_constant / self.force_constant
        return np.stack([np.sin(angles) * self.arm, -np.cos(angles) * self.arm, -directions * drag, np.ones(4)])


MODELS = {
    "Hummingbird": Quadrotor(
        mass=0.716,
        inertia=(0.007, 0.007, 0.012),
        arm=0.17,
        force_constant=8.54858e-6,
        moment_constant=1.36777e-7,
        max_rotor_speed=838.0,
    )
}


@wp.struct
class Airframe:
    """`Quadrotor` as kernels see it, for a fixed time step."""

    mass: float
    inertia: wp.vec3
    allocation: wp.mat44
    mixer: wp.mat44
    max_thrust: float
    hover_throttle: float
    throttle_filter: float
    keep: float  # fraction of the velocity left after one step of damping
    velocity_gain: float
    attitude_gain: wp.vec3
    rate_gain: wp.vec3


def airframe(model: Quadrotor, dt: float) -> Airframe:
    """Build the constants for steps of `dt` seconds; rotor lag and damping per second do not depend on the step."""
    out = Airframe()
    allocation = model.allocation()
    out.mass = model.mass
    out.inertia = wp.vec3(*model.inertia)
    out.allocation = wp.mat44(allocation)
    out.mixer = wp.mat44(np.linalg.pinv(allocation))
    out.max_thrust = model.max_thrust
    out.hover_throttle = model.hover_throttle
    out.throttle_filter = 1.0 - (1.0 - model.throttle_filter) ** (dt / REFERENCE_DT)
    out.keep = 1.0 - model.damping * dt
    out.velocity_gain = model.velocity_gain
    out.attitude_gain = wp.vec3(*model.attitude_gain)
    out.rate_gain = wp.vec3(*model.rate_gain)
    return out


@wp.struct
class Body:
    position: wp.vec3  # m, world
    rotation: wp.quat  # body to world
    velocity: wp.vec3  # m/s, world
    rate: wp.vec3  # rad/s, body axes
    throttle: wp.vec4  # relative rotor speeds


@wp.struct
class Wrench:
    thrust: float  # N, along body z
    torque: wp.vec3  # N m, body axes
    throttle: wp.vec4  # relative rotor speeds after this step


@wp.func
def axes_of(q: wp.quat) -> wp.mat33:
    """Body axes in the world, as columns."""
    x, y, z, w = q[0], q[1], q[2], q[3]
    return wp.mat33(
        1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y),
        2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x),
        2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y),
    )  # fmt: skip


@wp.func
def controlled_wrench(drone: Airframe, body: Body, command: wp.vec3) -> Wrench:
    """Apply the Lee controller to a world-frame velocity `command`, holding the current yaw, then the rotor lag."""
    r = axes_of(body.rotation)
    acceleration = drone.velocity_gain * (body.velocity - command) - wp.vec3(0.0, 0.0, GRAVITY)
    z = -wp.normalize(acceleration)
    y = wp.normalize(wp.cross(z, wp.vec3(r[0, 0], r[1, 0], 0.0)))
    x = wp.cross(y, z)
    e = wp.transpose(wp.matrix_from_cols(x, y, z)) * r
    error = 0.5 * wp.vec3(e[2, 1] - e[1, 2], e[0, 2] - e[2, 0], e[1, 0] - e[0, 1])
    torque = -wp.cw_mul(error, drone.attitude_gain) - wp.cw_mul(body.rate, drone.rate_gain)
    thrust = -drone.mass * wp.dot(acceleration, wp.vec3(r[0, 2], r[1, 2], r[2, 2]))

    wanted = drone.mixer * wp.vec4(torque[0], torque[1], torque[2], thrust) * (1.0 / drone.max_thrust)
    out = Wrench()
    lift = wp.vec4()
    for i in range(4):
        # The lag acts on rotor speed; thrust is proportional to its square.
        speed = body.throttle[i]
        speed += drone.throttle_filter * (wp.sqrt(wp.clamp(wanted[i], 0.0, 1.0)) - speed)
        out.throttle[i] = speed
        lift[i] = speed * speed * drone.max_thrust
    total = drone.allocation * lift
    out.torque = wp.vec3(total[0], total[1], total[2])
    out.thrust = total[3]
    return out


@wp.func
def integrate(drone: Airframe, body: Body, wrench: Wrench, dt: float) -> Body:
    """Take one semi-implicit Euler step of the rigid body, in PhysX's order: forces, damping, then motion."""
    out = Body()
    r = axes_of(body.rotation)
    lift = wrench.thrust / drone.mass
    push = wp.vec3(r[0, 2] * lift, r[1, 2] * lift, r[2, 2] * lift - GRAVITY)
    out.velocity = (body.velocity + push * dt) * drone.keep
    out.position = body.position + out.velocity * dt

    # Gyroscopic coupling rotates the angular momentum without changing its magnitude.
    momentum = wp.cw_mul(drone.inertia, body.rate)
    turned = momentum - wp.cross(body.rate, momentum) * dt
    turned = turned * wp.sqrt(wp.dot(momentum, momentum) / wp.max(wp.dot(turned, turned), 1.0e-30))
    out.rate = wp.cw_div(turned + wrench.torque * dt, drone.inertia) * drone.keep
    # Rotating about the rate itself leaves it unchanged in body axes, so only the attitude changes.
    half = 0.5 * dt * wp.length(out.rate)
    sinc = 0.5 * dt
    if half > 1.0e-4:
        sinc = 0.5 * dt * wp.sin(half) / half
    turn = wp.quat(out.rate[0] * sinc, out.rate[1] * sinc, out.rate[2] * sinc, wp.cos(half))
    out.rotation = wp.normalize(body.rotation * turn)
    out.throttle = wrench.throttle
    return out
