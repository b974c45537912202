"""The report of a run: reads what its directory holds, which may come from a stranger or be damaged in any way."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from navrl.checkpoint.retention import states_of
from navrl.io.contents import MapOf, Maybe, Number, Plain, Text, check
from navrl.io.files import BadCheckpoint, load_checkpoint, open_file
from navrl.monitor.metrics import read_rows
from navrl.monitor.performance import PERFORMANCE_STATE
from navrl.schema import OUTCOMES
from navrl.settings import one_line
from navrl.train.directory import LOG, SETTINGS
from navrl.train.resume import HARMLESS
from navrl.train.settings import compose_config, flat, plain, stored_config
from navrl.view.replay import read_data
from navrl.view.report import write_report
from navrl.view.runs import RunData, Score

REPORT = "report.html"
ROWS = 1500  # of metrics in a report: more than a screen has pixels
SCENARIOS = 24  # most that are shown
LINES, FILES = 200, 100  # of the log, and files that are listed
LARGEST = 1 << 20  # bytes of a text that is read
LARGEST_STATE = 1 << 30
# Settings that runs of one group may differ in, besides those that change nothing of what is learned.
SAME = (
    *(key for key in HARMLESS if key != "checkpoint."),
    "checkpoint.keep_", "seed", "device", "learner_device", "threads",
)  # fmt: skip
SHARE = Number(0, 1)
RESULT = {
    **{f"{name}?": SHARE for name in OUTCOMES}, "success": SHARE, "episodes?": Number(1, 1e9, whole=True),
    **{f"{name}?": Maybe(Number(0, 1e6)) for name in ("speed", "path_ratio", "time_to_goal")},
}  # fmt: skip
EVALUATION = {"frames": Number(0, 1e13, whole=True), "scenarios": MapOf(RESULT, SCENARIOS)}
ABOUT = {
    "frames?": Number(0, 1e13, whole=True), "seconds?": Number(0, 1e10),
    "commit?": Text(200), "command?": Text(100_000),
}  # fmt: skip
STATE = {"about?": ABOUT, "machine?": MapOf(Plain(), 50), "performance?": PERFORMANCE_STATE}


def report(run: Path) -> Path:
    """Write the report of one run into its directory; returns the file."""
    write_report(run / REPORT, [read_run(run)])
    return run / REPORT


def is_run(directory: Path) -> bool:
    """Whether there is anything of a run in a directory."""
    return any((directory / name).is_file() for name in ("metrics.csv", f"{SETTINGS}/config.yaml", "eval.json"))


def read_run(directory: Path) -> RunData:
    """All that a run's directory tells. Never raises: what cannot be read is left out, with a line in `problems`."""
    problems: list[str] = []
    rows, scores, scored_at, settings, state = [], {}, None, None, {}
    with _noting(problems, "metrics.csv"):
        _regular(directory / "metrics.csv")
        rows = read_rows(directory / "metrics.csv", ROWS)
    with _noting(problems, "eval.json"):
        scores, scored_at = _evaluation(_text(directory / "eval.json"))
    with _noting(problems, f"{SETTINGS}/config.yaml"):
        settings = dict(flat(stored_config(_text(directory / SETTINGS / "config.yaml"))))
    with _noting(problems, "checkpoints"):
        state = _state(directory)
    log, replay = [], None
    with _noting(problems, LOG):
        log = [one_line(line, 500) for line in _text(directory / LOG, end=True).splitlines()[-LINES:]]
    with _noting(problems, "flights"):
        replay = _replay(directory)
    about, last = state.get("about", {}), {key: value for row in rows for key, value in row.items()}
    scores = scores or {name: Score(value) for key, value in last.items() if (name := _scenario(key))}
    frames = max(int(last.get("frames", 0)), about.get("frames", 0)) or None
    differs = None if settings is None else _differs(settings)
    return RunData(
        name=one_line("/".join(directory.absolute().parts[-2:]), 200),
        path=directory,
        rows=rows,
        scores={one_line(name): score for name, score in [*scores.items()][:SCENARIOS] if 0 <= score.success <= 1},
        scored_at=scored_at if scored_at is not None else _scored_at(rows),
        frames=frames,
        planned=_whole(settings, "max_frame_num"),
        finished=_finished(settings, frames),
        seconds=max(60 * last.get("charts/minutes", 0), about.get("seconds", 0)) or None,
        seed=None if settings is None else _shown(settings.get("seed")),
        differs=differs,
        learning=None if differs is None else {k: both for k, both in differs.items() if not k.startswith(SAME)},
        phases=_phases(state, last),
        machine={one_line(key, 60): _shown(value) for key, value in state.get("machine", {}).items()},
        commit=about.get("commit") and one_line(about["commit"], 100),
        command=about.get("command") and one_line(about["command"], 5000),
        files=_files(directory),
        log=log,
        replay=replay,
        problems=problems,
    )


@contextlib.contextmanager
def _noting(problems: list[str], what: str) -> Iterator[None]:
    """What is not there was not recorded, which is no problem; what cannot be read is noted."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        problems.append(one_line(f"{what}: {error.strerror or error}", 300))
    except (ValueError, RecursionError) as error:  # BadCheckpoint and Unfit are ValueErrors
        problems.append(one_line(f"{what}: {error}", 300))


def _regular(path: Path) -> None:
    """Refuse pipes, which would be waited for, and links, whose targets are not the run's to show."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("is not a regular file")


