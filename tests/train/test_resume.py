"""Which run is resumed, and what is said about it."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from navrl.io.files import load_checkpoint, write_checkpoint
from navrl.io.snapshot import Snapshot
from navrl.monitor.flights import RecentFlights
from navrl.ppo.networks import NetworkSettings
from navrl.ppo.policy_file import TRAINING_STATE, load_policy
from navrl.ranks import ALONE
from navrl.settings import ConfigError
from navrl.train import resume
from navrl.train.resume import STATE
from navrl.train.settings import CONFIG

ROOT = Path(__file__).parents[2]
NAVRL = ROOT / "third_party/navrl/navrl_checkpoint.pt"


@pytest.fixture
def find(tmp_path) -> Iterator[Callable[..., resume.Resumed | None]]:
    """`resume.find` for a command line."""
    fresh = tmp_path / "fresh"

    def call(*overrides: str) -> resume.Resumed | None:
        cfg = compose("train", list(overrides), return_hydra_config=True)
        OmegaConf.set_readonly(cfg.hydra, False)
        cfg.hydra.runtime.output_dir = str(fresh)
        HydraConfig.instance().set_config(cfg)
        return resume.find(compose("train", list(overrides)))

    with initialize_config_dir(str(CONFIG), version_base=None):
        yield call
    HydraConfig.instance().cfg = None


@pytest.fixture
def run(tmp_path, find) -> Path:
    """A run with two states, begun with seed=4."""
    described = OmegaConf.to_yaml(compose("train", ["seed=4", "reward=navrl"]), resolve=True)
    resume.seed_random_streams(0)
    for iteration in (3, 7):
        state = {
            "format": TRAINING_STATE, "iteration": iteration, "frames": 100 * iteration, "config": described,
            "overrides": ["seed=4", "reward=navrl"], "machine": resume.machine_now(ALONE),
            "ppo": {"decisions": 5}, "batches": {},
            "network": NetworkSettings().describe(), "scores": {}, "scored": {}, "random": resume.random_state(),
            "flights": RecentFlights().state(), "performance": {"elapsed": 1.0, "timers": {}}, "wandb_id": None,
        }  # fmt: skip
        (tmp_path / "run/checkpoints").mkdir(parents=True, exist_ok=True)
        snapshot = Snapshot()
        snapshot.take(state)
        write_checkpoint(tmp_path / f"run/checkpoints/state-{iteration:08d}.pt", snapshot.content, 0)
    return tmp_path / "run"


def refused(find, run: Path, changes: dict, words: str) -> str:
    """The line that a state with these changes costs; a value of ... removes the part."""
    path = run / "checkpoints/state-00000007.pt"
    state = {key: value for key, value in (load_checkpoint(path) | changes).items() if value is not ...}
    write_checkpoint(path, state, 0)
    with pytest.raises(ConfigError) as caught:
        find(f"resume={path}")
    line = str(caught.value)
    assert line.startswith(f"resume={path}: ") and words in line and "\n" not in line, line
    return line


@pytest.mark.parametrize("part", [name for name in STATE if not name.endswith("?")])
def test_a_state_that_was_made_up(find, run, part: str) -> None:
    refused(find, run, {part: ...}, f"{part} is missing")
    refused(find, run, {part: {"else": 1} if part == "overrides" else ["something else", 3]}, part)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"iteration": -5}, "iteration is -5"),
        ({"iteration": True}, "iteration is True"),
        ({"frames": 10**15}, "frames is 1000000000000000"),
        ({"frames": 10**40}, "frames is an enormous number"),
        ({"performance": {"elapsed": float("nan"), "timers": {}}}, "performance.elapsed is nan"),
        ({"performance": {"elapsed": 1.0, "timers": {"a\nb": [0.0, 1]}}}, "a key of performance.timers"),
        ({"wandb_id": "../../etc"}, "wandb_id is '../../etc'"),
        ({"wandb_id": "..."}, "wandb_id is '...'"),
        ({"network": {}}, "network has no encoder"),
        ({"network": NetworkSettings().describe() | {"beams": [3000, 3000]}}, "network.beams[0] is 3000"),
        ({"scores": {"eval/a,b/success": 0.5}}, "a key of scores"),
        ({"config": "a: &a [1]\nb: [*a, *a]"}, "a reference to another part of itself"),
        ({"config": "[" * 100_000}, "config cannot be read"),
        ({"config": "x: !!python/object/apply:os.system [true]"}, "config cannot be read"),
        ({"overrides": ["reward=../../secret"]}, "reward is one of navrl, progress"),
    ],
)
def test_values_no_honest_state_has(find, run, changes: dict, words: str) -> None:
    refused(find, run, changes, words)


def test_stored_settings_are_data(find, run, monkeypatch, caplog) -> None:
    """Nothing is resolved or looked up, nothing of Hydra's is changed, and nothing is sent anywhere unasked."""
    monkeypatch.setenv("SECRET", "swordfish")
    path = run / "checkpoints/state-00000007.pt"
    state = load_checkpoint(path)
    config = OmegaConf.create(state["config"])
    config.wandb.mode, config.wandb.entity, config.wandb.name = "online", "somebody-else", "a name"
    typed = ["wandb.mode=online", "+wandb.entity=somebody-else", "wandb.name=${oc.env:SECRET}", "hydra.run.dir=/tmp/x"]
    more = ["seed=4", "reward=navrl", "no.such=1", "~env", "+sim@here=warp", "algo.actor.action_limit=3"]
    config.algo.actor.action_limit = 3.0
    changed = state | {"config": OmegaConf.to_yaml(config), "overrides": typed + more}
    write_checkpoint(path, changed, 0)
    with caplog.at_level(logging.INFO):
        resumed = find(f"resume={path}")
    assert resumed.cfg.wandb.mode == "offline" and resumed.cfg.wandb.entity is None
    assert resumed.cfg.wandb.name == "a name", "the value is the stored one; its text is never resolved"
    assert resumed.cfg.drone.action_limit == 3.0, "our own references still work"
    assert "wandb.mode='online' of this run is not taken over" in caplog.text and "swordfish" not in caplog.text
    told = find(f"resume={path}", "wandb.mode=online")
    assert told.cfg.wandb.mode == "online" and told.cfg.wandb.entity is None
    config.wandb.name = "${oc.env:SECRET}"
    refused(find, run, {"config": OmegaConf.to_yaml(config)}, "its stored wandb.name is '${oc.env:SECRET}'")


