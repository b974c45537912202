"""Hyperparameter sweeps: one Optuna study, any number of workers; a trial is a training run for each seed.

A worker holds a lock on the directory of each of its trials, and shares it with the training run. The lock vanishes
with both, however they end: a trial of the study that is running but not locked has lost its worker, and another
worker continues it, in the same run directories.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock, JournalStorage
from optuna.trial import FrozenTrial, TrialState

from navrl.checkpoint.stop import StopRequest
from navrl.monitor.metrics import read_rows
from navrl.settings import ConfigError, one_line
from navrl.train.search import Sweep, override, suggest

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
POLL = 0.5  # s between looks at the runs
SEEN = 60  # s between signs of life in the storage, for workers that do not share the folder
LOST = 600  # s without one, after which a trial of such a worker is taken over
STARTS = 5  # of a trial: one whose worker always dies has too little memory, say
FAILURES = 3  # trials in a row that fail, after which a worker gives up

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", ExperimentalWarning)


# --- the study --------------------------------------------------------------------------------------------------------


def open_study(sweep: Sweep, storage: str, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    """The study of a sweep, new or continued; refuses one that searched something else."""
    try:
        with locked(sweep.folder):
            study = optuna.create_study(
                storage=_storage(storage), study_name=sweep.name, direction="maximize", load_if_exists=True,
                sampler=optuna.samplers.TPESampler(constant_liar=True), pruner=pruner,
            )  # fmt: skip
            wanted = sweep.described()
            found = study.user_attrs.get("sweep")
            if found is None and not study.get_trials(deepcopy=False):
                study.set_user_attr("sweep", wanted)
                return study
    except ConfigError:
        raise
    except Exception as error:  # of the disk, the database, its driver, or of a file that is no journal
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, ValueError | LookupError | TypeError) and "://" not in storage:
            reason = "it is no journal of Optuna"
        raise ConfigError("storage", shown(storage), f"cannot be used: {one_line(reason, 300)}") from None
    if not isinstance(found, dict):
        raise ConfigError("storage", shown(storage), f"holds a study {sweep.name} of another program; choose another")
    for part, now in wanted.items():
        if (before := found.get(part)) != now:
            differ = f"{_without(before, now)} there, {_without(now, before)} now"
            fix = f"holds a study {sweep.name} with other {part}: {differ}; give another folder="
            raise ConfigError("storage", shown(storage), fix)
    return study


def _without(some: Any, others: Any) -> str:
    """What `some` has and `others` has not, for people."""
    sets = [
        {f"{key}: {_range(value)}" for key, value in each.items()} if isinstance(each, dict)
        else set(each) if isinstance(each, list) else {str(each)}
        for each in (some, others)
    ]  # fmt: skip
    return one_line(", ".join(sorted(sets[0] - sets[1])) or "nothing", 300)


def _range(domain: dict) -> str:
    values = domain["attributes"]
    return str(list(values["choices"])) if "choices" in values else f"{values['low']} to {values['high']}"


def _storage(storage: str) -> optuna.storages.BaseStorage:
    if "://" in storage:
        return optuna.storages.RDBStorage(storage)
    Path(storage).parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(storage, _JournalLock(storage)))


def shown(storage: str) -> str:
    """A storage as it may be printed: without the password of a database."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", storage)


def pruner(wanted: bool, startup: int, warmup: float) -> optuna.pruners.BasePruner:
    """Prunes what is below the median, after so many trials and frames."""
    if not wanted:
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=int(warmup))


class _JournalLock(JournalFileSymlinkLock):
    """The lock of a journal as ours: Optuna's own outlives a process that is killed, for 30 s or for ever."""

    def acquire(self) -> bool:
        handle = take_lock(Path(self._lock_file), wait=True)
        assert handle is not None
        self._handle = handle
        return True

    def release(self) -> None:
        os.close(self._handle)


