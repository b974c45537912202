"""Follows a run that another process trains: its newest policy, its curves, how its flights end."""

from __future__ import annotations

import csv
import html
import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from navrl.monitor.curves import PUBLISHED
from navrl.monitor.flights import COLOURS
from navrl.monitor.metrics import LARGEST
from navrl.settings import ConfigError, one_line
from navrl.task.evaluation import Policy

LOOK_SECONDS = 2.0  # between looks at the run's files
POINTS = 600  # of a curve; more are thinned
PIECE = 1 << 20  # bytes of metrics.csv read at a time: a long file takes several looks
PALETTE = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


class MetricsTail:
    """Reads what is new in a metrics.csv that is being written; keeps a bounded number of points per curve."""

    def __init__(self, path: Path, wanted: Callable[[str], bool]) -> None:
        self.path, self._wanted = path, wanted
        self._begin(None)

    def _begin(self, identity: tuple[int, int] | None) -> None:
        self._identity, self._offset, self._rest = identity, 0, b""
        self._columns: list[str] = []
        self.curves: dict[str, list[tuple[float, float]]] = {}  # million frames and value
        self.last: dict[str, float] = {}

    def read(self) -> bool:
        """Read on; True if there was something new. A file that was replaced is read from its beginning."""
        try:
            with self.path.open("rb") as file:
                about = self.path.stat()
                identity = about.st_dev, about.st_ino
                if identity != self._identity or about.st_size < self._offset:
                    self._begin(identity)
                if self._offset > LARGEST:
                    return False
                file.seek(self._offset)
                piece = file.read(PIECE)
        except OSError:
            return False
        self._offset += len(piece)
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()[:PIECE]
        for line in lines:
            self._take(line.decode("utf-8", errors="replace"))
        return bool(lines)

    def _take(self, line: str) -> None:
        cells = next(csv.reader(io.StringIO(line), quoting=csv.QUOTE_NONE), [])
        if not self._columns:
            self._columns = cells
            return
        values = {}
        for name, cell in zip(self._columns, cells, strict=False):
            try:
                value = float(cell)
            except ValueError:
                continue
            if abs(value) < 1e18:
                values[name] = value
        frames = values.get("frames", -1.0) / 1e6
        if frames < 0:
            return
        self.last |= values
        for name, value in values.items():
            if self._wanted(name):
                curve = self.curves.setdefault(name, [])
                curve.append((frames, value))
                if len(curve) > 2 * POINTS:
                    del curve[1::2]


class FollowedRun:
    """Stands beside the flights of a run: curves, shares of outcomes, and the policy as it is saved."""

    def __init__(self, run: Path, policy: str, load: Callable[[str], Policy]) -> None:
        self.run, self.policy, self._load = run, policy, load
        self._tail = MetricsTail(run / "metrics.csv", lambda name: name.startswith(("eval/", "flights/")))
        self._stamp = self._policy_stamp()
        self._looked = 0.0
        self._plots: dict[str, Any] = {}
        self._note = ""

    def build(self, gui: Any) -> None:
        self._gui = gui
        with gui.add_folder("Run"):
            self._text = gui.add_html("…")
            self._curves = gui.add_folder("Success on unseen maps, %")
            self._shares = gui.add_folder("How training flights end, %")

    def refresh(self) -> Policy | None:
        """Look at the run now and then; a policy if a new one was saved."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        if self._tail.read():
            self._draw()
        stamp = self._policy_stamp()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            policy = self._load(self.policy)
        except ConfigError as error:
            self._note = one_line(str(error))
            return None
        self._note = f"policy of {time.strftime('%H:%M:%S')}"
        return policy

    def _policy_stamp(self) -> tuple[int, int]:
        try:
            about = (self.run / "policy.pt").stat()
        except OSError:
            return 0, 0
        return about.st_mtime_ns, about.st_ino

    def _draw(self) -> None:
        last = self._tail.last
        name = html.escape(one_line("/".join(self.run.parts[-2:]), 100))
        text = f"<b>{name}</b><br>{last.get('frames', 0) / 1e6:.1f} M frames"
        text += f", {last.get('charts/minutes', 0):.0f} min, {last.get('charts/SPS', 0):,.0f} frames/s"
        self._text.content = (
            f"<div style='padding:0.3em 0.8em;font-size:0.85em'>{text}<br>{html.escape(self._note)}</div>"
        )
        scores = {name.split("/")[1]: c for name, c in self._tail.curves.items() if name.startswith("eval/")}
        shares = {name: self._tail.curves.get(f"flights/{name}", []) for name in COLOURS}
        colours = dict(zip(scores, PALETTE, strict=False))
        self._plot("scores", self._curves, scores, colours, PUBLISHED)
        self._plot("shares", self._shares, {n: c for n, c in shares.items() if c}, COLOURS, {})

    def _plot(
        self, name: str, folder: Any, curves: dict, colours: Mapping[str, str], levels: Mapping[str, float]
    ) -> None:
        """One chart; a curve that appears later makes a new one."""
        curves = {label: curve for label, curve in curves.items() if label in colours}
        if not curves:
            return
        x = np.unique([at for curve in curves.values() for at, _ in curve])
        rows = [x]
        for curve in curves.values():
            at, value = np.array(curve).T
            row = np.full(len(x), np.nan)
            row[np.searchsorted(x, at)] = 100 * value
            rows.append(row)
        known = self._plots.get(name)
        if known and known[0] == [*curves]:
            known[1].data = tuple(rows)
            return
        if known:
            known[1].remove()
        series: list[dict[str, Any]] = [{"label": "M frames"}]
        for label in curves:
            level = f" (NavRL {levels[label]:.0f})" if label in levels else ""
            series.append(
                {"label": label.replace("_", " ") + level, "stroke": colours[label], "width": 2, "spanGaps": True}
            )
        scales = {"x": {"time": False}, "y": {"range": (0.0, 100.0)}}
        with folder:
            plot = self._gui.add_uplot(tuple(rows), tuple(series), scales=scales, aspect=1.6)
        self._plots[name] = [*curves], plot
