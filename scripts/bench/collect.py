"""Which way of carrying batches to the learner is fastest here, and which takes least memory? JSON on the last line.

    python scripts/bench/collect.py [iterations=12] [rounds=2]

Whole training iterations, every mode in a process of its own (so that its peak memory is its own), modes taking turns,
the best round of each. At the default size, and at one where the batch is most of the memory.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from navrl.cli import options
from navrl.monitor.performance import PerformanceMonitor, peak_memory_mb
from navrl.train.build import make_training

SIZES = {"default": (1024, 32, 16), "memory_bound": (4096, 64, 128)}  # drones, steps, minibatches (of 2048 frames)
MODES = {
    "same_td": [],
    "copied": ["return_same_td=false"],
    "prefetch": ["return_same_td=false", "use_pipelined_collector=true"],
    "compressed_lidar": ["compress_rollout=lidar"],
    "compressed_all": ["compress_rollout=all"],
}


def measure(mode: str, size: str, iterations: int) -> dict[str, float]:
    drones, steps, minibatches = SIZES[size]
    sizes = [f"env.num_envs={drones}", f"algo.training_frame_num={steps}", f"algo.num_minibatches={minibatches}"]
    training = make_training("device=cpu", "env.num_maps=32", *sizes, *MODES[mode])
    seconds = []
    for k in range(iterations + 2):
        if k == 2:
            cpu = time.process_time()
        began = time.perf_counter()
        training.iterate()
        seconds.append(time.perf_counter() - began)
    cpu = (time.process_time() - cpu) / iterations
    training.batches.shutdown()
    frames = drones * steps / statistics.median(seconds[2:])
    return {"frames_per_s": frames, "peak_mb": peak_memory_mb(), "cpu_s": cpu}


def monitoring() -> dict[str, float]:
    """What watching costs: one timer, and everything scripts/train.py does of it in an iteration of 32 steps."""
    monitor, count = PerformanceMonitor(), 20_000

    def iteration() -> None:
        with monitor.timer("collect"):
            for _ in range(32):
                with monitor.timer("policy"):
                    pass
                with monitor.timer("simulation"):
                    pass
        for name in ("update", "log", "save", "evaluate"):
            with monitor.timer(name), monitor.timer("inside"):
                pass
        monitor.memory(0)
        monitor.shares()

    began = time.perf_counter()
    for _ in range(count):
        with monitor.timer("update"):
            pass
    each = (time.perf_counter() - began) / count
    began = time.perf_counter()
    for _ in range(200):
        iteration()
    whole = (time.perf_counter() - began) / 200
    began = time.perf_counter()
    monitor.end_window(), monitor.get_summary()
    return {"timer_us": 1e6 * each, "iteration_ms": 1e3 * (whole + (time.perf_counter() - began) / 100)}


def main() -> None:
    args = options(__doc__, iterations=12, rounds=2, one=[""])
    if args.one != [""]:  # a mode and a size, for the processes this starts
        mode, size = args.one
        print(json.dumps(measure(mode, size, args.iterations)))
        return
    watching = monitoring()
    print(
        f"a timer costs {watching['timer_us']:.2f} µs, all monitoring {watching['iteration_ms']:.2f} ms per iteration"
    )
    results: dict[str, dict] = {}
    for size, (drones, steps, _) in SIZES.items():
        iterations = args.iterations if size == "default" else max(3, args.iterations // 4)
        best: dict[str, dict[str, float]] = {}
        for _ in range(args.rounds):
            for mode in MODES:
                command = [sys.executable, __file__, f"iterations={iterations}", f"one=[{mode},{size}]"]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                result = json.loads(out.splitlines()[-1])
                if mode not in best or result["frames_per_s"] > best[mode]["frames_per_s"]:
                    best[mode] = result
        print(f"\n{drones} drones × {steps} steps")
        for mode, r in best.items():
            ratio = r["frames_per_s"] / best["same_td"]["frames_per_s"]
            print(
                f"  {mode:18} {r['frames_per_s']:9,.0f} frames/s ({ratio:.2f})  peak {r['peak_mb']:6,.0f} MB"
                f"  {r['cpu_s']:6.2f} CPU s per iteration",
                flush=True,
            )
        results[size] = best
    iteration_ms = 1e3 * 1024 * 32 / results["default"]["same_td"]["frames_per_s"]
    share = watching["iteration_ms"] / iteration_ms
    print(f"\nmonitoring is {100 * share:.2f} % of an iteration")
    told = {"timer_us": watching["timer_us"], "monitoring_share": share}
    print(json.dumps({"modes": results["default"], "memory_bound": results["memory_bound"], **told}))


if __name__ == "__main__":
    main()
