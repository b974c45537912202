"""Which physics is selected, and the error when none can run, for simulated installations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from navrl.sim import isaac_check
from navrl.sim.isaac_check import IsaacMissing, check_isaac

ALL = ("isaaclab", "ovphysx", "newton")


@pytest.fixture
def machine(monkeypatch):
    """Simulate a machine with these packages, this release of Isaac Lab, and a GPU or none."""

    def describe(*packages: str, release: str = "3.0.0", gpu: bool = False) -> None:
        def find(name: str) -> SimpleNamespace | None:
            if name == "isaacsim" and "isaacsim" not in packages:
                return SimpleNamespace(origin=None)  # the empty namespace an Isaac Lab package leaves behind
            return SimpleNamespace(origin=f"{name}/__init__.py") if name in packages else None

        monkeypatch.setattr(isaac_check, "find_spec", find)
        monkeypatch.setattr(isaac_check, "version", lambda _: release)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)

    return describe


def test_auto(machine) -> None:
    machine(*ALL)
    assert check_isaac("auto") == ("ovphysx", "Isaac Sim is not installed")
    machine(*ALL, "isaacsim")
    assert check_isaac("auto") == ("ovphysx", "no GPU")
    machine(*ALL, "isaacsim", gpu=True)
    assert check_isaac("auto") == ("physx", "Isaac Sim and a GPU are here")
    assert check_isaac("physx")[0] == "physx" and check_isaac("newton")[0] == "newton"


@pytest.mark.parametrize(
    "packages, release, gpu, physics, words",
    [
        ((), "", False, "auto", "Isaac Lab is not installed in this environment"),
        (ALL, "2.3.2", True, "auto", "Isaac Lab 2.3.2 is installed, but 3.0 is needed"),
        (("isaaclab",), "3.0.0", False, "auto", "needs the package ovphysx"),
        (("isaaclab", "ovphysx"), "3.0.0", False, "newton", "needs the package newton"),
        (
            ALL,
            "3.0.0",
            True,
            "physx",
            "needs Isaac Sim (pip install 'isaaclab[isaacsim]==3.0.0'); set sim.physics=ovphysx",
        ),
        ((*ALL, "isaacsim"), "3.0.0", False, "physx", "needs a GPU; set sim.physics=ovphysx"),
    ],
)
def test_error_names_what_is_missing_and_the_fix(machine, packages, release, gpu, physics, words) -> None:
    machine(*packages, release=release, gpu=gpu)
    with pytest.raises(IsaacMissing) as caught:
        check_isaac(physics)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert "make setup-isaac" in str(caught.value) or "sim.physics=ovphysx" in str(caught.value)
