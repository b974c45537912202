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
from omegaconf import DictConfig, OmegaConf

from navrl.checkpoint.retention import FOLDER, newest_state, states_of
from navrl.io.contents import (
    Array,
    ListOf,
    MapOf,
    Maybe,
    Number,
    Plain,
    Text,
    Unfit,
    check,
    shown,
)  # fmt: skip
from navrl.io.files import BadCheckpoint, checkpoint_path, load_checkpoint
from navrl.io.snapshot import Live
from navrl.monitor.flights import FLIGHTS_STATE
from navrl.monitor.performance import PERFORMANCE_STATE
from navrl.ppo.networks import NETWORK, NetworkSettings
from navrl.ppo.policy_file import FORMAT, TRAINING_STATE
from navrl.ppo.ppo import check_learner_state
from navrl.ranks import ALONE, Ranks, remembered
from navrl.settings import ConfigError, one_line, read, setting
from navrl.train.directory import fresh_directory, remove_fresh_directory, shortest
from navrl.train.hardware import KEYS as PRESET
from navrl.train.settings import CONFIG, WANDB_WORD, TrainSettings, flat, plain, stored_config

log = logging.getLogger("navrl")

# Keys that change nothing of what is learned, and those that change the world the drones are in.
HARMLESS = (
    "resume", "checkpoint.", "save_", "compress_checkpoint", "async_checkpoint_queue_size", "eval_interval", "eval.",
    "logger", "wandb.", "perf.", "rollout_save_interval",
    "compress_rollout", "headless", "return_same_td", "sim.threads", "ranks.",
)  # fmt: skip
COUNT = Number(0, 1e13, whole=True)
STATE = {  # a training state, before what its network and world decide; see `check_resumed`
    "config": Text(1 << 20), "overrides": ListOf(Text(10_000)), "machine": MapOf(Plain()), "network": NETWORK,
    "iteration": COUNT, "frames": COUNT, "scores": MapOf(Number(0, 1), 200, r"eval/[\w-]+/success"),
    "scored": MapOf(COUNT), "ppo": {}, "batches": {}, "flights": FLIGHTS_STATE, "performance": PERFORMANCE_STATE,
    "random": {
        "torch": Array(torch.uint8, (None,)), "cuda?": ListOf(Array(torch.uint8, (None,)), 64),
        "other": {"python": [COUNT, Array(torch.int64, (625,)), Maybe(Number())], "numpy": Plain()},
    },
    "wandb_id?": Maybe(Text(120, WANDB_WORD)),
}  # fmt: skip
GROUPS = ("sim", "reward")  # keys that choose a file of cfg/
SENDING = ("wandb.mode", "wandb.entity")  # decide who else sees the run: never taken from a file
WORLD = (
    "seed", "env.num_envs", "env.num_maps", "env.num_obstacles", "env.route", "env_dyn.num_obstacles",
    "sim.decimation", "sim.engine", "sim.physics", "drone.model_name",
)  # fmt: skip


@dataclass(frozen=True)
class ResumeSettings:
    """Which run to resume; `auto`: the one in hydra.run.dir, if there is one."""

    resume: str | None = setting("resume")


@dataclass(frozen=True)
class Resumed:
    """A run to resume."""

    cfg: DictConfig  # its settings, with what was given now
    state: dict
    run: Path  # the directory it continues in
    history: Path  # the directory it comes from
    same_world: bool  # the drones can continue their flights
    auto: bool = False  # nobody asked for it by name: a scheduler or torchrun started the run again


def find(cfg: DictConfig, ranks: Ranks = ALONE) -> Resumed | None:
    """The run that `resume` names; None if it names nothing. Logs what differs from the run as it was."""
    wanted = read(ResumeSettings, plain(cfg)).resume
    auto = wanted == "auto"
    if (before := remembered()) and states_of(Path(before)):
        wanted, auto = before, True
    elif auto:
        path = Path(HydraConfig.get().runtime.output_dir)
        wanted = str(shortest(path)) if states_of(path) else None
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
    try:
        check(state, STATE)
        stored = stored_config(state["config"])
    except Unfit as error:
        raise ConfigError("resume", wanted, f"is no training state of this program: {error}") from None
    new = _settings_of(state["overrides"], stored, wanted, auto)
    changed = _differences(stored, new)
    same_world = not any(key in WORLD for key in changed)
    _report(file, state, changed, same_world, new.sim.engine, ranks)
    # A state that is not the last of its run starts a branch: what came after it stays untouched.
    last = path.is_dir() or [p.resolve() for p in states_of(run)[:1]] == [file.resolve()]
    run = shortest(run)
    return Resumed(new, state, run if last else fresh_directory(), run, same_world, auto)


def check_resumed(resumed: Resumed, settings: TrainSettings) -> None:
    """Refuse a run whose network changed, or that has nothing left to do."""
    before = NetworkSettings.parse(resumed.state["network"]).describe()
    for name, now in settings.network.describe().items():
        if before[name] != now:
            fix = f"its network has {name}={before[name]}, now {now}; start a new run, or leave it as it was"
            raise ConfigError("resume", resumed.history, fix)
    with as_one_line(resumed.history):
        check_learner_state(resumed.state["ppo"], settings.network)
    if finished(resumed, settings) and not resumed.auto:
        fix = f"{resumed.run} has reached it; raise it to continue"
        raise ConfigError("max_frame_num", settings.max_frames, fix)


