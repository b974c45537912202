"""Learning curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from navrl.monitor.flights import COLOURS, pyplot, write_figure

# Success of NavRL's published policy in our own evaluation (docs/evaluation.md): the line to beat.
PUBLISHED = {
    "borders-350-0": 92.5, "borders-350-80": 63.5, "borders-0-80": 81.8, "borders-350-120": 55.7,
    "crossing-350-0": 94.1, "crossing-350-80": 38.5, "crossing-0-80": 79.2, "crossing-350-120": 22.9,
}  # fmt: skip
PUBLISHED_EPISODES = 1024  # flights each of these was measured with


def draw_curves(path: Path, title: str, rows: Sequence[Mapping[str, float]]) -> None:
    """Success on unseen maps with NavRL's line, how training flights end, and what the learner says, over frames."""
    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(13, 8))
    unseen, flown, losses, speed = axes.flat
    names = sorted({key.split("/")[1] for row in rows for key in row if key.startswith("eval/")})
    for colour, name in zip(plt.cm.tab10.colors, names, strict=False):
        x, y = series(rows, f"eval/{name}/success")
        unseen.plot(x, 100 * y, "o-", ms=3, color=colour, label=name)
        if name in PUBLISHED:
            unseen.axhline(PUBLISHED[name], color=colour, ls=":", lw=1)
    unseen.plot([], [], ":", color="grey", label="NavRL's published policy")
    unseen.set(title="success on unseen maps, %", ylim=(0, 100))
    for name, colour in COLOURS.items():
        x, y = series(rows, f"flights/{name}")
        flown.plot(x, 100 * smooth(y), color=colour, label=name.replace("_", " "))
    flown.set(title="how training flights end (exploring), %", ylim=(0, 100))
    for name in ("approx_kl", "clipfrac", "explained_variance", "value_loss"):
        x, y = series(rows, f"losses/{name}")
        losses.plot(x, smooth(y), label=name)
    losses.set(title="learner", yscale="log")
    x, y = series(rows, "charts/SPS")
    speed.plot(x, smooth(y), color="black", label="frames/s")
    speed.set(title="frames per second", ylim=(0, None))
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.set_xlabel("million frames")
        axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    write_figure(figure, path)


def draw_comparison(path: Path, runs: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Success on unseen maps over minutes, one panel per scenario: every run, their mean and spread, NavRL's line."""
    plt = pyplot()
    names = sorted({key.split("/")[1] for rows in runs.values() for row in rows for key in row if key[:5] == "eval/"})
    columns = min(len(names), 2) or 1
    figure, axes = plt.subplots(
        -(-len(names) // columns) or 1, columns, figsize=(6.5 * columns, 3.6 * (-(-len(names) // columns) or 1)),
        squeeze=False, sharex=True,
    )  # fmt: skip
    for axis, name in zip(axes.flat, names, strict=False):
        lines = []
        for rows in runs.values():
            minutes = {row["frames"]: row["charts/minutes"] for row in rows if "charts/minutes" in row}
            scored = [(row["frames"], row[f"eval/{name}/success"]) for row in rows if f"eval/{name}/success" in row]
            known = [(minutes[at], 100 * score) for at, score in scored if at in minutes]  # a file may lack rows
            lines.append(np.array(known).reshape(-1, 2))
            axis.plot(*lines[-1].T, "o-", ms=2.5, lw=0.8, color="#2a9d4a", alpha=0.45)
        if len({len(line) for line in lines}) == 1:
            mean, spread = np.mean(lines, axis=0), np.std([line[:, 1] for line in lines], axis=0)
            axis.plot(*mean.T, color="#14652c", lw=2, label=f"mean of {len(lines)} runs" if len(lines) > 1 else "run")
            axis.fill_between(mean[:, 0], mean[:, 1] - spread, mean[:, 1] + spread, color="#2a9d4a", alpha=0.15)
        if name in PUBLISHED:
            axis.axhline(PUBLISHED[name], color="#d62728", ls="--", lw=1.2, label="NavRL's published policy")
        axis.set(title=f"{name}: success on unseen maps, %", ylim=(0, 100))
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("minutes of training")
    figure.tight_layout()
    write_figure(figure, path)


def series(rows: Sequence[Mapping[str, float]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Million frames and values of the rows that have `name`."""
    points = np.array([(row["frames"] / 1e6, row[name]) for row in rows if name in row], float).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def smooth(y: np.ndarray, window: int = 15) -> np.ndarray:
    """Running mean."""
    if len(y) < 2 * window:
        return y
    kernel = np.ones(window) / window
    return np.convolve(np.pad(y, window // 2, mode="edge"), kernel, mode="valid")[: len(y)]
