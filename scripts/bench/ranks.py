"""One run shared out over ranks: does it learn the same, and how fast?

    python scripts/bench/ranks.py [iterations=60] [rounds=3] [small=false]

Equal: from one seed, 1 × 1024 drones against 2 × 512 and 4 × 256. The first batch must be the same bits, the weights
after one iteration the same to rounding, the learning rates the same sequence. Rounding grows in any such system, so
the difference after 20 iterations is shown beside that between one and two threads of a single rank, and that of the
curves beside that between two seeds.

Fast: one rank with two threads against two ranks with one, by turns; then 1, 2, 4 and 8 ranks of 128 drones each on
this machine (more than it has cores: overheads only). The last line is JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from navrl.cli import options
from navrl.io.snapshot import tensors_of
from navrl.monitor.performance import PerformanceMonitor
from navrl.ppo.batch import join_frames
from navrl.ranks import RanksSettings, connect
from navrl.train.build import make_training

RATES = 20  # iterations over which learning rates are compared
SMALL = ["env.num_maps=8", "algo.training_frame_num=8"]


def worker(out: str, ranks_file: dict[str, Any]) -> None:
    """One rank: train some iterations and write down what was seen."""
    with connect(RanksSettings(timeout=300.0)) as ranks:
        training = make_training("device=cpu", "logger=none", *ranks_file["overrides"], ranks=ranks)
        ppo, batches = training.ppo, training.batches
        monitor = PerformanceMonitor()
        monitor.watch(ranks, "sum", "all-reduce")
        seen: dict[str, Any] = {"rates": [], "rewards": [], "seconds": [], "weights": {}, "reduce": []}
        for iteration in range(1, ranks_file["iterations"] + 1):
            began, before = time.perf_counter(), _reduced(monitor)
            batch = next(batches)
            reward = batch["next", "agents", "reward"].mean(dtype=torch.float64)
            if iteration == 1:
                whole = ranks.gather(batch.frames)
                seen["first_batch"] = _digest(join_frames(whole)) if whole else ""
            seen["rates"].append(ppo.update(batch, iteration / 10_000)["charts/learning_rate"])
            seen["seconds"].append(time.perf_counter() - began)
            seen["reduce"].append(_reduced(monitor) - before)
            ranks.sum(reward)
            seen["rewards"].append(float(reward) / ranks.size)
            if iteration in (1, RATES):
                seen["weights"][iteration] = torch.cat([p.detach().flatten() for p in ppo.policy.parameters()]).tolist()
        seen["parameters"] = sum(p.numel() for p in ppo.policy.parameters())
        final = [hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in tensors_of(ppo.policy.state_dict())]
        seen["ranks_agree"] = all(other == final for other in ranks.gather(final))
        seen["frames"] = training.settings.frames_per_batch
        batches.shutdown()
        training.env.close()
        if ranks.first:
            Path(out).write_text(json.dumps(seen))


def _reduced(monitor: PerformanceMonitor) -> float:
    return sum(total for path, (total, _) in monitor._totals().items() if path.endswith("all-reduce"))


def _digest(frames: Any) -> str:
    digest = hashlib.sha256()
    for key in sorted(frames.keys(True, True), key=str):
        digest.update(frames[key].contiguous().numpy().tobytes())
    return digest.hexdigest()


def run(folder: Path, count: int, threads: int, iterations: int, overrides: list[str]) -> dict[str, Any]:
    """What rank 0 of `count` saw."""
    out, task = folder / f"{time.monotonic_ns()}.json", folder / "task.json"
    task.write_text(json.dumps({"iterations": iterations, "overrides": [*overrides, f"threads={threads}"]}))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command = [*launcher, __file__, f"out={out}", f"task={task}"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {count} ranks failed:\n{done.stderr[-2000:]}")
    return json.loads(out.read_text())


def difference(a: dict, b: dict, iteration: int) -> float:
    """Of the weights, relative to their size."""
    one, other = (torch.tensor(x["weights"][str(iteration)], dtype=torch.float64) for x in (a, b))
    return float((one - other).norm() / one.norm())


def equal(folder: Path, iterations: int, overrides: list[str]) -> dict[str, Any]:
    one = run(folder, 1, 2, iterations, overrides)
    threads = run(folder, 1, 1, RATES, overrides)
    other_seed = run(folder, 1, 2, iterations, [*overrides, "seed=1"])
    shared = {count: run(folder, count, 1, iterations, overrides) for count in (2, 4)}
    last = slice(-20, None)

    def rates_agree(x: dict) -> int:
        """Iterations until the learning rate is another one than with one rank and two threads."""
        pairs = zip(x["rates"], one["rates"], strict=False)
        return next((k for k, (a, b) in enumerate(pairs) if a != b), len(x["rates"]))

    mean = {name: statistics.mean(x["rewards"][last]) for name, x in {"1": one, "seed": other_seed, **shared}.items()}
    out = {
        "same_first_batch": all(x["first_batch"] == one["first_batch"] for x in shared.values()),
        "other_seed_differs": other_seed["first_batch"] != one["first_batch"],
        "weights_rel_diff": max(difference(one, x, 1) for x in shared.values()),
        "same_rates": all(rates_agree(x) >= RATES for x in shared.values()),
        "same_rates_iterations": {count: rates_agree(x) for count, x in shared.items()},
        "same_rates_iterations_threads": rates_agree(threads),
        "weights_rel_diff_20": {count: difference(one, x, RATES) for count, x in shared.items()},
        "weights_rel_diff_20_threads": difference(one, threads, RATES),
        "ranks_agree": all(x["ranks_agree"] for x in shared.values()),
        "curve_diff": max(abs(mean["1"] - mean[count]) for count in shared),
        "curve_diff_seeds": abs(mean["1"] - mean["seed"]),
    }
    for name, value in out.items():
        print(f"{name:28} {value}", flush=True)
    return out


def fast(folder: Path, rounds: int, overrides: list[str]) -> dict[str, Any]:
    speeds: dict[str, list[float]] = {"one": [], "two": []}
    shares, parameters = [], 0
    for number in range(rounds):
        for name, count, threads in (("one", 1, 2), ("two", 2, 1)):
            seen = run(folder, count, threads, 14, overrides)
            seconds, parameters = seen["seconds"][4:], seen["parameters"]
            speeds[name].append(seen["frames"] / statistics.median(seconds))
            if name == "two":
                shares.append(sum(seen["reduce"][4:]) / sum(seconds))
        print(f"round {number + 1}: 1 × 2 threads {speeds['one'][-1]:,.0f} frames/s,"
              f" 2 × 1 thread {speeds['two'][-1]:,.0f}", flush=True)  # fmt: skip
    grown = {}
    for count in (1, 2, 4, 8):
        seen = run(folder, count, 1, 10, [*overrides, f"env.num_envs={128 * count}"])
        grown[count] = round(seen["frames"] / statistics.median(seen["seconds"][3:]))
        print(f"{count} × 128 drones: {grown[count]:,} frames/s", flush=True)
    bytes_sent = 4 * parameters * 32  # of two ranks: each gradient once
    return {
        "frames_per_s": {name: round(max(values)) for name, values in speeds.items()},
        "ratio_2_ranks": max(b / a for a, b in zip(speeds["one"], speeds["two"], strict=True)),
        "ratio_2_ranks_median": statistics.median(b / a for a, b in zip(speeds["one"], speeds["two"], strict=True)),
        "allreduce_share": statistics.median(shares),
        "frames_per_s_of_128_each": grown,
        "bytes_per_update_per_rank": bytes_sent,
        "parameters": parameters,
        "estimate": estimate(parameters),
    }


def estimate(parameters: int) -> dict[str, float]:
    """Milliseconds of all-reduce per iteration (32 of them) on paper: a ring sends 2 (n - 1) / n of the gradient.

    Each of its 2 (n - 1) steps takes some time of its own: 3 µs between GPUs of one box, 15 µs over a network.
    """
    size = 4.0 * parameters

    def ring(ranks: int, bytes_per_s: float, step: float) -> float:
        return 32e3 * (2 * (ranks - 1) / ranks * size / bytes_per_s + 2 * (ranks - 1) * step)

    boxes = {"2x8_10gbit_ms": 1.25e9, "2x8_100gbit_ms": 12.5e9}
    return {"8_gpus_ms": ring(8, 100e9, 3e-6)} | {name: ring(16, speed, 15e-6) for name, speed in boxes.items()}


def main() -> None:
    given = options(__doc__, iterations=60, rounds=3, small=False, out=None, task=None)
    if given.task:
        worker(given.out, json.loads(Path(given.task).read_text()))
        return
    overrides = SMALL if given.small else []
    with tempfile.TemporaryDirectory(prefix="navrl-ranks-") as name:
        result = equal(Path(name), given.iterations, overrides) | fast(Path(name), given.rounds, overrides)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
