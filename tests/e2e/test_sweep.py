"""scripts/sweep.py: a study that several workers share, and what they do when one of them dies."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT, SMALL, start

pytest.importorskip("optuna", reason="sweeps need Optuna: pip install 'optuna>=4'")
import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from navrl.scripts import sweep as script
from navrl.settings import ConfigError
from navrl.train.search import Sweep, override, read_sweep, sweep_file
from navrl.train.settings import CONFIG
from navrl.train.sweep import (
    LOST,
    RunningTrial,
    Worker,
    importance,
    learning_curve,
    open_study,
    pruner,
    shown,
    take_lock,
)

SPACE = "search:\n  algo.gamma: {low: 0.9, high: 0.99}\n  algo.actor.clip_ratio: [0.1, 0.2]\n"
RUN = [*SMALL, "max_frame_num=15360", "eval_interval=10", "device=cpu"]
SHARED = {"GOMP_SPINCOUNT": "1000", "OMP_NUM_THREADS": "1"}  # two runs at once on few cores


@pytest.fixture(autouse=True)
def _talkative():
    """The command silences our logger; the next test may want to hear it."""
    yield
    logging.getLogger("navrl").setLevel(logging.NOTSET)


def write_space(folder: Path, text: str = SPACE) -> str:
    (folder / "space.yaml").write_text(text)
    return str(folder / "space.yaml")


def make_sweep(folder: Path, text: str = SPACE, *overrides: str, seeds: int = 1) -> Sweep:
    folder.mkdir(exist_ok=True)
    return read_sweep(Path(write_space(folder, text)), overrides, seeds, folder)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "search, words, says",
    [
        ("algo.gama: [0.9]", [], "algo.gama=0.9: no such key; did you mean algo.gamma?"),
        ("algo.gamma: [0.9, 1.5]", [], "algo.gamma=1.5: must be a number between 0 and 1"),
        ("algo.gamma: {low: 0.9, high: 0.9}", [], "algo.gamma: is empty: low=0.9 must be less than high=0.9"),
        ("algo.gamma: {low: 0, high: 1, log: true}", [], "algo.gamma: low=0 must be more than 0 with log: true"),
        ("algo.gamma: {low: a, high: 1}", [], "low and high must be numbers"),
        ("algo.gamma: {lo: 0, high: 1}", [], "must be a list of choices, or low and high"),
        ("algo.gamma: []", [], "algo.gamma: has an empty list of choices"),
        ("algo.num_minibatches: {low: 1, high: 2.5, integer: true}", [], "low and high must be whole numbers"),
        ("{}", [], "search: must be a section"),
        ("seed: [1, 2]", [], "search=seed: is given by the sweep"),
        ("a: [1]\nsurch: 1", [], "surch: no such key"),
        ("a: [1", [], "cannot be read"),
        ("algo.gamma: [0.9]", ["algo.gama=0.9"], "Could not override 'algo.gama'"),
        ("algo.gamma: [0.9]", ["algo.gamma=0.9"], "algo.gamma=0.9: is searched by space"),
        ("algo.gamma: [0.9]", ["resume=runs/x"], "resume=runs/x: is given to every run by the sweep"),
        ("algo.gamma: [0.9]", ["hydra.run.dir=x"], "hydra.run.dir=x: is given to every run by the sweep"),
        ("algo.gamma: [0.9]", ["trials=0"], "trials=0: must be at least 1"),
        ("algo.gamma: [0.9]", ["trials=x"], "trials=x: must be a whole number"),
        ("algo.gamma: [0.9]", ["eval_interval=0"], "eval_interval=0: leaves no evaluation on the way"),
        ("algo.gamma: [0.9]", ["folder=space.yaml/x"], "folder=space.yaml/x: Not a directory"),
        ("algo.gamma: [0.9]", ["storage=space.yaml/x", "folder=."], "storage=space.yaml/x: cannot be used"),
        ("algo.gamma: [0.9]", ["storage=space.yaml", "folder=."], "storage=space.yaml: cannot be used"),
        (
            "algo.gamma: [0.9]",
            ["storage=nosql://u:secret@h/d", "folder=."],
            "storage=nosql://u:***@h/d: cannot be used",
        ),
        ("algo.gamma: [0.9]", ["name=no_such"], "name=no_such: no such sweep; choose one of learning, reward"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, search: str, words: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    body = search if search == "{}" else "\n".join(f"  {line}" for line in search.splitlines())
    write_space(tmp_path, f"search: {body}" if search == "{}" else f"search:\n{body}".replace("\n  surch", "\nsurch"))
    monkeypatch.setattr(sys, "argv", ["navrl sweep", "space.yaml", *words])
    with pytest.raises(SystemExit) as ended:
        script.main.__wrapped__()  # pyright: ignore[reportFunctionMemberAccess]
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and says in shown and shown.startswith("error: ") and shown.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"space.yaml", ".lock", "space.yaml.lock"}


@pytest.mark.parametrize("file", sorted((CONFIG / "sweep").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_sweeps_that_come_along_are_valid(tmp_path, file: Path) -> None:
    sweep = read_sweep(sweep_file(file.stem), ["device=cpu"], 1, tmp_path)
    settings = sweep.check()
    assert settings.max_frames / settings.frames_per_batch / settings.evaluation.interval > 8, "enough to prune by"


def test_one_key_may_be_several_and_values_are_typed_as_hydra_reads_them(tmp_path) -> None:
    text = "search:\n  algo.actor.learning_rate, algo.critic.learning_rate: {low: 1e-4, high: 1e-3, log: true}\n"
    text += "  env.num_obstacles: [350, [350, 0]]\n  reward: [progress, navrl]\n  algo.amp: [false]\n"
    sweep = make_sweep(tmp_path, text, "device=cpu")
    sweep.check()
    trial = optuna.create_study().ask(dict(sweep.search))
    words = override(trial.params | {"env.num_obstacles": "[350, 0]"})
    assert words[0].startswith("algo.actor.learning_rate=") and words[1].startswith("algo.critic.learning_rate=")
    assert words[2] == "env.num_obstacles=[350, 0]" and words[4] == "algo.amp=false"
    assert sweep.settings(trial.params | {"env.num_obstacles": "[350, 0]"}).scene.num_static == [350, 0]


def test_a_study_is_continued_with_the_same_search_only(tmp_path) -> None:
    storage = str(tmp_path / "study.journal")
    open_study(make_sweep(tmp_path, SPACE, "device=cpu"), storage, pruner(True, 5, 0))
    open_study(make_sweep(tmp_path, SPACE, "device=cuda"), storage, pruner(True, 5, 0))  # on another machine
    for text, words, seeds, says in (
        (SPACE.replace("0.99", "0.98"), [], 1, "search: algo.gamma: 0.9 to 0.99 there, algo.gamma: 0.9 to 0.98 now"),
        (SPACE, ["encoder=navrl"], 1, "overrides: nothing there, encoder=navrl now"),
        (SPACE, [], 2, "seeds: 1 there, 2 now"),
    ):
        with pytest.raises(ConfigError, match=f"holds a study space with other {says}"):
            open_study(make_sweep(tmp_path, text, *words, seeds=seeds), storage, pruner(True, 5, 0))
    assert shown("postgresql://user:secret@host/db") == "postgresql://user:***@host/db"


# --- one trial, with metrics written by hand --------------------------------------------------------------------------


def write_metrics(run: Path, scores: dict[int, float]) -> None:
    run.mkdir(parents=True, exist_ok=True)
    rows = [f"{frames},{score},{score + 0.1}" for frames, score in scores.items()]
    (run / "metrics.csv").write_text("\n".join(["frames,eval/a/success,eval/b/success", *rows]) + "\n")


def running_trial(sweep: Sweep, study: optuna.Study) -> RunningTrial:
    """A trial whose first run is going on, but does nothing."""
    trial = RunningTrial(sweep, study.ask(), os.open(sweep.folder, os.O_RDONLY))
    trial.frames, trial.seed, trial.run = 300, 0, subprocess.Popen(["sleep", "60"])
    trial.trial.set_user_attr("frames", 300)
    return trial


def wait(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_a_trial_below_the_median_is_pruned(tmp_path) -> None:
    study = optuna.create_study(direction="maximize", pruner=pruner(True, 1, 150))
    sweep = make_sweep(tmp_path)
    good = running_trial(sweep, study)
    write_metrics(good.directory / "seed-0", {100: 0.3, 200: 0.5})
    assert good.poll() is None
    assert good.run and not good.pruned, "nothing to compare with"
    good.run.kill(), good.run.wait()
    study.tell(good.trial, 0.6)
    bad = running_trial(sweep, study)
    assert bad.run
    write_metrics(bad.directory / "seed-0", {100: 0.0})
    assert bad.poll() is None and not bad.pruned, "too early"
    write_metrics(bad.directory / "seed-0", {100: 0.0, 200: 0.1})
    bad.poll()
    assert bad.pruned and -bad.run.wait(10) == signal.SIGTERM
    assert bad.poll() == TrialState.PRUNED
    Worker(sweep, study, 2)._end(bad, TrialState.PRUNED)
    assert study.trials[1].state == TrialState.PRUNED and study.trials[1].value == pytest.approx(0.15)
    assert learning_curve(study.trials[1]) == ([1e-4, 2e-4], pytest.approx([5.0, 15.0]))
    script.draw_curves(tmp_path / "curves.png", sweep, study.trials)
    script.draw_importance(tmp_path / "importance.png", {"algo.gamma": 0.7, "algo.actor.clip_ratio": 0.3})
    assert "pruned" in str([*script.results(sweep, study.trials).columns[1].cells])
    assert importance(study) == {}, "too few to say"


def test_seeds_are_averaged_and_a_run_that_fails_is_one_failed_trial(tmp_path, capsys) -> None:
    study = optuna.create_study(direction="maximize", pruner=pruner(False, 0, 0))
    sweep = make_sweep(tmp_path, seeds=2)
    trial = running_trial(sweep, study)
    assert trial.run
    write_metrics(trial.directory / "seed-0", {100: 0.1, 300: 0.3})
    trial.poll()
    trial.seed = 1
    write_metrics(trial.directory / "seed-1", {100: 0.3})
    trial.poll()
    assert study.trials[0].intermediate_values == pytest.approx({100: 0.15, 300: 0.35, 400: 0.25})
    write_metrics(trial.directory / "seed-1", {100: 0.3, 300: 0.5})
    assert trial.score() == pytest.approx(0.45)
    trial.run.kill(), trial.run.wait()
    (trial.directory / "seed-1.txt").write_text("begin\nerror: no memory\n\n")
    assert trial.poll() == TrialState.FAIL
    Worker(sweep, study, 1)._end(trial, TrialState.FAIL)
    assert study.trials[0].state == TrialState.FAIL and "trial 0: failed: error: no memory" in capsys.readouterr().out


@pytest.mark.parametrize("storage", ["study.journal", "sqlite:///study.db"])
def test_a_trial_is_taken_over_when_its_lock_is_free(tmp_path, monkeypatch, storage: str) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = make_sweep(tmp_path)
    first, second = (Worker(sweep, open_study(sweep, storage, pruner(True, 5, 0)), 2) for _ in range(2))
    trial, lock = first._ask() or pytest.fail("a trial is needed")
    assert second._take_over() is None, "its worker lives"
    os.close(lock)  # as if the process had ended
    taken, lock = second._take_over() or pytest.fail("its worker is dead")
    assert taken.number == trial.number and first._take_over() is None
    assert second._ask() and second._ask() is None and first._ask() is None, "no more than wanted"
    sweep.directory(0).rename(tmp_path / "elsewhere")  # a worker that shares the study, not the folder
    assert first._take_over() is None
    taken.set_user_attr("seen", time.time() - LOST - 1)
    assert first._take_over()
    os.close(lock)


def test_a_lock_is_held_by_the_run_too(tmp_path) -> None:
    lock = take_lock(tmp_path / ".lock")
    assert lock is not None and take_lock(tmp_path / ".lock") is None
    run = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    os.close(lock)
    assert take_lock(tmp_path / ".lock") is None, "the worker is gone, its run is not"
    run.kill(), run.wait()
    assert take_lock(tmp_path / ".lock") is not None


# --- as a person runs it ----------------------------------------------------------------------------------------------


def test_two_workers_one_killed_every_trial_ends_once_and_the_best_runs(tmp_path) -> None:
    words = [write_space(tmp_path), "trials=4", "folder=out", *RUN]
    begin = {"script": "sweep", "small": False, "cwd": tmp_path, **SHARED}
    first = start(*words, **begin)
    wait(lambda: list(tmp_path.glob("out/trial-0000/seed-0/metrics.csv")))
    second = start(*words, **begin)
    first.kill()
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, out + err
    assert "trial 0, continued" in out and out.count("complete, success") == 4
    log = (tmp_path / "out/trial-0000/seed-0/log.txt").read_text()
    assert log.count("navrl train") == 2 and "from iteration 0:" in log, "it was resumed, in the same directory"
    assert sorted(path.name for path in tmp_path.glob("out/trial-*")) == [f"trial-000{n}" for n in range(4)]
    study = optuna.load_study(study_name="space", storage=open_storage(tmp_path / "out/study.journal"))
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4

    again = start(*words, **begin)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, out + err
    assert "complete, success" not in out and "optuna-dashboard out/study.journal" in out
    assert (tmp_path / "out/curves.png").stat().st_size > 10_000
    best = shlex.split(out.strip().splitlines()[-1].removeprefix("best: "))
    assert best[:2] == ["navrl", "train"] and any(word.startswith("algo.gamma=0.9") for word in best)
    command = [sys.executable, str(ROOT / "scripts/train.py"), *best[2:], "max_frame_num=512", "logger=none"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | SHARED, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def open_storage(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def test_ctrl_c_saves_and_the_next_worker_continues(tmp_path) -> None:
    words = [write_space(tmp_path), "trials=1", "folder=out", *RUN]
    begin = {"script": "sweep", "small": False, "cwd": tmp_path, **SHARED}
    process = start(*words, "max_frame_num=1e8", "prune=false", **begin)
    wait(lambda: list(tmp_path.glob("out/trial-0000/seed-0/metrics.csv")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, out + err
    assert "trial 0: stopped and saved" in out and "stopped; the same command continues" in out
    assert list(tmp_path.glob("out/trial-0000/seed-0/checkpoints/state-*")) and "Traceback" not in out + err
    assert take_lock(tmp_path / "out/trial-0000/.lock") is not None, "neither worker nor run is left"
