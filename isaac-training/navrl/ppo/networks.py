"""Networks: observations in, a Beta distribution and a value out. They know shapes, not the simulator.

An encoder works in two steps. `prepare` turns an observation into one row of numbers and has no parameters, so that it
is done once for a whole batch; calling the encoder turns rows into features and is what is trained.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from navrl.io.contents import Number, OneOf, Unfit, check, like, refuse_others
from navrl.ppo.lidar_convolution import lidar_convolution, supports
from navrl.schema import ACTIONS, NEAREST, OBSTACLE, OBSTACLE_PARTS, STATE, STATE_PARTS, WIDTH_STEP


@dataclass(frozen=True)
class NetworkSettings:
    """Everything needed to build a network; stored in every policy file."""

    encoder: str = "fast"
    beams: tuple[int, int] = (36, 4)
    lidar_range: float = 4.0  # m
    action_limit: float = 2.0  # m/s along each axis of the goal frame
    collision_radius: float = 0.3  # m around the drone
    field_half: float = 24.0  # m from the middle of the field to where flights start and end

    @classmethod
    def parse(cls, stored: Any) -> NetworkSettings:
        """From a file; raises Unfit. Files of the first version lack the last two, which had the values above."""
        check(stored, NETWORK, "network")
        known: dict[str, Any] = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        known["beams"] = tuple(stored["beams"])
        return cls(**known)

    def describe(self) -> dict:
        """As it is stored in a file."""
        return asdict(self) | {"beams": list(self.beams)}


LARGEST_WEIGHT = 1e5  # no trained one comes near, and products of these are still numbers
# The same limits as the settings of sensor, drone and field have.
NETWORK = {
    "encoder": OneOf(("fast", "navrl")),
    "beams": [Number(1, 720, whole=True), Number(1, 64, whole=True)],
    "lidar_range": Number(0.5, 40.0),
    "action_limit": Number(0.01, 20.0),
    "collision_radius?": Number(0.0, 2.0),
    "field_half?": Number(1.0, 1000.0),
}


class NavRLEncoder(nn.Module):
    """NavRL's feature network, parameter for parameter, so that its checkpoints load."""

    size = 256

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        azimuths, elevations = settings.beams
        if settings.beams != (36, 4):
            raise ValueError(f"NavRL's network sees 36 × 4 beams, not {azimuths} × {elevations}; use encoder=fast")
        self.lidar = nn.Sequential(
            nn.Conv2d(1, 4, (5, 3), padding=(2, 1)),
            nn.ELU(),
            nn.Conv2d(4, 16, (5, 3), stride=(2, 1), padding=(2, 1)),
            nn.ELU(),
            nn.Conv2d(16, 16, (5, 3), stride=(2, 2), padding=(2, 1)),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(288, 128),
            nn.LayerNorm(128),
        )
        self.obstacles = nn.Sequential(*_layers(NEAREST * OBSTACLE, 128, 64))
        self.fuse = nn.Sequential(*_layers(128 + 64 + STATE, 256, 256))

        self.fused = True  # convolve with our CPU kernel where it fits; False: always nn.Conv2d, as in exported files

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        return [layer for layer in self.lidar if isinstance(layer, nn.Conv2d)]

    def prepare(self, state: Tensor, lidar: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        """state (B, 8), lidar (B, 1, 36, 4) as range - distance, dynamic_obstacle (B, 1, 5, 10) to (B, 202)."""
        return torch.cat([lidar.flatten(1), dynamic_obstacle.flatten(1), state], dim=-1)

    def forward(self, rows: Tensor) -> Tensor:
        lidar, obstacles, state = rows.split([144, NEAREST * OBSTACLE, STATE], dim=-1)
        # NavRL concatenates in the alphabetical order of its keys: cnn, dynamic obstacles, state.
        return self.fuse(torch.cat([self._see(lidar), self.obstacles(obstacles), state], dim=-1))

    def _see(self, lidar: Tensor) -> Tensor:
        if self.fused and supports(self.convolutions):
            return self.lidar[7:](lidar_convolution(lidar, self.convolutions))
        return self.lidar(lidar.reshape(-1, 1, 36, 4))


def _layers(*sizes: int) -> list[nn.Module]:
    out: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        out += [nn.Linear(a, b), nn.LeakyReLU(inplace=True), nn.LayerNorm(b)]
    return out


class FastEncoder(nn.Module):
    """The default: well-scaled inputs, a small network shared by the moving obstacles, then two wide layers."""

    size = 256
    POOLED = 48  # features of the moving obstacles together
    PER_OBSTACLE = 14  # columns of one moving obstacle, see `_obstacle_columns`
    STATE_COLUMNS = STATE + 1

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.lidar_range, self.field_half = settings.lidar_range, settings.field_half
        self.collision_radius = settings.collision_radius
        self.surroundings = math.prod(settings.beams) + self.STATE_COLUMNS
        self.obstacle = nn.Sequential(nn.Linear(self.PER_OBSTACLE, 32), nn.ReLU(), nn.Linear(32, self.POOLED))
        self.first = nn.Linear(self.surroundings, self.size)
        self.first_moving = nn.Linear(self.POOLED, self.size, bias=False)
        self.second = nn.Linear(self.size, self.size)
        for name, parameter in self.named_parameters():
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.orthogonal_(parameter, math.sqrt(2.0))

    def prepare(self, state: Tensor, lidar: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        """state (B, 8), lidar (B, 1, 36, 4) as range - distance, dynamic_obstacle (B, 1, K, 10) to (B, columns)."""
        # Halving a distance matters as much at half a metre as at four: a beam counts by its logarithm, 0 is clear.
        beams = ((self.lidar_range - lidar.flatten(1)).clamp(min=0.1) / self.lidar_range).log() * -0.8
        toward, far, height, velocity = state.split([*STATE_PARTS.values()], dim=-1)
        distance = [far / self.field_half, (far.clamp(min=0.1) / self.field_half).log() * 0.3]
        scaled = [toward, *distance, height, velocity * 0.5]
        return torch.cat([beams, *scaled, self._obstacle_columns(dynamic_obstacle[:, 0], velocity).flatten(1)], dim=-1)

    def _obstacle_columns(self, obstacle: Tensor, velocity: Tensor) -> Tensor:
        """(B, K, 10) to (B, K, 14): place, motion relative to the drone, distance and time of closest approach."""
        direction, far, height, moving, width, floating = obstacle.split([*OBSTACLE_PARTS.values()], dim=-1)
        there = (direction.square().sum(-1, keepdim=True) > 0.25).to(obstacle.dtype)  # rows of zeros: no obstacle
        ground = direction[..., :2]
        at = ground / ground.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-6) * far
        radius = (0.5 * WIDTH_STEP * (width + 1.0) + self.collision_radius) * there  # of the disc to stay out of
        relative = (moving - velocity[:, None]) * there
        over_ground = relative[..., :2]
        speed2 = over_ground.square().sum(-1, keepdim=True).clamp(min=1e-2)
        when = (-(at * over_ground).sum(-1, keepdim=True) / speed2).clamp(0.0, 4.0)  # s until closest, flying straight
        miss = ((at + when * over_ground).square().sum(-1, keepdim=True).sqrt() - radius).clamp(min=0.0)
        near = ((far - radius).clamp(min=0.05) / self.lidar_range).log() * there * -0.8
        soon = [(-miss).exp() * there, (-when).exp() * there]
        place = [there, at * 0.25, height * 0.5, near]
        return torch.cat([*place, relative * 0.4, moving[..., :2] * 0.5, radius, floating, *soon], dim=-1)

    def forward(self, rows: Tensor) -> Tensor:
        seen, obstacles = rows[:, : self.surroundings], rows[:, self.surroundings :]
        count = obstacles.shape[1] // self.PER_OBSTACLE
        moving = self.obstacle(obstacles.reshape(-1, count, self.PER_OBSTACLE)).amax(dim=1)
        # One layer on both inputs, as if they were joined, without the copy.
        x = torch.addmm(self.first(seen), moving, self.first_moving.weight.T)
        return functional.relu(self.second(functional.relu(x, inplace=True)), inplace=True)


ENCODERS = {"fast": FastEncoder, "navrl": NavRLEncoder}


class BetaActor(nn.Module):
    """Two positive parameters above 1 per action axis: a Beta distribution with a single peak inside (0, 1)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.alpha_layer = nn.Linear(features, ACTIONS)
        self.beta_layer = nn.Linear(features, ACTIONS)


class ActorCritic(nn.Module):
    """Encoder, Beta actor on a bounded velocity in the goal frame, and critic."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder: NavRLEncoder | FastEncoder = ENCODERS[settings.encoder](settings)
        self.actor = BetaActor(self.encoder.size)
        self.critic = nn.Linear(self.encoder.size, 1)
        for layer in (self.actor.alpha_layer, self.actor.beta_layer, self.critic):
            nn.init.orthogonal_(layer.weight, 0.01)  # start undecided: hover on average, explore widely
            nn.init.zeros_(layer.bias)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prepared rows (B, columns) to alpha (B, 3), beta (B, 3) and normalized value (B)."""
        heads = (self.actor.alpha_layer, self.actor.beta_layer, self.critic)
        # One product for all heads: three thin ones take three times as long.
        weight, bias = torch.cat([h.weight for h in heads]), torch.cat([h.bias for h in heads])
        out = functional.linear(self.encoder(rows), weight, bias)
        alpha, beta = (functional.softplus(out[:, : 2 * ACTIONS]) + (1.0 + 1e-6)).split(ACTIONS, dim=-1)
        return alpha, beta, out[:, -1]

    def velocity(self, raw_action: Tensor, direction: Tensor) -> Tensor:
        """An action in (0, 1) as a world-frame velocity in m/s."""
        return to_world((2.0 * raw_action - 1.0) * self.settings.action_limit, direction)

    def mean_velocity(self, state: Tensor, lidar: Tensor, direction: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        """Velocity (B, 3) to fly, m/s in the world frame; no exploration."""
        alpha, beta, _ = self(self.encoder.prepare(state, lidar, dynamic_obstacle))
        return self.velocity(alpha / (alpha + beta), direction)

    @torch.no_grad()
    def act(self, **observation: Tensor) -> Tensor:
        """`mean_velocity` without gradients, for flying."""
        return self.mean_velocity(**observation)


def network_from(settings: NetworkSettings, weights: Any, where: str = "weights") -> ActorCritic:
    """A network with these weights, which are checked before anything of their claimed size is made."""
    if settings.encoder == "navrl" and settings.beams != (36, 4):
        raise Unfit("network.beams", f"is {[*settings.beams]}, but NavRL's network has 36 × 4")
    with torch.device("meta"):
        wanted = ActorCritic(settings).state_dict()
    check(weights, like(wanted, LARGEST_WEIGHT), where)
    refuse_others(weights, wanted, where)
    policy = ActorCritic(settings)
    policy.load_state_dict(weights)
    return policy


def to_world(velocity: Tensor, direction: Tensor) -> Tensor:
    """Goal frame to world: `direction` (B, 1, 3) is where the goal frame's x axis points, horizontally."""
    ahead, left = direction[:, 0, 0:1], direction[:, 0, 1:2]
    x, y, z = velocity.split(1, dim=-1)
    return torch.cat([ahead * x - left * y, left * x + ahead * y, z], dim=-1)
