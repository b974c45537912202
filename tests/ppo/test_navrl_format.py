"""NavRL's own checkpoint loads, flies, and nothing else passes for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from navrl.ppo.navrl_format import to_navrl
from navrl.ppo.networks import ActorCritic, NetworkSettings, to_world
from navrl.ppo.policy_file import load_policy
from navrl.sim.scene import EVALUATION, generate_scene
from navrl.task.evaluation import fly_all, summarize

PUBLISHED = Path(__file__).parents[2] / "third_party/navrl/navrl_checkpoint.pt"


def observation(batch: int = 3) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    direction = torch.tensor([[[0.6, 0.8, 0.0]]]).expand(batch, 1, 3)
    return {
        "state": torch.randn(batch, 8),
        "lidar": 4 * torch.rand(batch, 1, 36, 4),
        "direction": direction,
        "dynamic_obstacle": torch.randn(batch, 1, 5, 10),
    }


def test_published_weights_are_all_used() -> None:
    raw = torch.load(PUBLISHED, map_location="cpu", weights_only=True)
    policy, _ = load_policy(PUBLISHED)
    used = sum(value.numel() for value in policy.state_dict().values())
    given = sum(value.numel() for name, value in raw.items() if not name.startswith(("value_norm", "gae")))
    assert used == given
    assert torch.equal(policy.critic.weight, raw["critic.module.weight"])
    assert torch.equal(policy.encoder.get_parameter("fuse.3.weight"), raw["feature_extractor.module.3.module.3.weight"])


def test_features_are_fused_as_cnn_obstacles_state() -> None:
    """NavRL's order. A plain re-statement from the raw tensors, without our modules."""
    raw = torch.load(PUBLISHED, map_location="cpu", weights_only=True)
    data = observation()
    f = torch.nn.functional

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return f.linear(x, raw[f"{name}.weight"], raw[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return f.layer_norm(x, x.shape[-1:], raw[f"{name}.weight"], raw[f"{name}.bias"])

    x = data["lidar"]
    for layer, stride in ((0, (1, 1)), (2, (2, 1)), (4, (2, 2))):
        name = f"feature_extractor.module.0.module.{layer}"
        x = f.elu(f.conv2d(x, raw[f"{name}.weight"], raw[f"{name}.bias"], stride, (2, 1)))
    cnn = norm(linear(x.flatten(1), "feature_extractor.module.0.module.7"), "feature_extractor.module.0.module.8")

    def mlp(x: torch.Tensor, prefix: str) -> torch.Tensor:
        for a, b in ((0, 2), (3, 5)):
            x = norm(f.leaky_relu(linear(x, f"{prefix}.{a}")), f"{prefix}.{b}")
        return x

    moving = mlp(data["dynamic_obstacle"].flatten(1), "feature_extractor.module.1.module.1")
    feature = mlp(torch.cat([cnn, moving, data["state"]], -1), "feature_extractor.module.3.module")
    alpha = 1 + f.softplus(linear(feature, "actor.module.0.module.alpha_layer")) + 1e-6
    beta = 1 + f.softplus(linear(feature, "actor.module.0.module.beta_layer")) + 1e-6
    expected = to_world((2 * alpha / (alpha + beta) - 1) * 2.0, data["direction"])
    assert torch.allclose(load_policy(PUBLISHED)[0].act(**data), expected, atol=1e-6)


def test_everything_is_written_back_under_navrls_names() -> None:
    """All 37 tensors, so that NavRL's own code loads the file without a missing key."""
    raw = torch.load(PUBLISHED, map_location="cpu", weights_only=True)
    policy, known = load_policy(PUBLISHED)
    written = to_navrl(policy, known["value_norm"])
    assert sorted(written) == sorted(raw) and len(written) == 37
    assert all(torch.equal(written[name], raw[name]) for name in raw)


def test_goal_frame_to_world() -> None:
    north = torch.tensor([[[0.0, 1.0, 0.0]]])
    assert torch.equal(to_world(torch.tensor([[1.0, 0.0, 0.5]]), north), torch.tensor([[0.0, 1.0, 0.5]]))
    assert torch.equal(to_world(torch.tensor([[0.0, 1.0, 0.0]]), north), torch.tensor([[-1.0, 0.0, 0.0]]))


def test_published_policy_flies(make_env) -> None:
    """96 crossings of 350 boxes: the full table (94 %) is in docs/evaluation.md, this guards it."""
    scene = generate_scene(7, 16, 350, 0, "crossing", starts_per_map=6, stream=EVALUATION)
    policy, _ = load_policy(PUBLISHED)
    env = make_env(scene, 96, task={"starts_in_order": True}, decimation=2)
    flights = fly_all(env, lambda data: policy.act(**data))
    assert flights is not None and summarize(flights)["success"] > 0.85


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", {"a": 1}, [1, 2], {"weight": torch.ones(3)}])
def test_foreign_files_are_refused_in_one_line(tmp_path, content) -> None:
    path = tmp_path / "file.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ValueError) as error:
        load_policy(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_in_a_file_is_never_run(tmp_path) -> None:
    import os
    import pickle

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = tmp_path / "bomb.pt"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="bomb"):
        load_policy(path)
    torch.save({"x": Bomb()}, path)
    with pytest.raises(ValueError, match="bomb"):
        load_policy(path)
    assert not (tmp_path / "exploded").exists()


def test_another_network_is_refused(tmp_path) -> None:
    other = ActorCritic(NetworkSettings("navrl"))
    torch.save(other.state_dict() | {"extra": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="extra"):
        load_policy(tmp_path / "other.pt")
