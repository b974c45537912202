"""Hardware presets (`hardware=`): drones, minibatches, precision and threads for one kind of machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from navrl.settings import ConfigError
from navrl.train.settings import CONFIG

KEYS = ("env.num_envs", "algo.num_minibatches", "algo.amp", "threads")  # what a preset sets
LITTLE = 6e9  # bytes of memory below which a machine is a laptop


def own_folder() -> Path:
    """Where `navrl tune` writes presets."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "navrl" / "hardware"


def presets() -> list[str]:
    """The names there are: those that come with the package, then the user's."""
    ours, own = sorted((CONFIG / "hardware").glob("*.yaml")), sorted(own_folder().glob("*.yaml"))
    return list(dict.fromkeys(file.stem for file in [*ours, *own]))


def choose() -> tuple[str, str]:
    """The preset for this machine, and why."""
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 1e9
        name = "gpu-80gb" if memory > 60 else "gpu-24gb" if memory > 16 else "gpu-8gb"
        return name, f"{torch.cuda.get_device_name(0)}, {memory:.0f} GB; this preset was not run by us"
    memory, cores = psutil.virtual_memory().total, len(os.sched_getaffinity(0))
    name = "laptop" if memory < LITTLE else "cpu"
    return name, f"no CUDA device, {cores} cores, {memory / 1e9:.0f} GB"


def with_hardware(arguments: Sequence[str]) -> list[str]:
    """The arguments of a training with its preset in them; a run that is resumed has its own settings."""
    given = [a.partition("=")[2] for a in arguments if a.startswith("hardware=")]
    resumes = any(a.startswith("resume=") and a != "resume=auto" for a in arguments)
    if not given and (resumes or "sim=isaac" in arguments):  # how many drones Isaac bears we do not know
        return [*arguments]
    name = given[-1] if given else "auto"
    others = [a for a in arguments if not a.startswith("hardware=")]
    if name == "auto":
        name, why = choose()
        if os.environ.get("RANK", "0") == "0":
            print(f"hardware: {name} ({why})", flush=True)
    elif "," not in name and name not in presets():  # with a comma it is a sweep of Hydra's
        fix = f"choose auto or one of {', '.join(presets())}, or make one with: navrl tune"
        raise ConfigError("hardware", name, fix)
    search = [f"hydra.searchpath=[file://{own_folder().parent}]"] if own_folder().is_dir() else []
    return [*others, f"hardware={name}", *search]
