"""An update or an action that met NaN or infinity, as a file that fails again in the same way."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict, TensorDictBase

from navrl.io.contents import Array, ListOf, MapOf, Number, Plain, Tensors, Text, Unfit, check
from navrl.io.files import BadCheckpoint, fits, load_checkpoint
from navrl.ppo.batch import Batch, PlainRows, join_frames, needs_bootstrap
from navrl.ppo.networks import NETWORK, ActorCritic, NetworkSettings
from navrl.ppo.ppo import PPO, NotFinite, PPOSettings, check_learner_state
from navrl.schema import ACTIONS, NETWORK_INPUTS, OBSERVED, observation_shapes
from navrl.settings import ConfigError, one_line, read
from navrl.train.progress import Progress
from navrl.train.settings import TrainSettings, stored_config

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


def join_data(parts: list[Batch | TensorDictBase | None]) -> Batch | TensorDictBase | None:
    """What the ranks failed on, as one batch; or what the one that failed while acting saw."""
    batches = [part for part in parts if isinstance(part, Batch)]
    if len(batches) < len(parts) or len(parts) == 1:
        return next((part for part in parts if part is not None and not isinstance(part, Batch)), parts[0])
    rows, last = [batch.rows.tensor() for batch in batches], [batch.last_rows for batch in batches]
    frames = join_frames([batch.frames for batch in batches])
    return Batch(frames, PlainRows(torch.cat(rows)), torch.cat(last))


WHOLE = Number(0, 1e13, whole=True)
REPLAYED = {
    "network": NETWORK, "config": Text(1 << 20), "frames": MapOf(Tensors()), "batch_size": ListOf(WHOLE, 2, 1),
    "batch": MapOf(Tensors()), "iteration": WHOLE, "progress": Number(0, 1), "name": Text(),
}  # fmt: skip


def load_replay(path: str | Path) -> tuple[PPO, Batch | TensorDictBase, dict]:
    """The learner as it was, what it failed on, and the rest of the file. BadCheckpoint if it is something else."""
    saved = load_checkpoint(path)
    if saved.get("format") != FORMAT:
        raise BadCheckpoint(f"{path} is not a {REPLAY} of this version of navrl")
    with fits(path):
        check(saved, REPLAYED)
        network = NetworkSettings.parse(saved["network"])
        check_learner_state(saved.get("ppo"), network)
        ppo = PPO(ActorCritic(network), _settings(saved["config"]))
        saved["on_gpu"] = len(saved["ppo"]["generator"]) != len(torch.Generator().get_state())
        if saved["on_gpu"]:
            saved["ppo"]["generator"] = torch.Generator().get_state()
        try:
            ppo.load_state(saved["ppo"])
        except RuntimeError as error:
            raise Unfit("ppo.generator", f"cannot be used ({one_line(str(error))})") from None
        return ppo, _data(saved, ppo), saved


def _settings(config: str) -> PPOSettings:
    values = stored_config(config)
    check(values, {"algo": MapOf(Plain())}, "config")
    try:
        return read(PPOSettings, values | {"algo": values["algo"] | {"amp": False}})
    except ConfigError as error:
        raise Unfit("config", str(error)) from None


def _data(saved: dict, ppo: PPO) -> Batch | TensorDictBase:
    """What was being learned from, or acted on. Its numbers may be NaN; its shapes must be right."""
    size = saved["batch_size"]
    frames, seen = saved["frames"], observation_shapes(ppo.policy.settings.beams)
    if not saved["batch"]:
        names = {"|".join((*OBSERVED, name)): Array(torch.float32, (*size[:1], *seen[name]), False) for name in seen}
        check(frames, names, "frames")
    else:
        floats = {"value": (), "log_prob": (), "raw_action": (ACTIONS,), "next|agents|reward": (1,)}
        check(frames, {name: Array(torch.float32, (*size, *shape), False) for name, shape in floats.items()}, "frames")
        check(frames, {f"next|{name}": Array(torch.bool, (*size, 1)) for name in ("done", "terminated")}, "frames")
        if len(size) != 2 or min(size) < 1 or math.prod(size) < 2 * ppo.settings.num_minibatches:
            raise Unfit("batch_size", f"is {size}, too small for {ppo.settings.num_minibatches} minibatches")
    nested = TensorDict({}, batch_size=size)
    try:
        for key, value in frames.items():
            nested[tuple(key.split("|"))] = value
    except (KeyError, RuntimeError, ValueError) as error:
        raise Unfit("frames", f"do not fit together ({one_line(str(error), 100)})") from None
    if not saved["batch"]:
        return nested
    columns = ppo.policy.encoder.prepare(*(torch.zeros(1, *seen[name]) for name in NETWORK_INPUTS)).shape[1]
    last = int(needs_bootstrap(nested).sum())
    rows = {"rows": Array(torch.float32, (math.prod(size), columns), False)}
    check(saved["batch"], rows | {"last_rows": Array(torch.float32, (last, columns), False)}, "batch")
    return Batch(nested, PlainRows(saved["batch"]["rows"]), saved["batch"]["last_rows"])
