"""A policy on disk: weights and what a user of them must know, readable without running any code of the file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from navrl.io.contents import MapOf, Number, Plain, check, like
from navrl.io.files import BadCheckpoint, checkpoint_path, fits, load_checkpoint
from navrl.ppo import navrl_format
from navrl.ppo.networks import ActorCritic, NetworkSettings, network_from
from navrl.ppo.returns import ValueNorm

FORMAT = "navrl-policy-1"
TRAINING_STATE = "navrl-state-1"  # what training resumes from; holds a policy and much else
SHIPPED = Path(__file__).parents[1] / "policies"  # default.pt is ours, navrl.pt NavRL's published one
NAMED = {"default": SHIPPED / "default.pt", "navrl": SHIPPED / "navrl.pt"}

SCORES = MapOf(Number(0, 1e13), 200)
ABOUT = {  # what is known of a policy; files of others may lack any of it
    "decimation?": Number(1, 100, whole=True), "dt?": Number(1e-4, 0.05), "lidar_vfov?": [Number(-90, 90)] * 2,
    "frames?": Number(0, 1e13, whole=True), "seconds?": Number(0, 1e10), "scores?": SCORES,
}  # fmt: skip
VALUE_NORM = like(ValueNorm().state_dict())


def policy_content(
    network: NetworkSettings, weights: dict[str, Tensor], value_norm: dict[str, Tensor], about: dict
) -> dict:
    """Content of a policy file. `about`: scores, decimation, commit, ..."""
    told = {"network": network.describe(), "about": about}
    return {"format": FORMAT, **told, "weights": weights, "value_norm": value_norm}


def policy_path(name: str | Path) -> Path:
    """The file called `name`; `default` and `navrl` are the policies that come with the package."""
    path = Path(name)
    return path if path.exists() or checkpoint_path(path).exists() else NAMED.get(str(name), path)


def load_policy(
    path: str | Path, action_limit: float = 2.0, device: str | torch.device = "cpu"
) -> tuple[ActorCritic, dict]:
    """A policy and what is known about it, from our own file or NavRL's.

    `action_limit` is used for NavRL's files, which do not say. Raises BadCheckpoint in one line if it cannot be read.
    """
    path = policy_path(path)
    content = load_checkpoint(path)
    if content.get("format") == TRAINING_STATE:
        raise BadCheckpoint(f"{path} is a training state; resume= continues it, and policy.pt beside it can be flown")
    if content.get("format") != FORMAT:
        policy, value_norm = navrl_format.from_navrl(content, path, action_limit)
        known = {"network": policy.settings.describe(), "about": navrl_format.ABOUT, "value_norm": value_norm}
        return policy.to(device).eval(), known
    with fits(path):
        check(content.get("about"), Plain(), "about")
        check(content.get("about"), ABOUT, "about")
        check(content.get("value_norm"), VALUE_NORM, "value_norm")
        policy = network_from(NetworkSettings.parse(content.get("network")), content.get("weights"))
        known = {"network": policy.settings.describe(), "about": content["about"], "value_norm": content["value_norm"]}
    return policy.to(device).eval(), known
