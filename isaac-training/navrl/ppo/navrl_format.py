"""NavRL's own checkpoint format: a raw state dict, whose names map one to one to ours."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from navrl.io.contents import Unfit, check, like
from navrl.io.files import BadCheckpoint
from navrl.ppo.networks import ActorCritic, NavRLEncoder, NetworkSettings, network_from
from navrl.ppo.returns import ValueNorm

# Their name to ours.
PREFIXES = {
    "feature_extractor.module.0.module.": "encoder.lidar.",
    "feature_extractor.module.1.module.1.": "encoder.obstacles.",
    "feature_extractor.module.3.module.": "encoder.fuse.",
    "actor.module.0.module.": "actor.",
    "critic.module.": "critic.",
}
ABOUT = {"decimation": 1, "dt": 0.016, "lidar_vfov": [-10.0, 20.0]}  # how NavRL trains; its files do not say
VALUE_NORM, GAE = "value_norm.", "gae."  # needed to train, not to fly


def from_navrl(content: dict, path: str | Path, action_limit: float = 2.0) -> tuple[ActorCritic, dict[str, Tensor]]:
    """The policy and value normaliser in `content` of the file `path`. Raises BadCheckpoint if it is something else."""
    if not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()):
        raise BadCheckpoint(f"{path} is not a checkpoint of navrl or NavRL (it is not a dictionary of tensors)")
    value_norm = {k[len(VALUE_NORM) :]: v for k, v in content.items() if k.startswith(VALUE_NORM)}
    renamed = {_our_name(k): v for k, v in content.items() if not k.startswith((VALUE_NORM, GAE))}
    try:
        if value_norm:
            check(value_norm, like(ValueNorm().state_dict()), "value_norm")
        return network_from(NetworkSettings(encoder="navrl", action_limit=action_limit), renamed, ""), value_norm
    except Unfit as error:
        raise BadCheckpoint(f"{path} is not a NavRL checkpoint ({error})") from None


def to_navrl(policy: ActorCritic, value_norm: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under NavRL's names, for its own code to load: all 37 tensors. Only NavRL's network has them."""
    if not isinstance(policy.encoder, NavRLEncoder):
        raise ValueError("only a policy trained with encoder=navrl can be written in NavRL's format")
    weights = {_their_name(name): value.detach().cpu().clone() for name, value in policy.state_dict().items()}
    weights |= {VALUE_NORM + name: value for name, value in value_norm.items()}
    return weights | {"gae.gamma": torch.tensor(0.99), "gae.lmbda": torch.tensor(0.95)}  # as NavRL writes them


def _our_name(name: str) -> str:
    return _swap(name, PREFIXES.items())


def _their_name(name: str) -> str:
    return _swap(name, [(ours, theirs) for theirs, ours in PREFIXES.items()])


def _swap(name: str, prefixes) -> str:
    for old, new in prefixes:
        if name.startswith(old):
            return new + name[len(old) :]
    return name
