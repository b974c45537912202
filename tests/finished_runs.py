"""Directories of finished runs, made up: what a report reads, without the minutes of training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from navrl.io.files import write_checkpoint, write_text
from navrl.monitor.metrics import CsvLogger
from navrl.task.evaluation import wilson_interval
from navrl.train.directory import SETTINGS, write_settings
from navrl.train.settings import compose_config, plain

FRAMES = 32768  # of a batch
ENDS = {"success": 0.6, "static_collision": 0.1, "dynamic_collision": 0.2, "out_of_bounds": 0.0, "timeout": 0.1}
MACHINE = {"CPU": "A processor of tests", "cores": "2", "torch version": "2.13.0"}


def write_run(
    directory: Path,
    scores: Mapping[str, float],
    *overrides: str,
    episodes: int = 256,
    iterations: int = 61,
    seed: int = 0,
    machine: Mapping[str, object] = MACHINE,
    command: str = "navrl train seed=0",
    commit: str = "0123456789abcdef",
) -> Path:
    """Write a run that was evaluated four times and ended with `scores`, success by scenario."""
    (directory / SETTINGS).mkdir(parents=True)
    (directory / "checkpoints").mkdir()
    typed = ["max_frame_num=2000000", f"seed={seed}", *overrides]
    write_settings(directory, plain(compose_config("train", typed)), typed)
    write_text(directory / "metrics.csv", "")
    columns = {name.encode("utf-8", "replace").decode(): success for name, success in scores.items()}
    csv = CsvLogger(directory / "metrics.csv", metrics(columns, iterations, seed))
    csv.log({"charts/minutes": (iterations + 1) / 60}, (iterations + 1) * FRAMES)
    results = {name: result(success, episodes) for name, success in scores.items()}
    told = {"frames": iterations * FRAMES, "scenarios": results}
    write_text(directory / "eval.json", json.dumps(told))
    write_text(directory / "log.txt", "2026-11-18 15:34:43 from iteration 0: navrl train seed=0\n")
    about = {"frames": iterations * FRAMES, "seconds": float(iterations), "commit": commit, "command": command}
    timers = {"collect": [20.0, 61], "collect/policy": [12.0, 1952], "update": [30.0, 61]}
    state = {"about": about, "machine": dict(machine), "performance": {"elapsed": 61.0, "timers": timers}}
    write_checkpoint(directory / "checkpoints/state-00000061.pt", state, level=0)
    return directory


def metrics(scores: Mapping[str, float], iterations: int, seed: int) -> Sequence[Mapping[str, float]]:
    random, rows = np.random.default_rng(seed), []
    for k in range(1, iterations + 1):
        row = {"frames": k * FRAMES, "charts/minutes": k / 60, "charts/SPS": 4e4 + 1e3 * random.normal()}
        row |= {f"flights/{name}": share for name, share in ENDS.items()}
        row |= {"losses/approx_kl": 0.01 + 0.002 * random.normal(), "losses/value_loss": 1 / k}
        rows.append(row)
        if k % max(1, iterations // 4) == 0:
            rows.append({"frames": k * FRAMES} | {f"eval/{n}/success": s * k / iterations for n, s in scores.items()})
    rows.append({"frames": iterations * FRAMES} | {f"eval/{name}/success": s for name, s in scores.items()})
    return rows


def result(success: float, episodes: int) -> dict:
    rest = (1 - success) / 4
    shares = {name: success if name == "success" else rest for name in ENDS}
    intervals = {f"{name}_ci95": wilson_interval(round(share * episodes), episodes) for name, share in shares.items()}
    return shares | intervals | {"speed": 1.5, "path_ratio": None, "time_to_goal": 14.0, "episodes": episodes}
