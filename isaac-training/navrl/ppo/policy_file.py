"""A policy on disk: weights and what a user of them must know, readable without running any code of the file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from navrl.io.files import load_checkpoint
from navrl.ppo import navrl_format
from navrl.ppo.networks import ENCODERS, ActorCritic

FORMAT = "navrl-policy-1"
TRAINING_STATE = "navrl-state-1"  # what training goes on from; holds a policy and much else


def describe(policy: ActorCritic, encoder: str) -> dict:
    """What is needed to build the network again."""
    beams, reach = list(policy.encoder.beams), float(policy.encoder.lidar_range)
    return {"encoder": encoder, "beams": beams, "lidar_range": reach, "action_limit": float(policy.action_limit)}


def policy_content(network: dict, weights: dict[str, Tensor], value_norm: dict[str, Tensor], about: dict) -> dict:
    """What is written to a policy file. `network` as `describe` tells it; `about`: scores, decimation, commit, ..."""
    return {"format": FORMAT, "network": network, "about": about, "weights": weights, "value_norm": value_norm}


def load_policy(
    path: str | Path, action_limit: float = 2.0, device: str | torch.device = "cpu"
) -> tuple[ActorCritic, dict]:
    """A policy and what is known about it, from our own file or NavRL's.

    `action_limit` is used for NavRL's files, which do not say. Raises ValueError in one line if it cannot be read.
    """
    content = load_checkpoint(path)
    if content.get("format") == TRAINING_STATE:
        raise ValueError(f"{path} is a training state; resume= goes on with it, and policy.pt beside it can be flown")
    if content.get("format") != FORMAT:
        policy, value_norm = navrl_format.from_navrl(content, path, action_limit)
        known = {"network": describe(policy, "navrl"), "about": navrl_format.ABOUT, "value_norm": value_norm}
        return policy.to(device).eval(), known
    try:
        network = content["network"]
        encoder = ENCODERS[network["encoder"]](tuple(network["beams"]), float(network["lidar_range"]))
        policy = ActorCritic(encoder, float(network["action_limit"]))
        policy.load_state_dict(content["weights"])
        known = {key: content[key] for key in ("network", "about", "value_norm")}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} says it is {FORMAT} but its weights do not fit its network") from error
    return policy.to(device).eval(), known
