"""Checks whether Isaac Lab can run here, and with which physics. Importing this module never imports Isaac Lab."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

PHYSICS = ("auto", "ovphysx", "physx", "newton")
PYTHON = (3, 12)
SETUP = "make setup-isaac, then make train-isaac ARGS='...' (or the Python it names)"
GPU_BOX = "docs/gpu-box.md"


class IsaacMissing(ValueError):
    """Isaac Lab or the requested physics cannot run here; the message says what is missing and how to fix it."""


def check_isaac(physics: str) -> tuple[str, str]:
    """Return the physics to use for `sim.physics` and why; raise IsaacMissing if it cannot run here."""
    if find_spec("isaaclab") is None:
        found = ".".join(map(str, sys.version_info[:2]))
        other = "" if sys.version_info[:2] == PYTHON else f" (Isaac Lab 3 needs Python 3.12, this is {found})"
        raise IsaacMissing(f"Isaac Lab is not installed in this environment{other}; run: {SETUP}")
    try:
        release = version("isaaclab")
    except PackageNotFoundError:
        release = "unknown"
    if not release.startswith("3."):
        raise IsaacMissing(f"Isaac Lab {release} is installed, but 3.0 is needed; run: {SETUP}")
    spec, gpu = find_spec("isaacsim"), torch.cuda.is_available()
    kit = spec is not None and spec.origin is not None  # a small Isaac Lab package leaves an empty namespace behind
    if physics == "physx" and not (kit and gpu):
        lacks = {"Isaac Sim (pip install 'isaaclab[isaacsim]==3.0.0')": not kit, "a GPU": not gpu}
        missing = " and ".join(name for name, lacking in lacks.items() if lacking)
        raise IsaacMissing(f"needs {missing}; set sim.physics=ovphysx, which runs anywhere, or see {GPU_BOX}")
    why = "as requested"
    if physics == "auto":
        physics, why = "ovphysx", "no GPU" if kit else "Isaac Sim is not installed"
        if kit and gpu:
            physics, why = "physx", "Isaac Sim and a GPU are here"
    if physics in ("ovphysx", "newton") and find_spec(physics) is None:
        raise IsaacMissing(f"needs the package {physics}, which is not installed; run: {SETUP}")
    return physics, why
