"""scripts/train.py in process: some iterations on a dummy environment, and an exception in every component."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dummy import DummyEnv

from navrl.checkpoint.retention import newest_state, states_of
from navrl.checkpoint.stop import StopRequest
from navrl.collect.batches import PrefetchedBatches, SerialBatches
from navrl.collect.rollouts import RolloutArchive
from navrl.io.files import load_checkpoint
from navrl.io.snapshot import tensors_of
from navrl.monitor import flights
from navrl.monitor.console import TrainingConsole
from navrl.monitor.metrics import CsvLogger, TensorBoardLogger, read_rows
from navrl.monitor.performance import PerformanceMonitor
from navrl.ppo.ppo import PPO
from navrl.scripts import train as train_script
from navrl.scripts.train import train
from navrl.task.evaluation import Evaluator
from navrl.train import evaluation
from navrl.train.directory import RunDirectory
from navrl.train.resume import Resumed
from navrl.train.saving import Saving
from navrl.train.settings import TrainSettings, compose_config, read_train
from navrl.view import replay, video

SMALL = [
    "device=cpu", "env.num_envs=8", "algo.training_frame_num=4", "algo.num_minibatches=2", "env.num_maps=1",
    "max_frame_num=320", "eval_interval=4", "eval.scenarios=[crossing-0-0]", "eval.episodes=2", "eval.final_episodes=2",
    "eval.maps=1", "eval.picture=false", "eval.replay=false", "env.max_episode_length=8", "save_interval=3",
    "logger=none",
]  # fmt: skip
MODES = {
    "serial": [],
    "prefetch": ["use_pipelined_collector=true", "return_same_td=false"],
    "compressed": ["compress_rollout=all"],
}


def read(*overrides: str) -> TrainSettings:
    return read_train(compose_config("train", [*SMALL, *overrides]), [*SMALL, *overrides])


class Run:
    """A run on the dummy environment, which it keeps."""

    def __init__(self, path: Path, *overrides: str) -> None:
        self.path, self.overrides, self.envs = path, overrides, []

    def _make(self, *settings) -> Any:  # what `train` knows of a NavigationEnv
        self.envs.append(DummyEnv(*settings))
        return self.envs[-1]

    def train(self) -> int:
        return train(read(*self.overrides), self.path, make_env=self._make)

    def resume(self, *overrides: str) -> int:
        settings = read(*self.overrides, *overrides)
        resumed = Resumed(compose_config("train"), newest_state(self.path)[1], self.path, self.path, True)
        return train(settings, self.path, replace(resumed, history=self.path / "."), make_env=self._make)

    def state(self) -> dict:
        return newest_state(self.path)[1]


@pytest.fixture(autouse=True)
def no_hydra(monkeypatch) -> None:
    """There is no directory of Hydra's to remove."""


@pytest.mark.parametrize("mode", MODES)
def test_some_iterations(tmp_path, mode: str) -> None:
    run = Run(tmp_path, *MODES[mode])
    assert run.train() == 0
    state = run.state()
    assert state["iteration"] == 10 and state["frames"] == 320 and state["scored"]["frames"] == 320
    assert {"policy.pt", "metrics.csv", "curves.png", "eval.json", "manifest.jsonl", "report.html"} <= {
        p.name for p in tmp_path.iterdir()
    }
    assert [row["frames"] for row in read_rows(tmp_path / "metrics.csv") if "losses/entropy" in row] == [
        32 * k for k in range(1, 11)
    ]
    assert run.envs[0].closed


def same(a: dict, b: dict) -> bool:
    return all(
        torch.equal(x, y)
        for part in ("ppo", "batches")
        for x, y in zip(tensors_of(a[part]), tensors_of(b[part]), strict=True)
    )


class Broken(Exception):
    pass


def break_at(monkeypatch, owner: object, name: str, call: int) -> None:
    """Raise at the `call`-th call of owner.name."""
    original: Callable = getattr(owner, name)
    calls = 0

    def wrapped(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == call:
            raise MemoryError("no memory left") if name == "_losses" else Broken(f"{name} broke")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)


