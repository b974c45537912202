"""Train for tens of thousands of small iterations: do memory, open files or threads grow?

    python scripts/bench/soak.py [iterations=20000] [modes=[none,tensorboard,wandb,prefetch]]

Every mode saves, evaluates, draws and stores rollouts as it trains; they differ in the logger, and in whether batches
are prefetched. Memory is that of the process and its children. Slopes are per 10,000 iterations, fitted to the last two
thirds of a run (the first third fills caches), with the standard error of ten blocks. The last line is JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from navrl.cli import options
from navrl.monitor.metrics import read_rows

BATCH = 8 * 4  # frames
SETTINGS = [
    "device=cpu", "env.num_envs=8", "algo.training_frame_num=4", "algo.num_minibatches=2", "env.num_maps=2",
    "env.num_obstacles=20", "env_dyn.num_obstacles=8", "env.max_episode_length=60", "eval.scenarios=[crossing-20-8]",
    "eval.episodes=4", "eval.final_episodes=4", "eval.maps=1", "eval_interval=500", "save_interval=50",
    "rollout_save_interval=20", "return_same_td=false", "perf.trace=true",
]  # fmt: skip
MODES = {
    "none": ["logger=none"],
    "tensorboard": ["logger=tensorboard"],
    "wandb": ["logger=wandb"],
    "prefetch": ["logger=none", "use_pipelined_collector=true"],
}
BLOCKS = 10


def soak(mode: str, iterations: int) -> dict:
    """One run, watched from outside."""
    with tempfile.TemporaryDirectory(prefix="navrl-soak-") as folder:
        command = [sys.executable, "-m", "navrl", "train", *SETTINGS, *MODES[mode]]
        command += [f"max_frame_num={iterations * BATCH}", f"hydra.run.dir={folder}/run"]
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        samples, told = [], began
        while process.poll() is None:
            try:
                family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                memory = sum(member.memory_info().rss for member in family) / 1e6
                samples.append((time.time(), memory, sum(p.num_fds() for p in family), family[0].num_threads()))
            except psutil.Error:  # it ended meanwhile, or a child did
                pass
            if time.monotonic() - told > 30:
                told = time.monotonic()
                print(f"{mode}: {told - began:.0f} s, {samples[-1][1]:.0f} MB", flush=True)
            time.sleep(0.2)
        if process.returncode:
            errors = process.stderr.read() if process.stderr else ""
            sys.exit(f"error: {mode} ended with code {process.returncode}: {errors[-2000:]}")
        rows = [row for row in read_rows(Path(folder) / "run/metrics.csv") if "charts/minutes" in row]
    seconds = 60 * np.array([row["charts/minutes"] for row in rows])
    done = np.array([row["frames"] for row in rows]) / BATCH
    at = np.array([sample[0] for sample in samples])
    at = np.interp(at - at[-1] + seconds[-1], seconds, done)  # when, in iterations: the run ends where its clock ends
    kept = at > iterations / 3
    out: dict = {"iterations": int(done[-1]), "iterations_per_s": done[-1] / seconds[-1]}
    for column, name in enumerate(("memory_mb", "descriptors", "threads"), start=1):
        values = np.array([sample[column] for sample in samples])
        slope, error = fitted(at[kept][:-5], values[kept][:-5])
        start, end = (float(np.median(part)) for part in (values[kept][:20], values[-40:-5]))  # the last are its end
        out[name] = {"start": start, "end": end, "slope": slope, "error": error}
    return out


def fitted(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope per 10,000 iterations and its standard error, from medians of blocks: saves and drawings are spikes."""
    blocks = np.array_split(np.arange(len(x)), BLOCKS)
    u, v = (np.array([np.median(z[block]) for block in blocks]) for z in (x / 1e4, y))
    (slope, _), covariance = np.polyfit(u, v, 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


def main() -> None:
    given = options(__doc__, iterations=20_000, modes=[*MODES])
    results = {}
    for mode in given.modes:
        results[mode] = result = soak(mode, given.iterations)
        for name in ("memory_mb", "descriptors", "threads"):
            r = result[name]
            spread = f"{r['slope']:+.2f} ± {r['error']:.2f} per 10,000 iterations"
            print(f"{mode:12} {name:12} {r['start']:.0f} to {r['end']:.0f}, {spread}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
