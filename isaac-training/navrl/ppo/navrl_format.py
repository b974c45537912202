"""NavRL's own checkpoint format: a raw state dict, whose names map one to one to ours."""

from __future__ import annotations

from pathlib import Path

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


def from_navrl(content: dict, path: str | Path, action_limit: float = 2.0) -> ActorCritic:
    """The policy in `content` of the file `path`. Raises ValueError in one line if it is something else."""
    if not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} is not a checkpoint of navrl or NavRL (it is not a dictionary of tensors)")
    renamed = {_our_name(name): value for name, value in content.items() if not name.startswith(TRAINING_ONLY)}
    policy = ActorCritic(NavRLEncoder(), action_limit)
    wanted = {name: tuple(value.shape) for name, value in policy.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in renamed.items()}
    if wanted != given:
        odd = sorted(set(wanted.items()) ^ set(given.items()))[0][0]
        raise ValueError(f"{path} is not a NavRL checkpoint (it disagrees with NavRL's network at {odd!r})")
    policy.load_state_dict(renamed)
    return policy


def to_navrl(policy: ActorCritic) -> dict[str, Tensor]:
    """The weights under NavRL's names, for its own code to load. Only NavRL's network has them."""
    if not isinstance(policy.encoder, NavRLEncoder):
        raise ValueError("only a policy trained with encoder=navrl can be written in NavRL's format")
    return {_their_name(name): value.detach().cpu().clone() for name, value in policy.state_dict().items()}


def _our_name(name: str) -> str:
    return _swap(name, PREFIXES.items())


def _their_name(name: str) -> str:
    return _swap(name, [(ours, theirs) for theirs, ours in PREFIXES.items()])


def _swap(name: str, prefixes) -> str:
    for old, new in prefixes:
        if name.startswith(old):
            return new + name[len(old) :]
    return name
