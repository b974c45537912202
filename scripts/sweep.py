"""Search for better settings: many training runs, each with other values, the bad ones stopped early.

navrl sweep learning trials=12                       search what cfg/sweep/learning.yaml lists, and show the best
navrl sweep learning trials=12 workers=2             two runs at a time on this machine (one GPU each, where there are)
navrl sweep learning trials=40 seeds=3               later: 40 in all, those that are finished count; 3 seeds each
navrl sweep my.yaml max_frame_num=10_000_000         a search space of your own; other keys are those of navrl train
navrl sweep learning storage=postgresql://host/db    workers on machines that share no disk

Start the same command as often as you like, on any machine that sees the storage: all work on one study. A worker that
dies, or is stopped with Ctrl-C, loses nothing: the next one continues its trials. Every trial is a run directory,
<folder>/trial-<number>/seed-<seed>. trials counts complete and pruned ones. A trial is pruned if its best evaluation so
far is below the median of the others', not before `startup` trials and not in the first share `warmup` of a run.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import logging
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from navrl.cli import command, explain_config, fail, options, quoted, whole_key
from navrl.monitor.flights import pyplot, write_figure
from navrl.settings import ConfigError

if TYPE_CHECKING:
    import optuna

    from navrl.train.search import Sweep

KEYS = {
    "name": "learning", "trials": 20, "seeds": 1, "workers": 1, "storage": None, "folder": None, "prune": True,
    "startup": 5, "warmup": 0.2,
}  # fmt: skip


@command
def main() -> None:
    overrides = [
        word for word in sys.argv[1:] if word[:1] != "-" and "=" in word and word.partition("=")[0] not in KEYS
    ]
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in overrides]
    given = options(__doc__, "name", **KEYS)
    for key, low in (("trials", 1), ("seeds", 1), ("workers", 1), ("startup", 0)):
        if vars(given)[key] < low:
            fail(f"{key}={vars(given)[key]}: must be at least {low}")
    if not 0 <= given.warmup <= 1:
        fail(f"warmup={given.warmup}: must be a share of a run, 0 to 1")
    if find_spec("optuna") is None:
        fail("sweeps need Optuna, which is not installed: pip install 'optuna>=4' (make sweep does it)")

    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    from navrl.train.search import read_sweep, sweep_file
    from navrl.train.sweep import Worker, locked, open_study, pruner, shown

    logging.getLogger("navrl").setLevel(logging.ERROR)  # the runs say it
    try:
        file = sweep_file(given.name)
        folder = Path(given.folder or Path("sweeps") / file.stem)
        storage = given.storage or str(folder / "study.journal")
        sweep = read_sweep(file, [whole_key(quoted(word)) for word in overrides], given.seeds, folder)
        settings = sweep.check()
        if given.prune and not 0 < settings.evaluation.interval * settings.frames_per_batch < settings.max_frames:
            fix = "leaves no evaluation on the way by which to prune; lower it, or set prune=false"
            raise ConfigError("eval_interval", settings.evaluation.interval, fix)
        make_folder(folder)
        study = open_study(sweep, storage, pruner(given.prune, given.startup, given.warmup * settings.max_frames))
    except ConfigError as error:
        fail(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        fail(explain_config(error))
    share = max(1, len(os.sched_getaffinity(0)) // given.workers)
    worker = Worker(sweep, study, given.trials, given.workers, [f"threads={share}"] if given.workers > 1 else [])
    try:
        code = worker.work()
        with locked(folder):  # other workers draw the same pictures
            report(sweep, study, folder, storage)
    except (StorageInternalError, SQLAlchemyError) as error:  # runs end with their worker, and save
        fail(
            f"storage={shown(storage)}: {str(error).partition(chr(10))[0]}; once it is back the same command continues"
        )
    if code == 1:
        print(
            "error: several trials in a row failed, see above; fix it and start the same command again", file=sys.stderr
        )
    elif code:
        print("stopped; the same command continues")
    sys.exit(code)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise ConfigError("folder", folder, f"{error.strerror}; choose another") from None


def report(sweep: Sweep, study: optuna.Study, folder: Path, storage: str) -> None:
    """What the study has found so far: a table, the best settings, two pictures."""
    from navrl.train.search import override
    from navrl.train.sweep import importance, shown

    trials = study.get_trials(deepcopy=False)
    console = Console()
    if not console.is_terminal:  # a log file has no edge to cut columns at
        console = Console(width=160)
    console.print(results(sweep, trials))
    draw_curves(folder / "curves.png", sweep, trials)
    print(f"learning curves: {folder / 'curves.png'}")
    if weights := importance(study):
        draw_importance(folder / "importance.png", weights)
        told = ", ".join(f"{key} {100 * weight:.0f} %" for key, weight in weights.items())
        print(f"importance of the parameters: {told} ({folder / 'importance.png'})")
    else:
        print("importance of the parameters: needs more trials, with different scores")
    print(f"look at it in a browser: pip install optuna-dashboard; {shlex.join(['optuna-dashboard', shown(storage)])}")
    if best := max((t for t in trials if t.state.name == "COMPLETE"), key=lambda t: t.value or 0.0, default=None):
        print(f"best: {shlex.join(['navrl', 'train', *sweep.overrides, *override(best.params)])}")
    else:
        print("best: no trial is complete yet")


def results(sweep: Sweep, trials: list[optuna.trial.FrozenTrial]) -> Table:
    """One row per trial: those that are complete first, the best on top."""
    order = ["COMPLETE", "PRUNED", "RUNNING", "WAITING", "FAIL"]
    rows = []
    for trial in sorted(trials, key=lambda t: (order.index(t.state.name), -(t.value or 0.0), t.number)):
        score = "–" if trial.value is None else f"{100 * trial.value:.1f}"
        values = [trial.params.get(key, "–") for key in sweep.search]
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in values]
        rows.append([str(trial.number), trial.state.name.lower(), score, *cells])
    caption = "success: mean over scenarios and seeds at the end, or when pruned"
    table = Table(caption=caption, box=box.SIMPLE_HEAD, pad_edge=False)
    for column, heading in enumerate(["trial", "state", "success %", *headings([*sweep.search])]):
        widest = max((len(row[column]) for row in rows), default=1)  # a narrow terminal cuts headings, not values
        table.add_column(heading, justify="left" if heading == "state" else "right", min_width=widest)
    for row in rows:
        table.add_row(*row)
    return table


def headings(keys: list[str]) -> list[str]:
    """Short names of train keys, which fit a terminal: the last word of each, the whole key where two share that."""
    short = [" ".join(dict.fromkeys(part.split(".")[-1] for part in key.split(","))) for key in keys]
    names = [name if short.count(name) == 1 else key for name, key in zip(short, keys, strict=True)]
    return [name.replace("_", " ").replace(".", " ") for name in names]  # breaks lines there


def draw_curves(path: Path, sweep: Sweep, trials: list[optuna.trial.FrozenTrial]) -> None:
    """Learning curves of all trials: the best on top, those that were pruned dashed and with a cross at their end."""
    from navrl.train.sweep import learning_curve

    plt = pyplot()
    figure, axis = plt.subplots(figsize=(11, 6.5))
    complete = sorted((t.value or 0.0, t.number) for t in trials if t.state.name == "COMPLETE")
    best = complete[-1][1] if complete else None
    for trial in trials:
        x, y = learning_curve(trial)
        if not x:
            continue
        pruned, name = trial.state.name == "PRUNED", trial.state.name.lower()
        style = {"color": "#14652c", "lw": 2.5, "zorder": 3} if trial.number == best else {"lw": 1.0, "alpha": 0.8}
        label = f"{trial.number} {'best' if trial.number == best else name}"
        (line,) = axis.plot(x, y, "--" if pruned else "o-", ms=3, label=label, **style)
        if pruned:
            axis.plot(x[-1:], y[-1:], "x", ms=8, color=line.get_color())
    axis.set(title=f"{sweep.name}: success on unseen maps, %", xlabel="million frames", ylim=(0, 100))
    axis.grid(alpha=0.3)
    if axis.lines:
        axis.legend(fontsize=7, ncols=1 + len(trials) // 25, title="trial", loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    write_figure(figure, path)


def draw_importance(path: Path, weights: dict[str, float]) -> None:
    """One bar per parameter."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(9, 1.5 + 0.5 * len(weights)))
    names = [key.replace(",", "\n") for key in weights][::-1]
    axis.barh(names, [100 * weight for weight in weights.values()][::-1], color="#2a9d4a")
    axis.set(title="importance of each parameter for being among the best trials, %")
    axis.grid(alpha=0.3, axis="x")
    figure.tight_layout()
    write_figure(figure, path)


if __name__ == "__main__":
    main()
