"""The default encoder: what it sees, and that it is symmetric where it should be."""

from __future__ import annotations

import pytest
import torch

from navrl.ppo.networks import ENCODERS, ActorCritic, FastEncoder, NavRLEncoder, NetworkSettings


def observation(batch: int = 6, obstacles: int = 5) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    rows = torch.randn(batch, 1, obstacles, 10)
    rows[..., :3] = torch.nn.functional.normalize(rows[..., :3], dim=-1)
    rows[..., 3] = rows[..., 3].abs()
    return {"state": torch.randn(batch, 8), "lidar": 4 * torch.rand(batch, 1, 36, 4), "dynamic_obstacle": rows}


def test_order_of_obstacles_does_not_matter() -> None:
    encoder, seen = FastEncoder(NetworkSettings()), observation()
    shuffled = seen | {"dynamic_obstacle": seen["dynamic_obstacle"][:, :, torch.tensor([3, 1, 4, 0, 2])]}
    assert torch.allclose(encoder(encoder.prepare(**seen)), encoder(encoder.prepare(**shuffled)), atol=1e-5)


def test_closest_approach() -> None:
    """An obstacle 2 m ahead that comes at 1 m/s against a drone flying 1 m/s meets it in a second, head on."""
    obstacle = torch.tensor([[[1.0, 0.0, 0.0, 2.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]]])
    columns = FastEncoder(NetworkSettings())._obstacle_columns(obstacle, torch.tensor([[1.0, 0.0, 0.0]]))[0, 0]
    there, x, y = columns[:3].tolist()
    assert (there, x, y) == (1.0, 0.5, 0.0)
    missed_by, when = columns[-2:]
    assert missed_by == 1.0 and torch.isclose(when, torch.tensor(-1.0).exp())


def test_absent_obstacles_say_nothing() -> None:
    columns = FastEncoder(NetworkSettings())._obstacle_columns(torch.zeros(2, 5, 10), torch.randn(2, 3))
    assert not columns.any()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_far_and_touching_are_finite(encoder: str) -> None:
    policy = ActorCritic(NetworkSettings(encoder))
    for nearness in (0.0, 4.0):
        seen = observation() | {"lidar": torch.full((6, 1, 36, 4), nearness)}
        seen["state"][:, 3] = 0.0
        assert all(torch.isfinite(out).all() for out in policy(policy.encoder.prepare(**seen)))


def test_other_beams() -> None:
    seen = observation() | {"lidar": torch.rand(6, 1, 72, 8)}
    encoder = FastEncoder(NetworkSettings(beams=(72, 8), lidar_range=10.0))
    assert encoder(encoder.prepare(**seen)).shape == (6, 256)
    with pytest.raises(ValueError, match="36 × 4"):
        NavRLEncoder(NetworkSettings(beams=(72, 8)))


def test_collision_radius_and_field_size_reach_the_network() -> None:
    """The disc to stay out of is the obstacle's radius and the drone's; distances are shares of half the field."""
    obstacle = torch.tensor([[[1.0, 0.0, 0.0, 2.0, 0.0, -1.0, 0.0, 0.0, 3.0, 0.0]]])  # 1 m wide
    at_rest = torch.zeros(1, 3)
    for radius in (0.3, 0.5):
        encoder = FastEncoder(NetworkSettings(collision_radius=radius))
        assert encoder._obstacle_columns(obstacle, at_rest)[0, 0, 10].item() == pytest.approx(0.5 + radius)
    seen = observation() | {"state": torch.tensor([[1.0, 0.0, 0.0, 12.0, 0.0, 0.0, 0.0, 0.0]] * 6)}
    for half in (24.0, 48.0):
        rows = FastEncoder(NetworkSettings(field_half=half)).prepare(**seen)
        assert rows[0, 144 + 3].item() == pytest.approx(12.0 / half)
