"""Training progress on screen: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from navrl.io.output import lost_output
from navrl.monitor.flights import COLOURS

log = logging.getLogger("navrl")

PLAIN_SECONDS = 10.0  # between lines where the screen cannot be redrawn


class TrainingConsole:
    """Shows the state of a run. `update` is cheap to call every iteration; `say` prints a line that stays."""

    def __init__(self, title: str, total_frames: int, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console(quiet=quiet, force_terminal=False if quiet else None)
        if not self.console.is_terminal:
            self.console.width = 120  # nobody resizes a log file
        self.title, self.total = title, total_frames
        self.live = Live(console=self.console, refresh_per_second=2, transient=True)
        self._last_line = -PLAIN_SECONDS  # the clock may have started just now
        self._told = False  # that nobody reads this

    def __enter__(self) -> TrainingConsole:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def say(self, what: object) -> None:
        """Print something that stays on the screen."""
        self.console.print(what, highlight=False, soft_wrap=isinstance(what, str))
        if not self._told and (error := lost_output()):
            self._told = True
            log.warning("the output can no longer be written (%s); training continues unseen", error.strerror or error)

    def update(self, frames: int, speed: float, metrics: Mapping[str, float], shares: Mapping[str, float]) -> None:
        """Show progress: `speed` in frames/s, `shares` of wall time by phase, `metrics` as logged."""
        left = (self.total - frames) / max(speed, 1e-9)
        if self.console.is_terminal:
            self.live.update(self._panel(frames, speed, left, metrics, shares))
        elif time.monotonic() - self._last_line >= PLAIN_SECONDS or frames >= self.total:
            self._last_line = time.monotonic()
            ended = {short: metrics[f"flights/{name}"] for name, short in SHORT.items() if _has(metrics, name)}
            flown = ", ".join(f"{short} {100 * share:.0f} %" for short, share in ended.items())
            where = " ".join(f"{phase} {100 * share:.0f} %" for phase, share in shares.items())
            self.say(
                f"{frames / 1e6:.1f} of {self.total / 1e6:.1f} M frames, {speed:,.0f} frames/s, {clock(left)} left"
                f" | {flown or 'no flight finished yet'} | {where}"
            )

    def _panel(
        self, frames: int, speed: float, left: float, metrics: Mapping[str, float], shares: Mapping[str, float]
    ) -> Panel:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=self.total, completed=frames, width=32),
            f"{100 * frames / self.total:.1f} %",
            f"{frames / 1e6:.1f} of {self.total / 1e6:.1f} M frames",
            f"[bold]{speed:,.0f}[/] frames/s",
            f"{clock(left)} left",
        )
        flown = Text("flights now   ", style="dim")
        for name, short in SHORT.items():
            if _has(metrics, name):
                flown.append(f"{short} {100 * metrics[f'flights/{name}']:.1f} %   ", style=COLOURS[name])
        rows: list[RenderableType] = [head, flown]
        evaluated = {key.split("/")[1]: value for key, value in metrics.items() if key.startswith("eval/")}
        if evaluated:
            scores = "   ".join(f"{name} [bold]{100 * value:.1f}[/] %" for name, value in evaluated.items())
            rows.append(Text.from_markup(f"[dim]unseen maps[/]   {scores}"))
        names = ("approx_kl", "clipfrac", "entropy", "explained_variance", "value_loss")
        values = [f"{name} {metrics[f'losses/{name}']:.3f}" for name in names if f"losses/{name}" in metrics]
        rows.append(Text("learning      " + "   ".join(values), style="dim"))
        rows.append(Text("time          " + "   ".join(f"{p} {100 * s:.0f} %" for p, s in shares.items()), style="dim"))
        return Panel(Group(*rows), title=self.title, title_align="left", expand=False)


SHORT = {
    "success": "success",
    "static_collision": "hit a box",
    "dynamic_collision": "hit a mover",
    "out_of_bounds": "out of bounds",
    "timeout": "too late",
}


def _has(metrics: Mapping[str, float], name: str) -> bool:
    return f"flights/{name}" in metrics


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 under an hour."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
