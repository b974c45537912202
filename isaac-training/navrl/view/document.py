"""The document of a report: elements that escape what they are given, the page around them, what every page shows.

Whatever comes from a run directory is escaped by `element` or carried as JSON, and the page's own policy forbids every
script but ours, so that a run of a stranger can be looked at.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from navrl.monitor.console import clock
from navrl.view.replay import viewer
from navrl.view.runs import Difference, RunData, Score

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("uPlot.iife.min.js", "report.js")
STYLES = ("uPlot.min.css", "report.css")
PALETTE = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#06b6d4", "#ec4899", "#84cc16")
NOT_RECORDED = "not recorded"
Numbers = Sequence[float] | Sequence[float | None] | np.ndarray  # None: nothing is known there


# --- elements --------------------------------------------------------------------------------------------------------


class Html(str):
    """Text that is HTML already. Anything else is escaped when it is put into an element."""


def element(name: str, *children: str | None, **attributes: str | None) -> Html:
    """`<name attribute="…">children</name>`; an attribute's name may end in `_`, as in class_. None is left out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(c if isinstance(c, Html) else html.escape(c) for c in children if c is not None)
    return Html(f"<{name}{told}>{inside}</{name}>")


def join(parts: Sequence[str]) -> Html:
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> Html:
    """A table that scrolls sideways on a narrow screen; cells are texts or elements."""
    head = element("tr", *(element("th", cell, scope="col") for cell in heads))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    whole = element("table", element("thead", head), element("tbody", *body), class_=kind or None)
    return element("div", whole, class_="scroll")


def section(title: str, *children: str | None, **attributes: str | None) -> Html:
    return element("section", element("h2", title), *children, **attributes)


def nothing(text: str = NOT_RECORDED) -> Html:
    return element("p", text, class_="nothing")


def as_json(value: Any) -> Html:
    """JSON for inside of a script element: nothing in it can end that, or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Html(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@cache
def _parts() -> tuple[str, str]:
    """Script and style of a page."""
    script = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return script, "\n".join((PAGE / name).read_text(encoding="utf-8") for name in STYLES)


class Page:
    """What a page's script is given: curves, and the document of the replay."""

    def __init__(self) -> None:
        self.tables: list[dict[str, list]] = []  # x of curves: frames (millions) and minutes
        self.charts: list[dict[str, Any]] = []
        self.replay: str | None = None

    def table(self, frames: Numbers, minutes: Numbers) -> int:
        """x for curves; returns its number."""
        self.tables.append({"frames": numbers(frames, 1e-6), "minutes": numbers(minutes)})
        return len(self.tables) - 1

    def table_of(self, rows: Sequence[Mapping[str, float]]) -> int:
        """x for curves of these rows of metrics.csv."""
        return self.table([row["frames"] for row in rows], [row.get("charts/minutes") for row in rows])

    def chart(self, title: str, series: list[dict], small: bool = False, **more: Any) -> Html:
        """A place where the script draws curves; `more` as page/report.js understands it."""
        self.charts.append({"title": title, "series": series, "small": small, **more})
        place = element("div", class_="plot", data_chart=str(len(self.charts) - 1))
        return element("figure", element("figcaption", title), place, class_="chart small" if small else "chart")

    def document(self, title: str, body: Html) -> str:
        """The whole page. Its policy allows our script and, in the frame that inherits it, the replay's."""
        script, style = _parts()
        allowed = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"]
        if self.replay is not None:  # from a document without any data
            allowed += re.findall(r"'sha256-[\w+/=]+'", viewer("", ""))
        policy = f"default-src 'none'; script-src {' '.join(allowed)}; style-src 'unsafe-inline'; img-src data:"
        policy += "; base-uri 'none'; form-action 'none'"
        data = {"tables": self.tables, "charts": self.charts, "replay": self.replay}
        head = join(
            [
                Html('<meta charset="utf-8">'),
                Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
                Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
                Html('<meta name="color-scheme" content="light dark">'),
                element("title", f"{title} · navrl"),
                element("style", Html(style)),
            ]
        )
        carried = element("script", as_json(data), type="application/json", id="data")
        whole = join([element("head", head), element("body", body, carried, element("script", Html(script)))])
        return f"<!doctype html>\n{element('html', whole, lang='en')}\n"


def numbers(values: Numbers, scale: float = 1.0) -> list[float | None]:
    """Numbers as short as a screen allows: six digits."""
    return [None if value is None else float(f"{value * scale:.6g}") for value in values]


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}"


def million(frames: int | None) -> str:
    return "–" if frames is None else f"{frames / 1e6:,.1f} M"


def bytes_text(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB" if size >= 1e3 else f"{size} B"


def duration(seconds: float) -> str:
    return clock(seconds) if seconds >= 60 else f"{seconds:.1f} s"


# --- parts of every page ---------------------------------------------------------------------------------------------


def header(kicker: str, title: str, badge: Html | None, tiles: Sequence[tuple[str, str, str]]) -> Html:
    """What one sees first. Tiles are name, value and a line below."""
    boxes = [
        element("div", element("dt", name), element("dd", value), element("small", note), class_="tile")
        for name, value, note in tiles
    ]
    top = element("div", element("p", kicker, class_="kicker"), element("h1", title, " ", badge))
    return element("header", top, element("dl", *boxes, class_="tiles"))


def badge(text: str, kind: str) -> Html:
    return element("span", text, class_=f"badge {kind}")


def status(run: RunData) -> Html:
    if run.finished is None:
        return badge("settings not recorded", "even")
    return badge("finished", "good") if run.finished else badge("not finished", "even")


def verdict(difference: Difference | None, better: str = "better", worse: str = "worse") -> Html:
    """Better, worse, or within noise."""
    if difference is None:
        return badge("–", "even")
    if difference.within_noise:
        return badge("≈ within noise", "even")
    return badge(f"▲ {better}", "good") if difference.value > 0 else badge(f"▼ {worse}", "bad")


def points(value: float) -> str:
    """A difference of fractions, in percentage points with its sign."""
    return f"{100 * value:+.1f}".replace("-", "−")


def toolbar() -> Html:
    """Over what curves are drawn; the script makes it work."""
    buttons = [
        element("button", text, type="button", data_axis=axis, aria_pressed="true" if axis == "frames" else "false")
        for axis, text in (("frames", "frames"), ("minutes", "minutes"))
    ]
    reset = element("button", "reset zoom", type="button", id="reset", hidden="")
    hint = element("span", "drag across a curve to zoom, double click to reset", class_="hint")
    return element("div", element("div", *buttons, class_="switch"), reset, hint, class_="toolbar")


def success_cell(score: Score) -> Html:
    interval = score.interval
    told = f" {percent(interval[0])} – {percent(interval[1])}" if interval else ""
    return element("span", element("b", percent(score.success)), element("small", told), class_="value")
