"""Going on with a run: finds its newest whole state, its settings, and what is no longer as it was."""

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
from omegaconf import DictConfig, OmegaConf

from navrl import config
from navrl.io.files import BadCheckpoint, checkpoint_path, load_checkpoint
from navrl.checkpoint.retention import FOLDER, RunFiles, newest_state, states_of
from navrl.io.snapshot import Live
from navrl.config import ConfigError, TrainSettings
from navrl.ppo.policy_file import FORMAT, TRAINING_STATE

log = logging.getLogger("navrl")

# Keys that change nothing of what is learned, and those that change the world the drones are in.
HARMLESS = (
    "resume", "checkpoint.", "save_", "compress_checkpoint", "async_checkpoint_queue_size", "eval_interval", "eval.",
    "logger", "wandb.", "perf.", "rollout_save_interval",
    "compress_rollout", "headless", "return_same_td", "sim.threads",
)  # fmt: skip
HELD = {
    "config": str, "overrides": list, "machine": dict, "network": dict, "iteration": int, "frames": int, "ppo": dict,
    "batches": dict, "random": dict, "flights": dict, "performance": dict, "scores": dict, "scored": dict,
}  # fmt: skip
WORLD = (
    "seed", "env.num_envs", "env.num_maps", "env.num_obstacles", "env.route", "env_dyn.num_obstacles",
    "sim.decimation", "sim.engine", "sim.physics", "drone.model_name",
)  # fmt: skip


@dataclass(frozen=True)
class Resumed:
    """A run to go on with."""

    cfg: DictConfig  # its settings, with what was given anew
    state: dict
    run: Path  # the directory it goes on in
    history: Path  # the directory it comes from
    same_world: bool  # the drones can fly on from where they were


def find(cfg: DictConfig) -> Resumed | None:
    """What `resume` asks for; None if it asks for nothing. Says what differs from the run as it was."""
    wanted = config.text(cfg, "resume")
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
    for name, kind in HELD.items():
        if not isinstance(state.get(name), kind):
            raise ConfigError("resume", wanted, f"is no training state of this program: it has no proper {name}")
    new = compose("train", overrides=_merged([text for text in state["overrides"] if isinstance(text, str)]))
    with as_one_line(path):
        changed = _differences(OmegaConf.create(state["config"]), new)
    same_world = not any(key in WORLD for key in changed)
    _tell(file, state, changed, same_world, new.sim.engine)
    # A file that is not the last of its run begins a branch: what came after it stays as it is.
    last = path.is_dir() or [p.resolve() for p in states_of(run)[:1]] == [file.resolve()]
    run = config.shortest(run)
    if not last:
        return Resumed(new, state, config.run_directory(), run, same_world)
    return Resumed(new, state, run, run, same_world)


@contextlib.contextmanager
def as_one_line(path: Path | None) -> Iterator[None]:
    """While a state is taken apart: one that was made up, or by another version, fails in any of many ways."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if path is None or isinstance(error, ConfigError):
            raise
        reason = str(error).strip().partition("\n")[0]
        fix = f"does not fit this program ({type(error).__name__}: {reason}); begin a new run"
        raise ConfigError("resume", path, fix) from error


def open_run(resumed: Resumed | None, train: TrainSettings, network: dict) -> RunFiles:
    """The directory to train in, for this process alone. Refuses a run that cannot be gone on with."""
    run = resumed.run if resumed else config.run_directory()
    if resumed:
        for name, was in resumed.state["network"].items():
            if was != network.get(name):
                fix = f"its network has {name}={was}, now {network.get(name)}; begin a new run, or leave it as it was"
                raise ConfigError("resume", resumed.history, fix)
        done = resumed.state["frames"] + train.frames_per_batch > train.total_frames
        if done and resumed.state["scored"].get("frames") == resumed.state["frames"]:  # evaluated, too
            raise ConfigError("max_frame_num", train.total_frames, f"{run} is done with them; raise it to go on")
    try:
        files = RunFiles(run, train.keep)
    except BadCheckpoint as error:
        raise ConfigError("resume", run, str(error)) from None
    if resumed and run == resumed.history:  # Hydra made a new directory, and wrote the settings there
        config.remove_fresh_run()
        files.set_aside_after(resumed.state["iteration"])
        (run / "config").mkdir(exist_ok=True)
        OmegaConf.save(resumed.cfg, run / "config" / "config.yaml")
        OmegaConf.save(given_overrides(resumed), run / "config" / "overrides.yaml")
    return files


def given_overrides(resumed: Resumed | None) -> list[str]:
    """What was typed, now and when the run began."""
    return _merged(resumed.state["overrides"] if resumed else [])


def _merged(before: list[str]) -> list[str]:
    """What was typed now, after what was typed `before`; of a key given twice the last counts."""
    typed = {text.partition("=")[0].lstrip("+~"): text for text in [*before, *HydraConfig.get().overrides.task]}
    return [text for key, text in typed.items() if key != "resume"]


def _tell(file: Path, state: dict, changed: dict[str, str], same_world: bool, engine: str) -> None:
    log.info("going on from %s: iteration %d, %.1f M frames", file, state["iteration"], state["frames"] / 1e6)
    if changed:
        log.info("changed since: %s", ", ".join(f"{key} {change}" for key, change in changed.items()))
    telling = [key for key in changed if not key.startswith(HARMLESS)]
    telling += ["sim=isaac (PhysX rounds attitudes when they are set)"] if engine == "isaac" else []
    telling += [
        f"{key} ({state['machine'].get(key)} → {now})"
        for key, now in machine_now().items()
        if state["machine"].get(key) != now
    ]
    if telling:
        log.warning("not bit for bit the run it would have been, because of: %s", ", ".join(telling))
    if not same_world:
        log.warning("the drones begin new flights: %s changed", ", ".join(key for key in changed if key in WORLD))


def _differences(old: DictConfig, new: DictConfig) -> dict[str, str]:
    before, after = (dict(_flat(OmegaConf.to_container(cfg, resolve=True))) for cfg in (old, new))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: f"{before.get(key, 'nothing')} → {after.get(key, 'nothing')}" for key in keys if key != "resume"}


def _flat(node: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def machine_now() -> dict[str, str | int]:
    """What bits depend on besides settings: sums are split over threads, kernels change between releases."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"torch version": str(torch.__version__), "torch threads": torch.get_num_threads(), "processor": device}


def seed_random_streams(seed: int) -> None:
    """Begin the global random streams."""
    torch.manual_seed(seed), random.seed(seed)
    np.random.set_bit_generator(np.random.PCG64(seed))  # its state is two numbers; the usual one's takes longest of all


_unused: tuple[object, Live] = None, Live()  # streams that nothing here draws from: usually as at the last save


def random_state() -> dict:
    """The global random streams. The learner's and the world's own are part of their states."""
    global _unused
    streams = random.getstate(), np.random.get_state(legacy=False)
    if streams != _unused[0]:
        version, words, gauss = streams[0]
        _unused = streams, Live(python=[version, torch.tensor(words), gauss], numpy=streams[1])
    state = {"torch": torch.get_rng_state(), "other": _unused[1]}
    return state | ({"cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_available() else {})


def set_random_state(state: dict) -> None:
    """Go on from `random_state()`."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["other"]["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(state["other"]["numpy"])
    if torch.cuda.is_available() and len(state.get("cuda", [])) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
