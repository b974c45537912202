"""Flights for people: running means, a table for the terminal, maps seen from above."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich import box
from rich.table import Table

from navrl.io.contents import Array, ListOf, OneOf
from navrl.io.files import whole_file
from navrl.ranks import ALONE, Ranks
from navrl.schema import OUTCOMES

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from navrl.task.evaluation import Flights

SHOWN = (*OUTCOMES, "return", "length")  # statistics of flights that ended while training
COLOURS = {  # of outcomes, in the task's order
    "success": "#2a9d4a",
    "static_collision": "#d62728",
    "dynamic_collision": "#ff8c00",
    "out_of_bounds": "#7b3fbf",
    "timeout": "#1f77b4",
}

WINDOW = 1024  # flights
FLIGHTS_STATE = {"names": ListOf(OneOf(SHOWN), 100), "values": Array(torch.float32, (None, None))}  # in a file
HEADINGS = {
    "success": "success %",
    "static_collision": "static %",
    "dynamic_collision": "dynamic %",
    "out_of_bounds": "bounds %",
    "timeout": "timeout %",
    "speed": "m/s",
    "path_ratio": "path ratio",
    "time_to_goal": "s to goal",
}


class RecentFlights:
    """Means over the last flights that ended during training."""

    def __init__(self, window: int = WINDOW) -> None:
        self.window = window
        self.values: dict[str, np.ndarray] = {}

    def add(self, frames: TensorDictBase, ranks: Ranks = ALONE) -> dict[str, float]:
        """Count the flights that ended in a batch, on rank 0 those of all ranks; returns the means now."""
        ended = frames["next", "done"].squeeze(-1)
        mine = {name: frames["next", "stats", name][ended].view(-1).cpu().numpy() for name in SHOWN}
        for flights in ranks.gather(mine):
            self.extend(flights)
        return self.means()

    def extend(self, ended: dict[str, np.ndarray]) -> None:
        """Count flights: one value per flight, by name."""
        for name, new in ended.items():
            self.values[name] = np.concatenate([self.values.get(name, new[:0]), new])[-self.window :]

    def state(self) -> dict:
        rows = np.stack([*self.values.values()]) if self.values else np.zeros((0, 0), np.float32)
        return {"names": [*self.values], "values": torch.from_numpy(rows)}

    def load_state(self, state: dict) -> None:
        """Restore `state()`."""
        values = dict(zip(state["names"], state["values"][:, -self.window :].numpy().copy(), strict=True))
        self.values = values if values.keys() == set(SHOWN) else {}

    def means(self) -> dict[str, float]:
        return {f"flights/{name}": float(values.mean()) for name, values in self.values.items() if len(values)}


def results_table(results: dict[str, dict], title: str) -> Table:
    """Rows are scenarios; every figure comes with the half-width of its 95 % interval."""
    table = Table(
        title=title,
        caption="static, dynamic: collisions; ± is half of the 95 % interval",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("scenario", no_wrap=True)
    for heading in HEADINGS.values():
        table.add_column(heading, justify="right", min_width=9)
    for scenario, result in results.items():
        table.add_row(scenario, *(_cell(result, name) for name in HEADINGS))
    return table


def _cell(result: dict, name: str) -> str:
    value, interval = result[name], result[f"{name}_ci95"]
    if value is None:
        return "–"
    scale, digits = (100.0, 1) if name in COLOURS else (1.0, 2)
    half = (interval[1] - interval[0]) / 2 * scale
    return f"{value * scale:.{digits}f}±{half:.{digits}f}"


def pyplot() -> ModuleType:
    """matplotlib for files, loaded only when something is drawn."""
    import matplotlib

    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it announces its font cache
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure and free its memory, even if the disk is full."""
    try:
        with whole_file(path, "wb") as file:
            figure.savefig(file, dpi=100, format=path.suffix[1:])
    finally:
        pyplot().close(figure)


def draw_flights(path: Path, title: str, flights: Flights) -> None:
    """One panel per map: obstacles from above (darker is higher), every flight coloured by how it ended.

    Moving obstacles are drawn where they start.
    """
    plt = pyplot()
    scene, map_index, trace = flights.scene, flights.map_index, flights.trace
    outcome = [tuple(COLOURS)[index] for index in flights.outcome]
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Rectangle

    maps = np.unique(map_index)
    columns = math.ceil(math.sqrt(len(maps) * 16 / 9))
    rows = math.ceil(len(maps) / columns)
    size = max(2.2 if len(maps) > 32 else 3.4, 9.0 / rows)  # inches per panel
    figure, axes = plt.subplots(rows, columns, figsize=(size * columns, size * rows + 0.9), squeeze=False)
    colours = np.array([COLOURS[o] for o in outcome])
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, index in zip(axes.flat, maps, strict=False):
        boxes = scene.boxes_of(index)
        shapes = [Rectangle((x0, y0), x1 - x0, y1 - y0) for x0, y0, x1, y1, _ in boxes]
        shades = plt.cm.Greys(0.35 + 0.55 * np.clip(boxes[:, 4] / 6.0, 0, 1))
        axis.add_collection(PatchCollection(shapes, facecolors=shades, edgecolors=shades, linewidths=0.5))
        count = scene.moving_count[index]
        discs = [
            Circle(p[:2], s[0] / 2)
            for p, s in zip(scene.moving_origin[index, :count], scene.moving_size[index, :count], strict=True)
        ]
        axis.add_collection(PatchCollection(discs, facecolors="none", edgecolors="#0a9396", linewidths=0.6))
        mine = np.flatnonzero(map_index == index)
        axis.add_collection(LineCollection([*trace[mine, :, :2]], colors=colours[mine], linewidths=0.7, alpha=0.85))
        crashed = mine[[outcome[i] not in ("success", "timeout") for i in mine]]
        axis.scatter(*trace[crashed, -1, :2].T, c=colours[crashed], s=9, marker="x", linewidths=0.9, zorder=3)
        border, limit = scene.border, scene.ground_half + 1
        axis.add_patch(Rectangle((-border, -border), 2 * border, 2 * border, fill=False, lw=0.4, ec="#bbbbbb"))
        axis.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")

    shares = {name: np.mean([o == name for o in outcome]) for name in COLOURS}
    legend = [
        Line2D([], [], color=colour, lw=2, label=f"{name.replace('_', ' ')} {100 * shares[name]:.1f} %")
        for name, colour in COLOURS.items()
    ]
    legend.append(Line2D([], [], color="#0a9396", marker="o", mfc="none", lw=0, label="moving obstacle (at the start)"))
    head = 0.9 / figure.get_figheight()
    figure.suptitle(title, y=1 - 0.08 * head, fontsize=15)
    figure.legend(handles=legend, loc="upper center", ncols=6, bbox_to_anchor=(0.5, 1 - 0.45 * head), frameon=False)
    figure.subplots_adjust(left=0.005, right=0.995, bottom=0.005, top=1 - head, wspace=0.02, hspace=0.02)
    write_figure(figure, path)