def _text(path: Path, end: bool = False) -> str:
    """A text of the run: all of a small one, or the end of any."""
    _regular(path)
    with open_file(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST and not end:
            raise ValueError(f"is larger than {LARGEST >> 20} MB")
        file.seek(max(0, size - LARGEST))
        return file.read(LARGEST).decode("utf-8", "replace")


def _evaluation(text: str) -> tuple[dict[str, Score], int]:
    """Scores by scenario, and after how many frames; raises ValueError."""
    told = json.loads(text)
    check(told, EVALUATION)
    scores = {}
    for name, result in told["scenarios"].items():
        means = {key: result[key] for key in ("speed", "path_ratio", "time_to_goal") if result.get(key) is not None}
        outcomes = {key: result[key] for key in OUTCOMES if key in result}
        scores[name] = Score(result["success"], result.get("episodes", 0), outcomes, means)
    return scores, told["frames"]


def _scenario(key: str) -> str | None:
    """The scenario whose success a column of metrics.csv holds."""
    fits = key.startswith("eval/") and key.endswith("/success") and len(key) < 200
    return key.removeprefix("eval/").removesuffix("/success") if fits else None


def _scored_at(rows: list[dict[str, float]]) -> int | None:
    return next((int(row["frames"]) for row in reversed(rows) if any(map(_scenario, row))), None)


def _state(directory: Path) -> dict[str, Any]:
    """What a report shows of the newest whole training state, or of the policy beside it."""
    problem: ValueError | None = None
    for path in [*states_of(directory)[:3], directory / "policy.pt"]:
        try:
            _regular(path)
            if path.stat().st_size > LARGEST_STATE:
                raise ValueError(f"{path.name} is larger than {LARGEST_STATE >> 20} MB")
            content = load_checkpoint(path)
            check(content, STATE)
            return {key: content[key] for key in ("about", "machine", "performance") if key in content}
        except (BadCheckpoint, ValueError) as error:
            problem = problem or error
        except FileNotFoundError:
            continue
    if problem:
        raise problem
    return {}


def _replay(directory: Path) -> tuple[str, str] | None:
    """The newest page with recorded flights: its name and its data."""
    pages = sorted(directory.glob("flights-*.html"), key=lambda path: path.lstat().st_mtime, reverse=True)
    return (pages[0].name, read_data(pages[0])) if pages else None


def _differs(settings: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """By key the default and this run's value, where they differ. What an older version did not have is no choice."""
    defaults = dict(flat(plain(compose_config("train"))))
    both = {
        one_line(key, 200): (_shown(defaults[key]) if key in defaults else "no such setting", _shown(value))
        for key, value in settings.items()
        if key != "resume"
    }
    return {key: values for key, values in both.items() if values[0] != values[1]}


def _shown(value: Any) -> str:
    """A value in one line, as it is typed."""
    try:
        return one_line("null" if value is None else str(value).lower() if isinstance(value, bool) else str(value), 300)
    except ValueError:  # Python refuses to write the longest numbers
        return "an enormous number"


def _whole(settings: Mapping[str, Any] | None, key: str) -> int | None:
    value = (settings or {}).get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1e13:
        return None
    return int(value)


def _finished(settings: Mapping[str, Any] | None, frames: int | None) -> bool | None:
    """Whether not one more batch was to be learned from."""
    planned, drones = _whole(settings, "max_frame_num"), _whole(settings, "env.num_envs")
    steps = _whole(settings, "algo.training_frame_num")
    if planned is None or drones is None or steps is None:
        return None
    return (frames or 0) + drones * steps > planned


def _phases(state: Mapping[str, Any], last: Mapping[str, float]) -> dict[str, float]:
    """Share of wall clock by timer: over the whole run as its state counts it, or as last logged."""
    if performance := state.get("performance"):
        elapsed = max(performance["elapsed"], 1e-9)
        return {path: total / elapsed for path, (total, _) in performance["timers"].items()}
    names = {key: key.removeprefix("perf/").removesuffix("_share") for key in last if key.startswith("perf/")}
    return {name: last[key] for key, name in names.items() if key.endswith("_share") and 0 <= last[key] <= 100}


def _files(directory: Path) -> list[tuple[str, int]]:
    """Files of the run by name with their bytes; those of deeper folders (wandb, rollouts) as one line per folder."""
    sizes: dict[str, int] = {}
    for folder, folders, names in os.walk(directory):
        inside = os.path.relpath(folder, directory)
        folders[:] = sorted(folders)[:FILES]
        for name in sorted(names)[: 10 * FILES]:
            with contextlib.suppress(OSError):
                size = os.lstat(os.path.join(folder, name)).st_size
                single = inside in (".", SETTINGS, "checkpoints")
                shown = os.path.normpath(os.path.join(inside, name)) if single else inside.split(os.sep)[0] + os.sep
                sizes[shown] = sizes.get(shown, 0) + size
        if len(sizes) > FILES:
            break
    ours = (REPORT, f"{SETTINGS}/.lock")
    return [(one_line(name, 200), size) for name, size in sizes.items() if name not in ours][:FILES]
