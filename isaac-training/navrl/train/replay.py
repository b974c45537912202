"""An update or an action that met NaN or infinity, as a file that fails again in the same way."""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict, TensorDictBase

from navrl.io.files import BadCheckpoint, load_checkpoint
from navrl.ppo.batch import Batch, PlainRows
from navrl.ppo.networks import ActorCritic, NetworkSettings
from navrl.ppo.ppo import PPO, NotFinite, PPOSettings
from navrl.settings import read
from navrl.train.progress import Progress
from navrl.train.settings import TrainSettings

REPLAY = "not_finite.pt"
FORMAT = "navrl-replay-2"


def replay_content(settings: TrainSettings, ppo: PPO, broken: NotFinite, progress: Progress) -> dict:
    """Everything needed to fail again; what was compressed is stored decompressed, for whoever looks at it."""
    frames, batch = broken.data, {}
    if isinstance(frames, Batch):
        batch = {"rows": frames.rows.tensor(), "last_rows": frames.last_rows}
        frames = frames.frames
    assert frames is not None, "NotFinite without data"
    return {
        "format": FORMAT,
        "network": settings.network.describe(),
        "config": OmegaConf.to_yaml(settings.config),
        "ppo": ppo.state(),
        "frames": {"|".join(key) if isinstance(key, tuple) else key: value for key, value in frames.items(True, True)},
        "batch_size": list(frames.batch_size),
        "batch": batch,  # empty: it happened while acting
        "iteration": progress.iteration,
        "progress": progress.fraction,
        "name": broken.name,
    }


def load_replay(path: str | Path) -> tuple[PPO, Batch | TensorDictBase, dict]:
    """The learner as it was, what it failed on, and the rest of the file. BadCheckpoint if it is something else."""
    saved = load_checkpoint(path)
    if saved.get("format") != FORMAT:
        raise BadCheckpoint(f"{path} is not a {REPLAY} of this version of navrl")
    try:
        config = OmegaConf.to_container(OmegaConf.create(saved["config"]))
        settings = read(PPOSettings, config | {"algo": config["algo"] | {"amp": False}})  # pyright: ignore
        saved["on_gpu"] = len(saved["ppo"]["generator"]) != len(torch.Generator().get_state())
        if saved["on_gpu"]:
            saved["ppo"]["generator"] = torch.Generator().get_state()
        ppo = PPO(ActorCritic(NetworkSettings.parse(saved["network"])), settings)
        ppo.load_state(saved["ppo"])
        frames = TensorDict({}, batch_size=saved["batch_size"])
        for key, value in saved["frames"].items():
            frames[tuple(key.split("|"))] = value
        if not (batch := saved["batch"]):
            return ppo, frames, saved
        return ppo, Batch(frames, PlainRows(batch["rows"]), batch["last_rows"]), saved
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise BadCheckpoint(f"{path} does not fit this program ({type(error).__name__}: {reason})") from error
