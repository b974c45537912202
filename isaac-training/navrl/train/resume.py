"""Resuming a run: finds its newest whole state, its settings, and what has changed since."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf

from navrl.checkpoint.retention import FOLDER, newest_state, states_of
from navrl.io.files import BadCheckpoint, checkpoint_path, load_checkpoint
from navrl.io.snapshot import Live
from navrl.ppo.networks import NetworkSettings
from navrl.ppo.policy_file import FORMAT, TRAINING_STATE
from navrl.settings import ConfigError, read, setting
from navrl.train.directory import fresh_directory, shortest
from navrl.train.settings import TrainSettings, plain

log = logging.getLogger("navrl")

# Keys that change nothing of what is learned, and those that change the world the drones are in.
HARMLESS = (
    "resume", "checkpoint.", "save_", "compress_checkpoint", "async_checkpoint_queue_size", "eval_interval", "eval.",
    "logger", "wandb.", "perf.", "rollout_save_interval",
    "compress_rollout", "headless", "return_same_td", "sim.threads",
)  # fmt: skip
PARTS = {
    "config": str, "overrides": list, "machine": dict, "network": dict, "iteration": int, "frames": int, "ppo": dict,
    "batches": dict, "random": dict, "flights": dict, "performance": dict, "scores": dict, "scored": dict,
}  # fmt: skip
WORLD = (
    "seed", "env.num_envs", "env.num_maps", "env.num_obstacles", "env.route", "env_dyn.num_obstacles",
    "sim.decimation", "sim.engine", "sim.physics", "drone.model_name",
)  # fmt: skip


@dataclass(frozen=True)
class ResumeSettings:
    """Which run to resume."""

    resume: str | None = setting("resume")


@dataclass(frozen=True)
class Resumed:
    """A run to resume."""

    cfg: DictConfig  # its settings, with what was given now
    state: dict
    run: Path  # the directory it continues in
    history: Path  # the directory it comes from
    same_world: bool  # the drones can continue their flights


def find(cfg: DictConfig) -> Resumed | None:
    """The run that `resume` names; None if it names nothing. Logs what differs from the run as it was."""
    wanted = read(ResumeSettings, plain(cfg)).resume
    if wanted is None:
        return None
    path = Path(wanted)
    try:
        if path.is_dir():
            run = path.parent if path.name == FOLDER else path
            file, state = newest_state(run)
        else:
            file, state = checkpoint_path(path), load_checkpoint(path)
            run = file.resolve().parent.parent
    except BadCheckpoint as error:
        raise ConfigError("resume", wanted, str(error)) from None
    if state.get("format") != TRAINING_STATE:
        kind = "a policy without training state" if state.get("format") == FORMAT else "not a training state"
        raise ConfigError("resume", wanted, f"is {kind}; to start a new run from its weights give checkpoint={wanted}")
    for name, kind in PARTS.items():
        if not isinstance(state.get(name), kind):
            raise ConfigError("resume", wanted, f"is no training state of this program: it has no proper {name}")
    new = compose("train", overrides=_merged([text for text in state["overrides"] if isinstance(text, str)]))
    with as_one_line(path):
        changed = _differences(OmegaConf.create(state["config"]), new)
    same_world = not any(key in WORLD for key in changed)
    _report(file, state, changed, same_world, new.sim.engine)
    # A state that is not the last of its run starts a branch: what came after it stays untouched.
    last = path.is_dir() or [p.resolve() for p in states_of(run)[:1]] == [file.resolve()]
    run = shortest(run)
    return Resumed(new, state, run if last else fresh_directory(), run, same_world)


def check_resumed(resumed: Resumed, settings: TrainSettings) -> None:
    """Refuse a run whose network changed, or that has nothing left to do."""
    with as_one_line(resumed.history):
        before = NetworkSettings.parse(resumed.state["network"]).describe()
    for name, now in settings.network.describe().items():
        if before[name] != now:
            fix = f"its network has {name}={before[name]}, now {now}; start a new run, or leave it as it was"
            raise ConfigError("resume", resumed.history, fix)
    finished = resumed.state["frames"] + settings.frames_per_batch > settings.max_frames
    if finished and resumed.state["scored"].get("frames") == resumed.state["frames"]:  # evaluated, too
        fix = f"{resumed.run} has reached it; raise it to continue"
        raise ConfigError("max_frame_num", settings.max_frames, fix)


@contextlib.contextmanager
def as_one_line(path: Path | None) -> Iterator[None]:
    """Turn errors into one line while a state is taken apart: one that is made up fails in any of many ways."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if path is None or isinstance(error, ConfigError):
            raise
        reason = str(error).strip().partition("\n")[0]
        fix = f"does not fit this program ({type(error).__name__}: {reason}); start a new run"
        raise ConfigError("resume", path, fix) from error


