"""How fast does each engine fly on this machine? One run, engines taking turns; JSON on the last line.

    make bench-engines [ARGS='drones=[64,256] physics=[ovphysx,newton]']

A step is a whole one of the environment, as a collector sees it: obstacles, controller, physics, contacts, LiDAR,
observation, reward and resets, on 16 maps with 350 boxes and 80 moving obstacles. Once with a decision at every physics
step, once with one at every fourth, as in training. The best of several rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

from navrl.cli import fail, options
from navrl.sim.engine import make_simulator
from navrl.sim.isaac_check import IsaacMissing, check_isaac
from navrl.sim.scene import generate_scene
from navrl.task.env import NavigationEnv
from navrl.task.evaluation import straight
from navrl.train.settings import compose_config, read_eval

SECONDS, ROUNDS = 2.0, 3


def measure(physics: str, drones: int, decimation: int) -> dict[str, float]:
    """Seconds to build, and decisions per second; `physics` is warp or one of Isaac Lab's."""
    scene = generate_scene(0, 16, 350, 80)
    sizes = [f"env.num_envs={drones}", f"sim.decimation={decimation}"]
    settings = read_eval(compose_config("eval", ["device=cpu", *sizes]))
    engine = "warp" if physics == "warp" else "isaac"
    began = time.perf_counter()
    env = NavigationEnv(make_simulator(scene, replace(settings.sim, engine=engine, physics=physics)), settings.task)
    built, best = time.perf_counter() - began, 0.0
    data = env.reset()
    for seconds in (0.5, *[SECONDS / ROUNDS] * ROUNDS):  # the first warms up
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            data["agents", "action"] = straight(data["agents", "observation"])
            _, data = env.step_and_maybe_reset(data)
            count += 1
        best = max(best, count / (time.perf_counter() - began))
    env.close()
    return {"built_s": built, "decisions_per_s": drones * best, "steps_per_s": drones * best * decimation}


def main() -> None:
    args = options(__doc__, drones=[64, 256, 1024], physics=["ovphysx"], one=[""])
    try:
        for physics in args.physics:
            check_isaac(physics)
    except IsaacMissing as error:
        fail(str(error))
    if args.one != [""]:  # engine, drones, decimation: for the processes this starts
        print(json.dumps(measure(args.one[0], int(args.one[1]), int(args.one[2]))))
        return
    results: dict[str, dict] = {}
    print("physics steps per second     one per decision   four per decision")
    for drones in args.drones:
        for engine in ("warp", *args.physics):  # each in a process of its own, as Isaac Lab wants it
            row = results.setdefault(engine, {}).setdefault(str(drones), {})
            for decimation in (1, 4):
                command = [sys.executable, __file__, f"one=[{engine},{drones},{decimation}]"]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                row[f"decimation_{decimation}"] = json.loads(out.splitlines()[-1])
            ratio = {d: results["warp"][str(drones)][d]["steps_per_s"] / row[d]["steps_per_s"] for d in row}
            one, four = (f"{row[d]['steps_per_s']:12,.0f} ({ratio[d]:4.0f} ×)" for d in row)
            print(f"{drones:6} drones  {engine:10} {one} {four}", flush=True)
    print("(×: how much faster Warp is)")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
