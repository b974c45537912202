"""How fast does each engine fly on this machine? One run, engines taking turns; JSON on the last line.

    make bench-engines [ARGS='--drones 64 256 --physics ovphysx newton']

A step is a whole one of the environment, as a collector sees it: obstacles, controller, physics, contacts, LiDAR,
observation, reward and resets, on 16 maps with 350 boxes and 80 moving obstacles. Once with a decision at every physics
step, once with one at every fourth, as in training. The best of several rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from navrl.sim.engine import make_simulator
from navrl.sim.isaac_check import IsaacMissing, check_isaac
from navrl.sim.scene import generate_scene
from navrl.sim.simulator import SimSettings
from navrl.task.env import NavigationEnv, TaskSettings
from navrl.task.evaluation import straight

SECONDS, ROUNDS = 2.0, 3


def measure(physics: str, drones: int, decimation: int) -> dict[str, float]:
    """Seconds to build, and decisions a second; `physics` is warp or one of Isaac Lab's."""
    scene = generate_scene(0, 16, 350, 80)
    engine = {"engine": "warp"} if physics == "warp" else {"engine": "isaac", "physics": physics}
    began = time.perf_counter()
    sim = make_simulator(scene, SimSettings(drones, decimation=decimation, **engine))
    env = NavigationEnv(sim, TaskSettings(reward={"progress": 1.0}))
    built, best = time.perf_counter() - began, 0.0
    data = env.reset()

    def steps(seconds: float) -> float:
        nonlocal data
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            data["agents", "action"] = straight(data["agents", "observation"])
            _, data = env.step_and_maybe_reset(data)
            count += 1
        return count / (time.perf_counter() - began)

    steps(0.5)
    for _ in range(ROUNDS):
        best = max(best, steps(SECONDS / ROUNDS))
    env.close()
    return {"built_s": built, "decisions_per_s": drones * best, "steps_per_s": drones * best * decimation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drones", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--physics", nargs="+", default=["ovphysx"], help="engines of Isaac Lab to set beside Warp")
    parser.add_argument("--one", nargs=3, metavar=("ENGINE", "DRONES", "DECIMATION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        for physics in options.physics:
            check_isaac(physics)
    except IsaacMissing as error:
        sys.exit(f"error: {error}")
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), int(options.one[2]))))
        return
    results: dict[str, dict] = {}
    print("physics steps a second        one a decision     four a decision")
    for drones in options.drones:
        for engine in ("warp", *options.physics):  # each in a process of its own, as Isaac Lab wants it
            row = results.setdefault(engine, {}).setdefault(str(drones), {})
            for decimation in (1, 4):
                command = [sys.executable, __file__, "--one", engine, str(drones), str(decimation)]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                row[f"decimation_{decimation}"] = json.loads(out.splitlines()[-1])
            ratio = {d: results["warp"][str(drones)][d]["steps_per_s"] / row[d]["steps_per_s"] for d in row}
            one, four = (f"{row[d]['steps_per_s']:12,.0f} ({ratio[d]:4.0f} ×)" for d in row)
            print(f"{drones:6} drones  {engine:10} {one} {four}", flush=True)
    print("(×: how much faster Warp is)")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