def test_whatever_a_state_fails_with_is_one_line() -> None:
    for error in (KeyError("seed"), RuntimeError("size mismatch\n  for policy"), TypeError("x"), IndexError("y")):
        with (
            pytest.raises(ConfigError, match="resume=there: does not fit this program") as caught,
            resume.as_one_line(Path("there")),
        ):
            raise error
        assert "\n" not in str(caught.value)
    with pytest.raises(KeyError), resume.as_one_line(None):  # nothing was resumed: an error of ours
        raise KeyError("seed")


def test_nothing_asked_for(find) -> None:
    assert find() is None


def test_settings_are_those_of_the_run(find, run, caplog) -> None:
    with caplog.at_level(logging.INFO):
        resumed = find(f"resume={run}")
    assert resumed.cfg.seed == 4 and resumed.cfg.reward.velocity == 1.0 and resumed.cfg.resume is None
    assert resumed.state["iteration"] == 7 and resumed.same_world
    assert resumed.run == resumed.history == run
    assert len(caplog.records) == 1 and "iteration 7" in caplog.text, "nothing changed, nothing more to say"


def test_a_file_that_is_not_the_last_begins_a_branch(find, run, tmp_path) -> None:
    last = find(f"resume={run}/checkpoints/state-00000007.pt.lz4")
    assert last.run == run
    earlier = find(f"resume={run}/checkpoints/state-00000003.pt")  # with or without .lz4
    assert earlier.run == tmp_path / "fresh" and earlier.history == run and earlier.state["iteration"] == 3
    assert find(f"resume={run}/checkpoints").state["iteration"] == 7, "the folder of a run is the run"


def test_changes_are_reported(find, run, caplog) -> None:
    changes = ["save_interval=7", "algo.gamma=0.97", "env.num_envs=32", "max_frame_num=5e7", "reward=progress"]
    with caplog.at_level(logging.INFO):
        resumed = find(f"resume={run}", *changes)
    assert resumed.cfg.algo.gamma == 0.97 and resumed.cfg.seed == 4 and not resumed.same_world
    told = {line.partition(":")[0]: line for line in caplog.messages}
    for words in ("save_interval 100 → 7", "algo.gamma 0.98 → 0.97", "env.num_envs 1024 → 32", "reward.velocity"):
        assert words in told["changed since"]
    inexact = told["not bit for bit the run it would have been, because of"]
    for key, breaks in {
        "algo.gamma": True,
        "max_frame_num": True,
        "reward.velocity": True,
        "save_interval": False,
    }.items():
        assert (key in inexact) == breaks, key
    assert told["the drones begin new flights"].endswith("env.num_envs changed")


def test_another_machine_is_reported(find, run, caplog) -> None:
    state = resume.newest_state(run)[1]
    state["machine"]["torch threads"] = 99
    write_checkpoint(run / "checkpoints/state-00000007.pt", state, 0)
    find(f"resume={run}")
    assert "torch threads (99 →" in caplog.text


class Bomb:
    def __reduce__(self) -> tuple:
        return os.system, ("true",)


def test_what_cannot_be_resumed_costs_one_line(find, run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.pt").touch()
    Path("loop.pt").symlink_to("loop.pt")
    Path("folder").mkdir()
    torch.save({"model_state_dict": {}, "optimizer_state_dict": {}, "iter": 3, "infos": None}, "rsl_rl.pt")
    torch.save({"weights": Bomb()}, "bomb.pt")
    cases = {
        "nowhere": "does not exist", "empty.pt": "is empty", "loop.pt": "symbolic links", "bomb.pt": "asks to run",
        "folder": "holds no training state", "rsl_rl.pt": "not a training state", str(NAVRL): f"checkpoint={NAVRL}",
    }  # fmt: skip
    for path, words in cases.items():
        with pytest.raises(ConfigError) as caught:
            find(f"resume={path}")
        line = str(caught.value)
        assert line.startswith(f"resume={path}: ") and words in line and "\n" not in line
    cases = {"rsl_rl.pt": "not a checkpoint of navrl or NavRL", "bomb.pt": "asks to run", "folder": "is a directory"}
    for path, words in (cases | {f"{run}/checkpoints/state-00000003.pt": "resume="}).items():
        with pytest.raises(ValueError) as caught:
            load_policy(path)
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_random_streams_are_restored() -> None:
    def draw() -> tuple:
        return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()

    resume.seed_random_streams(3)
    draw()
    state = resume.random_state()
    first = draw()
    draw()
    resume.set_random_state(state)
    assert draw() == first
