"""Trainings that share two cores, with each other and with a busy program: what is left, and what does sharing cost?

    python scripts/bench/sharing.py [rounds=3] [frames=900000]

In every round: one training alone; one alone with `SharedCores` switched off; two at once; one beside a program that
keeps a core busy; and two at once and beside a busy program without `SharedCores`, once, to show what it is for.
Frames/s are medians over iterations, the figures medians over rounds. The last line is JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from navrl.cli import options
from navrl.monitor.metrics import read_rows

SETTINGS = [
    "headless=True", "device=cpu", "logger=none", "eval_interval=0", "perf.interval=0", "eval.final_episodes=1",
    "eval.scenarios=[crossing-0-0]", "eval.maps=1",
]  # fmt: skip
START = "import sys; from navrl.cli import main; main(sys.argv[1:])"
SWITCH_OFF = "from navrl.native.sharing import SharedCores; SharedCores._watch = lambda self: None; "
BUSY = "while True: pass"
WARM_UP = 4  # iterations


def train(folder: Path, frames: int, count: int = 1, sharing: bool = True) -> list[float]:
    """Frames/s of `count` trainings at once."""
    runs = [Path(tempfile.mkdtemp(dir=folder)) / "run" for _ in range(count)]
    program = START if sharing else SWITCH_OFF + START
    common = [sys.executable, "-c", program, "train", *SETTINGS, f"max_frame_num={frames}"]
    processes = [subprocess.Popen([*common, f"hydra.run.dir={run}"], stdout=subprocess.DEVNULL) for run in runs]
    if any(process.wait() for process in processes):
        sys.exit("error: a training failed; its reason is above")
    return [statistics.median(row["charts/SPS"] for row in _rows(run)[WARM_UP:]) for run in runs]


def _rows(run: Path) -> list[dict]:
    return [row for row in read_rows(run / "metrics.csv") if "charts/SPS" in row]


def beside_busy(folder: Path, frames: int, sharing: bool = True) -> float:
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        return train(folder, frames, sharing=sharing)[0]
    finally:
        busy.kill()
        busy.wait()


def main() -> None:
    given = options(__doc__, rounds=3, frames=900_000)
    speeds: dict[str, list[float]] = {name: [] for name in ("alone", "alone_off", "two", "busy")}
    with tempfile.TemporaryDirectory(prefix="navrl-sharing-") as name:
        folder = Path(name)
        for number in range(given.rounds):
            speeds["alone"] += train(folder, given.frames)
            speeds["alone_off"] += train(folder, given.frames, sharing=False)
            speeds["two"].append(sum(train(folder, given.frames, 2)))
            speeds["busy"].append(beside_busy(folder, given.frames))
            print(f"round {number + 1}:", {key: round(values[-1]) for key, values in speeds.items()}, flush=True)
        short = given.frames // 4
        without = {"two": sum(train(folder, short, 2, sharing=False)), "busy": beside_busy(folder, short, False)}
    middle = {name: statistics.median(values) for name, values in speeds.items()}
    result = {
        "two_runs_sum_ratio": middle["two"] / middle["alone"],
        "beside_busy_core_ratio": middle["busy"] / middle["alone"],
        "lone_cost": 1.0 - middle["alone"] / middle["alone_off"],
        "frames_per_s": {name: round(value) for name, value in middle.items()},
        "without_sharing": {
            "two_runs_sum_ratio": without["two"] / middle["alone"],
            "beside_busy_core_ratio": without["busy"] / middle["alone"],
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