def finished(resumed: Resumed, settings: TrainSettings) -> bool:
    """Whether the run has nothing left to do: all is learned, and evaluated too."""
    done = resumed.state["frames"] + settings.frames_per_batch > settings.max_frames
    return done and resumed.state["scored"].get("frames") == resumed.state["frames"]


@contextlib.contextmanager
def as_one_line(path: Path | None) -> Iterator[None]:
    """Turn errors into one line while a state is taken apart: one that is made up fails in any of many ways."""
    try:
        yield
    except (ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if path is None or isinstance(error, ConfigError):
            raise
        kind = "" if isinstance(error, Unfit) else f"{type(error).__name__}: "
        fix = f"does not fit this program ({kind}{str(error).strip().partition(chr(10))[0]}); start a new run"
        raise ConfigError("resume", path, fix) from error


def directory(resumed: Resumed | None) -> Path:
    """Where the run is: that of the resumed one, or a new one."""
    if resumed and resumed.run == resumed.history:
        remove_fresh_directory()  # Hydra made one
    before = remembered()  # a start that was ended before it had saved anything
    return resumed.run if resumed else Path(before) if before else fresh_directory()


def given_overrides(resumed: Resumed | None) -> list[str]:
    """What was typed, now and when the run began; of a key given twice the last counts."""
    typed = {_key(text): text for text in [*(resumed.state["overrides"] if resumed else []), *_typed()]}
    return [text for key, text in typed.items() if key != "resume"]


def _typed() -> list[str]:
    return list(HydraConfig.get().overrides.task)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


# --- settings from a file are data: nothing in them is resolved, looked up or run ------------------------------------


def _settings_of(overrides: list[str], stored: dict, wanted: str, auto: bool) -> DictConfig:
    """The settings of a run with these overrides, and then of what was typed now.

    The run's overrides say which settings were its own choice; their values are those of its stored settings.
    """
    typed = [text for text in _typed() if _key(text) != "resume"]
    now = {_key(text) for text in typed} - ({"hardware"} if auto else set())  # it may run on another machine now
    chosen = [_key(text) for text in overrides if _key(text) not in now]
    chosen += [] if "hardware" in now else list(PRESET)
    groups = [text for text in overrides if (key := _key(text)) in GROUPS and key in chosen]
    for text in groups:
        key, _, name = text.lstrip("+").partition("=")
        if name not in (names := [file.stem for file in sorted((CONFIG / key).glob("*.yaml"))]):
            raise ConfigError("resume", wanted, f"was run with {one_line(text)}; {key} is one of {', '.join(names)}")
    cfg = compose("train", overrides=[*groups, *typed])
    known, values = dict(flat(plain(cfg))), dict(flat(stored))
    for key, value in values.items():
        mine = any(key == name or key.startswith(f"{name}.") for name in chosen if name not in GROUPS)
        later = any(key == name or key.startswith(f"{name}.") for name in now - set(GROUPS))
        if mine and not later and key in known:
            if key in SENDING:
                if value != known[key]:
                    log.warning("%s=%s of this run is not taken over; type it to send data there", key, shown(value))
            elif "${" in str(value):
                raise ConfigError("resume", wanted, f"its stored {key} is {shown(value)}; give {key} anew")
            else:
                OmegaConf.update(cfg, key, value)
    return cfg


def _report(file: Path, state: dict, changed: dict[str, str], same_world: bool, engine: str, ranks: Ranks) -> None:
    log.info("resuming from %s: iteration %d, %.1f M frames", file, state["iteration"], state["frames"] / 1e6)
    if changed:
        told = ", ".join(f"{key} {change}" for key, change in changed.items())
        log.info("changed since: %s", one_line(told, 4000))
    reasons = [key for key in changed if not key.startswith(HARMLESS)]
    reasons += ["sim=isaac (PhysX rounds attitudes when they are set)"] if engine == "isaac" else []
    before = {"ranks": 1} | state["machine"]
    reasons += [
        f"{key} ({one_line(str(before.get(key)))} → {now})"
        for key, now in machine_now(ranks).items()
        if before.get(key) != now
    ]
    reasons += [] if "decisions" in state["ppo"] else ["an earlier version of navrl, which drew its noise otherwise"]
    if reasons:
        log.warning("not bit for bit the run it would have been, because of: %s", ", ".join(reasons))
    if not same_world:
        log.warning("the drones begin new flights: %s changed", ", ".join(key for key in changed if key in WORLD))


def _differences(old: dict, new: DictConfig) -> dict[str, str]:
    before, after = dict(flat(old)), dict(flat(plain(new)))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: f"{before.get(key, 'nothing')} → {after.get(key, 'nothing')}" for key in keys if key != "resume"}


def machine_now(ranks: Ranks) -> dict[str, str | int]:
    """What bits depend on besides settings: sums are split across threads, kernels change between releases."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    threads = {"torch threads": torch.get_num_threads(), "ranks": ranks.size}
    return {"torch version": str(torch.__version__), **threads, "processor": device}


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