def given_overrides(resumed: Resumed | None) -> list[str]:
    """What was typed, now and when the run began."""
    return _merged(resumed.state["overrides"] if resumed else [])


def _merged(before: list[str]) -> list[str]:
    """What was typed now, after what was typed `before`; of a key given twice the last counts."""
    typed = {text.partition("=")[0].lstrip("+~"): text for text in [*before, *HydraConfig.get().overrides.task]}
    return [text for key, text in typed.items() if key != "resume"]


def _report(file: Path, state: dict, changed: dict[str, str], same_world: bool, engine: str) -> None:
    log.info("resuming from %s: iteration %d, %.1f M frames", file, state["iteration"], state["frames"] / 1e6)
    if changed:
        log.info("changed since: %s", ", ".join(f"{key} {change}" for key, change in changed.items()))
    reasons = [key for key in changed if not key.startswith(HARMLESS)]
    reasons += ["sim=isaac (PhysX rounds attitudes when they are set)"] if engine == "isaac" else []
    reasons += [
        f"{key} ({state['machine'].get(key)} → {now})"
        for key, now in machine_now().items()
        if state["machine"].get(key) != now
    ]
    if reasons:
        log.warning("not bit for bit the run it would have been, because of: %s", ", ".join(reasons))
    if not same_world:
        log.warning("the drones begin new flights: %s changed", ", ".join(key for key in changed if key in WORLD))


def _differences(old: DictConfig | ListConfig, new: DictConfig) -> dict[str, str]:
    before, after = (dict(_flat(plain(cfg))) for cfg in (old, new))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: f"{before.get(key, 'nothing')} → {after.get(key, 'nothing')}" for key in keys if key != "resume"}


def _flat(node: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def machine_now() -> dict[str, str | int]:
    """What bits depend on besides settings: sums are split across threads, kernels change between releases."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"torch version": str(torch.__version__), "torch threads": torch.get_num_threads(), "processor": device}


# --- global random streams ------------------------------------------------------------------------------------------
# Nothing of ours draws from them; libraries may. The learner's and the world's own streams are part of their states.


def seed_random_streams(seed: int) -> None:
    """Seed the global random streams."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.set_bit_generator(np.random.PCG64(seed))  # its state is two numbers; the default one's is the largest  # pyright: ignore[reportAttributeAccessIssue]


_unused: tuple[object, Live] = None, Live()  # the streams at the last save: usually unchanged since


def random_state() -> dict:
    """The global random streams."""
    global _unused
    streams = random.getstate(), np.random.get_state(legacy=False)
    if streams != _unused[0]:
        version, words, gauss = streams[0]
        _unused = streams, Live(python=[version, torch.tensor(words), gauss], numpy=streams[1])
    state = {"torch": torch.get_rng_state(), "other": _unused[1]}
    return state | ({"cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_available() else {})


def set_random_state(state: dict) -> None:
    """Restore `random_state()`."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["other"]["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(state["other"]["numpy"])
    if torch.cuda.is_available() and len(state.get("cuda", [])) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