PLACES = {
    "simulator": (DummyEnv, "_step", 18),
    "collector": (SerialBatches, "_collect", 5),
    "learner": (PPO, "compute_targets", 5),
    "out of memory": (PPO, "_losses", 22),
    "archive": (RolloutArchive, "append", 5),
    "statistics": (flights.RecentFlights, "add", 5),
    "csv": (CsvLogger, "log", 5),
    "tensorboard": (TensorBoardLogger, "log", 5),
    "console": (TrainingConsole, "update", 5),
    "timers": (PerformanceMonitor, "memory", 5),
    "evaluator": (Evaluator, "fly", 1),
    "table": (evaluation, "results_table", 1),
    "picture": (evaluation, "draw_flights", 1),
    "replay": (replay, "write_replay", 1),
    "video": (video, "write_video", 1),
    "curves": (evaluation, "draw_curves", 1),
    "save": (Saving, "save", 1),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_anywhere_saves_a_state_that_resumes(tmp_path, monkeypatch, place: str) -> None:
    extra = ["rollout_save_interval=1", "return_same_td=false", "logger=tensorboard"]
    extra += [f"eval.{place}=true"] if place in ("picture", "replay", "video") else []
    whole = Run(tmp_path / "whole", *extra)
    whole.path.mkdir()
    assert whole.train() == 0
    run = Run(tmp_path / "run", *extra)
    run.path.mkdir()
    with monkeypatch.context() as patched:
        break_at(patched, *PLACES[place])
        with pytest.raises((Broken, MemoryError)):
            run.train()
    assert run.envs[0].closed, "the simulator is closed"
    assert [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("checkpoint saver", "rollout archive", "logging"))
    ] == []
    with RunDirectory(run.path):
        pass  # the lock is free
    assert states_of(run.path), "a state was saved"
    assert (run.path / "report.html").exists() == (run.path / "metrics.csv").exists()
    at = run.state()["iteration"]
    assert 3 <= at <= 5, "what was learned until then"
    assert run.resume() == 0
    assert run.state()["iteration"] == 10
    if place not in ("simulator", "collector", "learner", "out of memory"):  # those lost a batch that was flown
        assert same(run.state(), whole.state()), "bit for bit the run it would have been"


def test_a_report_that_fails_loses_nothing(tmp_path, monkeypatch) -> None:
    run = Run(tmp_path)
    with monkeypatch.context() as patched:
        break_at(patched, train_script, "report", 1)
        with pytest.raises(Broken):
            run.train()
    assert run.state()["iteration"] == 10 and run.envs[0].closed
    with RunDirectory(run.path):
        pass  # the lock is free


def test_an_exception_in_the_prefetch_thread(tmp_path, monkeypatch) -> None:
    run = Run(tmp_path, *MODES["prefetch"])
    with monkeypatch.context() as patched:
        break_at(patched, PrefetchedBatches, "_collect", 6)
        with pytest.raises(Broken):
            run.train()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"] and run.envs[0].closed
    assert run.resume() == 0 and run.state()["iteration"] == 10


def test_an_update_that_fails_leaves_the_learner_as_it_was(tmp_path, monkeypatch) -> None:
    """Out of memory in the middle of an update: the saved weights are those of the last whole one."""
    run, other = Run(tmp_path / "a"), Run(tmp_path / "b", "save_interval=1", "checkpoint.keep_last=100")
    with monkeypatch.context() as patched:
        break_at(patched, PPO, "_losses", 23)  # 4 minibatches per update: the third of the sixth
        with pytest.raises(MemoryError):
            run.train()
    assert other.train() == 0 and run.state()["iteration"] == 5
    expected = load_checkpoint(other.path / "checkpoints/state-00000005.pt")
    weights = [tensors_of(state["ppo"]["averaged"]) for state in (run.state(), expected)]
    assert all(map(torch.equal, *weights))


def test_a_request_to_stop_is_saved_and_resumed(tmp_path, monkeypatch) -> None:
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    assert whole.train() == 0
    with monkeypatch.context() as patched:
        update = TrainingConsole.update

        def stop_at_five(self, frames: int, *rest) -> None:
            update(self, frames, *rest)
            if frames == 5 * 32:
                import signal

                signal.raise_signal(signal.SIGTERM)

        patched.setattr(TrainingConsole, "update", stop_at_five)
        assert run.train() == 143
    assert run.state()["iteration"] == 5
    assert run.resume() == 0 and same(run.state(), whole.state())


def test_an_old_state_resumes(tmp_path) -> None:
    """States of the first version know nothing of collision radius, field size or, at first, of wandb."""
    from navrl.io.files import write_checkpoint

    run = Run(tmp_path)
    settings = read()
    assert train(replace(settings, max_frames=160), tmp_path, make_env=run._make) == 0
    state = run.state()
    del state["network"]["collision_radius"], state["network"]["field_half"], state["wandb_id"]
    write_checkpoint(states_of(tmp_path)[0], state, 0)
    (tmp_path / "metrics.csv").unlink()
    assert run.resume() == 0 and run.state()["iteration"] == 10
    assert (tmp_path / "curves.png").exists()


def test_signals_are_as_before_after_a_run(tmp_path) -> None:
    import signal

    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert signal.getsignal(signal.SIGTERM) == stop._note
    assert signal.getsignal(signal.SIGTERM) is before
