"""Which way of carrying batches to the learner is fastest here, and which takes least memory? JSON on the last line.

    python scripts/bench/collect.py [--iterations 12] [--rounds 2]

Whole training iterations, every mode in a process of its own (so that its peak memory is its own), modes taking turns,
the best round of each. At the default size, and at one where the batch is most of the memory.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time

from hydra import compose, initialize_config_dir
from update import CFG

from navrl import config
from navrl.collect.batches import PrefetchedBatches, SerialBatches
from navrl.collect.packed import Packer
from navrl.monitor.performance import PerformanceMonitor
from navrl.ppo.networks import ENCODERS, ActorCritic
from navrl.ppo.ppo import PPO
from navrl.sim.scene import TRAINING, generate_scene
from navrl.sim.warp_engine import WarpSimulator
from navrl.task.env import NavigationEnv

SIZES = {"default": (1024, 32, 16), "memory_bound": (4096, 64, 128)}  # drones, steps, minibatches (of 2048 frames)
MODES = {
    "same_td": {},
    "copied": {"return_same_td": False},
    "prefetch": {"prefetch": 1},
    "compressed_lidar": {"compress": "lidar"},
    "compressed_all": {"compress": "all"},
}


def measure(mode: str, size: str, iterations: int) -> dict[str, float]:
    drones, steps, minibatches = SIZES[size]
    options = MODES[mode]
    overrides = [f"env.num_envs={drones}", f"algo.training_frame_num={steps}", f"algo.num_minibatches={minibatches}"]
    with initialize_config_dir(str(CFG), version_base=None):
        cfg = compose("train", overrides=["device=cpu", "env.num_maps=32", *overrides])
    sim = config.sim_settings(cfg)
    scene = generate_scene(0, 32, cfg.env.num_obstacles, cfg.env_dyn.num_obstacles, cfg.env.route, stream=TRAINING)
    policy = ActorCritic(ENCODERS["fast"](sim.lidar.shape, sim.lidar.range), cfg.drone.action_limit)
    ppo = PPO(policy, config.ppo_settings(cfg, "cpu"), 0)
    columns = {"lidar": math.prod(sim.lidar.shape), "all": None}
    packer = Packer(policy.encoder.prepare, steps, columns[options["compress"]]) if "compress" in options else None
    env = NavigationEnv(WarpSimulator(scene, sim), config.task_settings(cfg))
    if options.get("prefetch"):
        batches = PrefetchedBatches(env, ppo, drones * steps, options["prefetch"], packer=packer)
    else:
        batches = SerialBatches(env, ppo, drones * steps, options.get("return_same_td", True), packer=packer)
    seconds = []
    for k in range(iterations + 2):
        if k == 2:
            cpu = time.process_time()
        began = time.perf_counter()
        ppo.update(next(batches))
        seconds.append(time.perf_counter() - began)
    cpu = (time.process_time() - cpu) / iterations
    batches.shutdown()
    frames = drones * steps / statistics.median(seconds[2:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"frames_per_s": frames, "peak_mb": peak, "cpu_s": cpu}


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("MODE", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.iterations)))
        return
    watching = monitoring()
    print(f"a timer costs {watching['timer_us']:.2f} µs, all monitoring {watching['iteration_ms']:.2f} ms an iteration")
    results: dict[str, dict] = {}
    for size, (drones, steps, _) in SIZES.items():
        iterations = options.iterations if size == "default" else max(3, options.iterations // 4)
        best: dict[str, dict[str, float]] = {}
        for _ in range(options.rounds):
            for mode in MODES:
                command = [sys.executable, __file__, "--iterations", str(iterations), "--one", mode, size]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                result = json.loads(out.splitlines()[-1])
                if mode not in best or result["frames_per_s"] > best[mode]["frames_per_s"]:
                    best[mode] = result
        print(f"\n{drones} drones × {steps} steps")
        for mode, r in best.items():
            ratio = r["frames_per_s"] / best["same_td"]["frames_per_s"]
            print(
                f"  {mode:18} {r['frames_per_s']:9,.0f} frames/s ({ratio:.2f})  peak {r['peak_mb']:6,.0f} MB"
                f"  {r['cpu_s']:6.2f} CPU s an iteration",
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
