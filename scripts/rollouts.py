"""List the rollouts a run has stored, and draw chosen flights from above, with the obstacles as their LiDAR saw them.

navrl rollouts runs/<date>/<time>                      what is there
navrl rollouts runs/<date>/<time> draw=3               twelve flights of the fourth rollout: rollout-3.png
navrl rollouts runs/<date>/<time> draw=3 drones=[0,7]  ... of these drones

A run stores rollouts if it was started with rollout_save_interval=<iterations> return_same_td=false.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from navrl.cli import command, fail, options
from navrl.collect.rollouts import FOLDER, BadRollout, RolloutStorage
from navrl.monitor.flights import COLOURS, pyplot, write_figure
from navrl.schema import STATE

SEEN = "agents/observation/"


def listing(storage: RolloutStorage) -> Table:
    raw, stored = (sum(line[key] for line in storage.lines) for key in ("raw_bytes", "bytes"))
    saved = f"{100 * (1 - stored / max(1, raw)):.0f} % saved"
    table = Table(title=f"{storage.folder}: {storage.num_frames:,} frames, {stored / 1e6:.1f} MB, {saved}")
    for heading in ("rollout", "iteration", "M frames", "drones × steps", "flights or parts", "MB", "MB uncompressed"):
        table.add_column(heading, justify="right")
    for number, line in enumerate(storage.lines):
        size = [f"{line[key] / 1e6:.2f}" for key in ("bytes", "raw_bytes")]
        when = [str(line.get("iteration", "–")), f"{line['frames'] / 1e6:.2f}" if "frames" in line else "–"]
        table.add_row(str(number), *when, f"{line['drones']} × {line['steps']}", str(line["episodes"]), *size)
    return table


def draw(storage: RolloutStorage, rollout: int, drones: list[int], path: Path) -> None:
    """One panel per drone, in the goal frame: the goal is at the origin, the flight comes from the left."""
    keys = [SEEN + "state", SEEN + "lidar", "next/done", *(f"next/stats/{name}" for name in COLOURS)]
    try:
        data = storage.read(rollout, drones, keys)
    except KeyError as error:
        raise BadRollout(str(error.args[0])) from None
    size = len(drones), storage.lines[rollout]["steps"]
    state, lidar = (data.get(("agents", "observation", name)).numpy() for name in ("state", "lidar"))
    if state.shape != (*size, STATE) or lidar.ndim != 5 or data["next", "done"].shape != (*size, 1):
        raise BadRollout(f"rollout {rollout} in {storage.folder} holds something else than flights")
    done = data.get(("next", "done")).squeeze(-1).numpy().astype(bool)
    position = -state[..., :3] * np.hypot(state[..., 3], state[..., 4])[..., None]
    angle = np.linspace(0.0, 2.0 * np.pi, lidar.shape[3], endpoint=False)
    reach = storage.lines[rollout].get("lidar_range", 4.0)
    plt = pyplot()
    columns = min(4, len(drones))
    rows = -(-len(drones) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 3.4 * rows + 0.4), squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, drone, i in zip(axes.flat, drones, range(len(drones)), strict=False):
        axis.set_axis_on()
        hit = lidar[i, :, 0].max(-1)  # the nearest of the beams above each other; 0 is clear
        step, beam = np.nonzero(hit > 0)
        away = reach - hit[step, beam]
        x, y = (position[i, step, k] + away * f(angle[beam]) for k, f in ((0, np.cos), (1, np.sin)))
        axis.scatter(x, y, s=2, c="#999999", linewidths=0)
        begin = 0
        for end in [*np.flatnonzero(done[i]), done.shape[1] - 1]:
            if end < begin:
                continue
            outcome = [name for name in COLOURS if data["next", "stats", name][i, end].sum() > 0 and done[i, end]]
            colour = COLOURS[outcome[0]] if outcome else "#333333"
            axis.plot(*position[i, begin : end + 1, :2].T, color=colour, lw=1.4)
            axis.plot(*position[i, begin, :2], "o", color=colour, ms=3)
            begin = end + 1
        axis.set(title=f"drone {drone}", aspect="equal")
        axis.tick_params(labelsize=6)
    figure.suptitle(f"rollout {rollout}, metres from the goal; grey: what the LiDAR saw", fontsize=10)
    figure.tight_layout()
    write_figure(figure, path)


@command
def main() -> None:
    given = options(__doc__, "run", run=None, draw=-1, drones=[*range(12)])
    if given.run is None:
        fail("run=null: give a run directory (--help shows how)")
    folder = Path(given.run) if Path(given.run).name == FOLDER else Path(given.run) / FOLDER
    try:
        storage = RolloutStorage(folder)
        if given.draw == -1:
            Console().print(listing(storage))
            return
        if not 0 <= given.draw < len(storage):
            fail(f"draw={given.draw}: there are {len(storage)} rollouts, counted from 0")
        count = storage.lines[given.draw]["drones"]
        drones = [drone for drone in given.drones if 0 <= drone < count]
        if not drones:
            fail(f"drones={given.drones[0]}: there are {count} drones, counted from 0")
        path = folder.parent / f"rollout-{given.draw}.png"
        draw(storage, given.draw, drones, path)
        print(f"drawn: {path}")
    except BadRollout as error:
        fail(str(error))


if __name__ == "__main__":
    main()