def take_lock(path: Path, wait: bool = False) -> int | None:
    """A lock that lasts until its handle is closed in every process that has it; None: another has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError as error:
        os.close(handle)
        fix = f"is on a file system without locks ({error.strerror}); choose another"
        raise ConfigError("folder", path.parent, fix) from None
    return handle


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One worker at a time, of those that share the folder."""
    handle = take_lock(folder / ".lock", wait=True)
    assert handle is not None
    try:
        yield
    finally:
        os.close(handle)


def learning_curve(trial: FrozenTrial) -> tuple[list[float], list[float]]:
    """Million frames, and success in % over the seeds that got as far."""
    frames = trial.user_attrs.get("frames", 1)  # of a run; known before the first of these values
    steps = sorted(trial.intermediate_values.items())
    mean = {(step - 1) % frames + 1: value for step, value in steps}  # later seeds: the mean of more of them
    return [at / 1e6 for at in sorted(mean)], [100 * mean[at] for at in sorted(mean)]


def importance(study: optuna.Study) -> dict[str, float]:
    """How much each parameter matters for being among the best trials; empty if there are too few to say."""
    scores = {trial.value for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))}
    if len(scores) < 2:
        return {}
    try:  # this evaluator, the default of Optuna 5, needs no scikit-learn
        return optuna.importance.get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (RuntimeError, ValueError):
        return {}


# --- a trial ----------------------------------------------------------------------------------------------------------


def evaluations(run: Path) -> dict[int, float]:
    """Mean success over the scenarios by frames, of the evaluations of a run so far."""
    curve = {}
    with contextlib.suppress(OSError):
        for row in read_rows(run / "metrics.csv"):
            if scores := [value for key, value in row.items() if re.fullmatch(r"eval/.+/success", key)]:
                curve[int(row["frames"])] = fmean(scores)
    return curve


