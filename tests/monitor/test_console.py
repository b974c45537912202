"""The same run in a terminal and in a log file."""

from __future__ import annotations

import io

from rich.console import Console

from navrl.monitor.console import TrainingConsole, clock

METRICS = {"flights/success": 0.5, "flights/timeout": 0.5, "eval/crossing-350-80/success": 0.6}


def show(terminal: bool) -> str:
    out = io.StringIO()
    screen = Console(file=out, force_terminal=terminal, width=110)
    with TrainingConsole("runs/today", 2_000_000, screen) as console:
        console.update(1_000_000, 30_000.0, METRICS, {"collect": 0.2, "update": 0.7})
        console.live.refresh()
    return out.getvalue()


def test_panel_and_plain_lines_show_the_same() -> None:
    for text in (show(terminal=True), show(terminal=False)):
        for words in ("1.0 of 2.0 M frames", "frames/s", "0:33 left", "success 50", "update 70 %"):
            assert words in text.replace("\x1b[1m", "").replace("\x1b[0m", ""), words
    assert "crossing-350-80" in show(terminal=True)
    assert "\x1b" not in show(terminal=False)


def test_clock() -> None:
    assert clock(3723) == "1:02:03" and clock(63) == "1:03"
