"""A policy on disk: weights and what a user of them must know, readable without running any code of the file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from navrl.ppo import navrl_format
from navrl.ppo.networks import ENCODERS, ActorCritic

FORMAT = "navrl-policy-1"


def describe(policy: ActorCritic, encoder: str) -> dict:
    """What is needed to build the network again."""
    beams, reach = list(policy.encoder.beams), float(policy.encoder.lidar_range)
    return {"encoder": encoder, "beams": beams, "lidar_range": reach, "action_limit": float(policy.action_limit)}


def policy_content(policy: ActorCritic, value_norm: nn.Module, encoder: str, about: dict) -> dict:
    """What is written to a policy file. `about` holds plain values: scores, decimation, commit, ..."""
    content = {"format": FORMAT, "network": describe(policy, encoder), "about": about}
    for name, module in (("weights", policy), ("value_norm", value_norm)):
        content[name] = {key: value.detach().cpu().clone() for key, value in module.state_dict().items()}
    return content


def load_policy(
    path: str | Path, action_limit: float = 2.0, device: str | torch.device = "cpu"
) -> tuple[ActorCritic, dict]:
    """A policy and what is known about it, from our own file or NavRL's.

    `action_limit` is used for NavRL's files, which do not say. Raises ValueError in one line if it cannot be read.
    """
    content = _read(Path(path))
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


def _read(path: Path) -> dict:
    if not path.is_file():
        raise ValueError(f"{path} does not exist or is not a file")
    try:
        # weights_only: a checkpoint is data, nothing in it is ever executed.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises on foreign bytes depends on the bytes
        raise ValueError(f"{path} cannot be read as a checkpoint ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a checkpoint of navrl or NavRL (it is not a dictionary)")
    return content