class RunningTrial:
    """A trial of this worker: one training run after the other, one per seed.

    Its steps for Optuna are frames, counted on from seed to seed; the value at a step is the mean over the seeds that
    have got as far. So a trial that is bad with its first seed is pruned before the others are run.
    """

    def __init__(
        self,
        sweep: Sweep,
        trial: optuna.Trial,
        lock: int,
        defaults: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.sweep, self.trial, self.lock = sweep, trial, lock
        self.defaults, self.environment = defaults, environment or {}
        self.directory = sweep.directory(trial.number)
        self.params = {key: suggest(trial, key, domain) for key, domain in sweep.search.items()}
        self.frames = 0  # of a run
        self.seed = -1  # of the run now
        self.run: subprocess.Popen | None = None
        self.reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.starts = trial.user_attrs.get("starts", 0) + 1
        self.pruned = self.asked_to_stop = False
        self._sign = self._evaluated = 0.0  # when: the last sign of life; the last evaluation
        trial.set_user_attr("starts", self.starts)

    def begin(self) -> None:
        """Start the first run that is not finished; raises ConfigError for settings that a run would refuse."""
        if self.starts > STARTS:
            raise ConfigError("trial", self.trial.number, f"its worker died {STARTS} times")
        settings = self.sweep.settings(self.params)
        self.frames = settings.max_frames // settings.frames_per_batch * settings.frames_per_batch
        self.trial.set_user_attr("frames", self.frames)
        self._next_seed()

    def _next_seed(self) -> bool:
        """Start the next run that is not finished; False if there is none."""
        self.run = None
        self.seed += 1
        if self.seed == self.sweep.seeds:
            return False
        run = self.directory / f"seed-{self.seed}"
        if self.frames in evaluations(run):  # before its worker died
            return self._next_seed()
        words = [
            "logger=none",
            *self.defaults,
            *self.sweep.overrides,
            *override(self.params),
            f"seed={self.seed}",
            "resume=auto",
        ]
        with self._output().open("ab") as output:
            self.run = subprocess.Popen(
                [sys.executable, "-m", "navrl", "train", *words, f"hydra.run.dir={run}"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment}, pass_fds=(self.lock,), start_new_session=True,
                preexec_fn=_end_with_parent,
            )  # fmt: skip
        return True

    def _output(self) -> Path:
        return self.directory / f"seed-{self.seed}.txt"

    def stop(self) -> None:
        """Ask the run to save and end."""
        if self.run and not self.asked_to_stop:
            self.run.terminate()
        self.asked_to_stop = True

    def poll(self) -> TrialState | None:
        """See how far the run is. Returns how the trial ended; WAITING: it is left for a worker to continue."""
        assert self.run
        code = self.run.poll()  # first: what an ended run has written is complete
        self.sign_of_life()
        last = self.report(code is not None)
        if not self.pruned and not self.asked_to_stop and last and last < self.sweep.seeds * self.frames:
            self.pruned = self.trial.should_prune()
        if self.pruned:
            self.stop()
        if code is None:
            return None
        if self.pruned:
            return TrialState.PRUNED
        if code == 0 and self.frames in evaluations(self.directory / f"seed-{self.seed}"):
            if not self.asked_to_stop and self._next_seed():
                return None
            return TrialState.COMPLETE if self.seed == self.sweep.seeds else TrialState.WAITING
        ended = abs(code) if code < 0 else code - 128
        left = self.asked_to_stop or ended in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        return TrialState.WAITING if left else TrialState.FAIL

    def report(self, ended: bool) -> int:
        """Report new evaluations to Optuna; returns the step of the last, or 0 if there is none."""
        file = self.directory / f"seed-{self.seed}" / "metrics.csv"
        with contextlib.suppress(OSError):
            evaluated = (file.parent / "eval.json").stat().st_mtime
            if evaluated == self._evaluated and not ended:
                return 0
            # Its row in metrics.csv follows some moments later, and a file of many rows is not read every time.
            if file.stat().st_mtime > evaluated:
                self._evaluated = evaluated
        curves = [evaluations(self.directory / f"seed-{seed}") for seed in range(self.seed + 1)]
        last = 0
        for seed, curve in enumerate(curves):
            for frames in sorted(curve):
                step = seed * self.frames + frames
                if step not in self.reported:
                    value = fmean(other[frames] for other in curves[: seed + 1] if frames in other)
                    self.trial.report(value, step)
                    self.reported.add(step)
                    of_seed = f", seed {seed}" if self.sweep.seeds > 1 else ""
                    say(f"trial {self.trial.number}{of_seed}: {frames:,} frames, success {100 * value:.1f} %")
                    last = step
        return last

    def sign_of_life(self) -> None:
        if time.monotonic() - self._sign > SEEN:
            self._sign = time.monotonic()
            self.trial.set_user_attr("seen", time.time())

    def score(self) -> float:
        """Mean success over the seeds at the end of their runs."""
        return fmean(evaluations(self.directory / f"seed-{n}")[self.frames] for n in range(self.sweep.seeds))

    def last_line(self) -> str:
        """What the run said last."""
        lines = [line for line in self._output().read_text(errors="replace").splitlines() if line.strip()]
        return one_line(lines[-1].strip() if lines else "it said nothing", 300)


def _end_with_parent() -> None:
    """In the new process: SIGTERM when the worker dies, so that the run saves and ends instead of going on alone."""
    PRCTL(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


PRCTL = ctypes.CDLL(None).prctl  # looked up before the fork


# --- a worker ---------------------------------------------------------------------------------------------------------


class Worker:
    """Runs trials, `slots` at a time, until the study has `wanted` finished ones."""

    def __init__(
        self, sweep: Sweep, study: optuna.Study, wanted: int, slots: int = 1, defaults: Sequence[str] = ()
    ) -> None:
        """`defaults`: what runs are told on this machine, unless the sweep says otherwise."""
        self.sweep, self.study, self.wanted, self.defaults = sweep, study, wanted, defaults
        self.slots: list[RunningTrial | None] = [None] * slots
        self.failures = 0  # in a row
        self._told = False

    def work(self) -> int:
        """Returns the exit code: 0, 1 if too many trials failed, or that of the signal that stopped it."""
        with StopRequest() as stop:
            while True:
                for slot, running in enumerate(self.slots):
                    if running and (state := running.poll()):
                        self._end(running, state)
                        self.slots[slot] = running = None
                    ending = stop or self.failures >= FAILURES
                    if running and ending:
                        running.stop()
                    if not running and not ending:
                        self.slots[slot] = self._next(slot)
                if not any(self.slots):
                    if stop or self.failures >= FAILURES:
                        return stop.exit_code or 1
                    if self.finished() >= self.wanted:
                        return 0
                    self._wait()
                time.sleep(POLL)

    def finished(self) -> int:
        return sum(trial.state in FINISHED for trial in self.study.get_trials(deepcopy=False))

    def _wait(self) -> None:
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if running and not self._told:
            say(f"nothing left to start; waiting for other workers, which run {len(running)} trials")
            self._told = True

    def _next(self, slot: int) -> RunningTrial | None:
        """A trial that has lost its worker, or a new one if the study needs more; None: there is none to begin."""
        with locked(self.sweep.folder):  # looking and taking are one step
            found = self._take_over() or self._ask()
        if found is None:
            return None
        running = RunningTrial(self.sweep, *found, self.defaults, self._environment(slot))
        words = " ".join(override(running.params))
        again = "" if running.starts == 1 else ", continued"
        say(f"trial {running.trial.number}{again}: {words} ({running.directory})")
        try:
            running.begin()
        except Exception as error:  # Hydra, OmegaConf and our own checks have a class each
            self._fail(running, str(error).strip().partition("\n")[0])
            return None
        if running.run is None:  # all its runs had ended, only Optuna had not been told
            self._end(running, TrialState.COMPLETE)
            return None
        return running

    def _take_over(self) -> tuple[optuna.Trial, int] | None:
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            directory = self.sweep.directory(trial.number)
            if directory.is_dir() or time.time() - _seen(trial) > LOST:  # no directory: its worker has another folder
                directory.mkdir(exist_ok=True)
                if (lock := take_lock(directory / ".lock")) is not None:
                    return optuna.Trial(self.study, trial._trial_id), lock
        return None

    def _ask(self) -> tuple[optuna.Trial, int] | None:
        begun = (*FINISHED, TrialState.RUNNING)
        if len(self.study.get_trials(deepcopy=False, states=begun)) >= self.wanted:
            return None
        trial = self.study.ask()
        before = [t for t in self.study.get_trials(deepcopy=False, states=begun) if t.number < trial.number]
        if len(before) >= self.wanted:  # a worker with another folder was quicker
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        directory = self.sweep.directory(trial.number)
        directory.mkdir(exist_ok=True)
        lock = take_lock(directory / ".lock", wait=True)
        assert lock is not None
        return trial, lock

    def _environment(self, slot: int) -> dict[str, str]:
        wanted: dict[str, str] = {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible.split(",") if visible else [str(number) for number in range(_gpus())]
        if len(self.slots) > 1 and gpus:
            wanted["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        return wanted

    def _end(self, running: RunningTrial, state: TrialState) -> None:
        trial = running.trial
        if state == TrialState.FAIL:
            self._fail(running, running.last_line())
            return
        if state == TrialState.WAITING:
            trial.set_user_attr("starts", running.starts - running.asked_to_stop)  # asked to stop: not its fault
            say(f"trial {trial.number}: stopped and saved; the next worker continues it")
        elif state == TrialState.PRUNED:
            self.study.tell(trial, state=state, skip_if_finished=True)
            say(f"trial {trial.number}: pruned ({self.finished()} of {self.wanted})")
        else:
            score = running.score()
            self.study.tell(trial, score, skip_if_finished=True)
            say(f"trial {trial.number}: complete, success {100 * score:.1f} % ({self.finished()} of {self.wanted})")
        os.close(running.lock)
        self.failures = 0

    def _fail(self, running: RunningTrial, reason: str) -> None:
        self.failures += 1
        running.trial.set_user_attr("error", reason)
        self.study.tell(running.trial, state=TrialState.FAIL, skip_if_finished=True)
        os.close(running.lock)
        say(f"trial {running.trial.number}: failed: {reason} ({running.directory})")


def _seen(trial: FrozenTrial) -> float:
    began = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
    return float(trial.user_attrs.get("seen", began))


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
