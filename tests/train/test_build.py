"""Policies for an evaluation, and learners that start from a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conftest import EVAL, TRAIN
from navrl.io.files import load_checkpoint, write_checkpoint
from navrl.ppo.policy_file import NAMED
from navrl.settings import ConfigError
from navrl.train.build import make_policy, make_ppo, make_training


def test_a_policy_file_need_not_say_how_it_was_trained(tmp_path) -> None:
    content = load_checkpoint(NAMED["default"])
    assert "collision_radius" not in content["network"], "a file of the first version"
    write_checkpoint(tmp_path / "silent.pt", content | {"about": {}})
    assert callable(make_policy(replace(EVAL, policy=str(tmp_path / "silent.pt"))))
    other = content | {"about": {"lidar_vfov": [0.0, 5.0]}}
    write_checkpoint(tmp_path / "other.pt", other)
    with pytest.raises(ConfigError, match=r"was trained with lidar_vfov=\[0.0, 5.0\], but sensor"):
        make_policy(replace(EVAL, policy=str(tmp_path / "other.pt")))


def test_starting_from_a_file() -> None:
    ppo = make_ppo(TRAIN, "default")
    weights = load_checkpoint(NAMED["default"])["weights"]
    assert all(torch.equal(value, weights[name]) for name, value in ppo.policy.state_dict().items())
    assert float(ppo.value_norm.debiasing_term) > 0, "with its value normalizer"
    wider = replace(TRAIN, sim=replace(TRAIN.sim, collision_radius=0.5))
    with pytest.raises(ConfigError, match=r"has collision_radius=0\.3, but this run has 0\.5"):
        make_ppo(wider, "default")
    assert make_ppo(wider).policy.settings.collision_radius == 0.5


def test_a_training_learns() -> None:
    sizes = ["env.num_envs=16", "algo.training_frame_num=4", "algo.num_minibatches=2", "env.num_maps=1", "device=cpu"]
    training = make_training(*sizes)
    before = training.ppo.policy.critic.weight.clone()
    assert training.iterate()["losses/entropy"] != 0 and not torch.equal(before, training.ppo.policy.critic.weight)
    training.batches.shutdown()
