"""NavRL's own checkpoint format: a raw state dict, whose names map one to one to ours."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from navrl.ppo.networks import ActorCritic, NavRLEncoder

# Their name to ours.
PREFIXES = {
    "feature_extractor.module.0.module.": "encoder.lidar.",
    "feature_extractor.module.1.module.1.": "encoder.obstacles.",
    "feature_extractor.module.3.module.": "encoder.fuse.",
    "actor.module.0.module.": "actor.",
    "critic.module.": "critic.",
}
TRAINING_ONLY = ("value_norm.", "gae.")  # not needed to fly


def load_policy(path: str | Path, action_limit: float = 2.0, device: str | torch.device = "cpu") -> ActorCritic:
    """A policy from a NavRL checkpoint. Raises ValueError in one line if the file is missing or something else."""
    weights = _read(Path(path))
    renamed = {_our_name(name): value for name, value in weights.items() if not name.startswith(TRAINING_ONLY)}
    policy = ActorCritic(NavRLEncoder(), action_limit)
    wanted = {name: tuple(value.shape) for name, value in policy.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in renamed.items()}
    if wanted != given:
        odd = sorted(set(wanted.items()) ^ set(given.items()))[0][0]
        raise ValueError(f"{path} is not a NavRL checkpoint (it disagrees with NavRL's network at {odd!r})")
    policy.load_state_dict(renamed)
    return policy.to(device).eval()


def _our_name(name: str) -> str:
    for theirs, ours in PREFIXES.items():
        if name.startswith(theirs):
            return ours + name[len(theirs) :]
    return name


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"{path} does not exist or is not a file")
    try:
        # weights_only: a checkpoint is data, nothing in it is ever executed.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises on foreign bytes depends on the bytes
        raise ValueError(f"{path} cannot be read as a checkpoint ({type(error).__name__})") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} is not a NavRL checkpoint (it is not a dictionary of tensors)")
    return content
