"""The report: one HTML file about one run, or about several compared, that opens offline in any browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from navrl.io.files import write_text
from navrl.monitor.console import SHORT, clock
from navrl.monitor.curves import PUBLISHED, PUBLISHED_EPISODES, smooth
from navrl.monitor.flights import COLOURS
from navrl.view.comparison import comparison_page
from navrl.view.document import (
    NOT_RECORDED,
    PALETTE,
    Html,
    Page,
    bytes_text,
    duration,
    element,
    header,
    join,
    million,
    nothing,
    numbers,
    percent,
    section,
    status,
    success_cell,
    table,
    toolbar,
    verdict,
)
from navrl.view.replay import viewer
from navrl.view.runs import RunData, Score, against_published, merged

LEARNER = {  # small charts of one metric each
    "losses/approx_kl": "KL divergence of an update",
    "losses/clipfrac": "clipped share",
    "losses/explained_variance": "explained variance of returns",
    "losses/value_loss": "value loss",
    "losses/entropy": "entropy",
    "charts/learning_rate": "learning rate",
    "flights/return": "return of training flights",
    "charts/SPS": "frames per second",
    "perf/memory_mb": "memory, MB",
}


def write_report(path: Path, runs: Sequence[RunData]) -> None:
    """Write the page about one run, or about several compared."""
    page = Page()
    beside = len(runs) == 1 and path.absolute().parent == runs[0].path.absolute()  # its files can be linked to
    body = run_page(page, runs[0], beside) if len(runs) == 1 else comparison_page(page, runs)
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    write_text(path, page.document(title, body).encode("utf-8", "replace").decode())


def run_page(page: Page, run: RunData, beside: bool) -> Html:
    """The page about one run. `beside`: it will be in the run's directory, so that files can be linked to."""
    return join(
        [
            header("training run", run.name, status(run), run_tiles(run)),
            element(
                "main",
                section("Scores on unseen maps", score_table(run)),
                section("Learning curves", *run_curves(page, run)),
                section("Flights", replay_section(page, run, beside)),
                section("What differs from the defaults", differs_table(run)),
                section("Where the time went", phases_table(run)),
                section("Machine and code", provenance(run)),
                section("Files", files_table(run, beside)),
                section("Log", log_section(run)),
            ),
        ]
    )


def run_tiles(run: RunData) -> list[tuple[str, str, str]]:
    scores = [score.success for score in run.scores.values()]
    mean = f"{100 * np.mean(scores):.1f} %" if scores else "–"
    told = [against_published(name, score) for name, score in run.scores.items()]
    known = [difference for difference in told if difference]
    won, lost = (sum(not d.within_noise and sign * d.value > 0 for d in known) for sign in (1, -1))
    against = f"better in {won}, worse in {lost} of {len(known)}" if known else "NavRL's line: not comparable"
    unit = "hours:minutes:seconds" if (run.seconds or 0) >= 3600 else "minutes:seconds"
    return [
        ("frames", million(run.frames), f"of {million(run.planned)}" if run.planned else NOT_RECORDED),
        ("wall clock", clock(run.seconds) if run.seconds else "–", unit),
        ("speed", f"{run.speed:,.0f}" if run.speed else "–", "frames per second"),
        ("mean success", mean, f"over {len(scores)} scenarios" if scores else "no evaluation yet"),
        ("against NavRL", f"{won} : {lost}" if known else "–", against),
    ]  # fmt: skip


def score_table(run: RunData) -> Html:
    if not run.scores:
        return nothing("no evaluation yet")
    rows = []
    for name, score in run.scores.items():
        line = PUBLISHED.get(name)
        rows.append(
            [
                element("b", name),
                success_cell(score),
                "–" if line is None else f"{line:.1f}",
                verdict(against_published(name, score)),
                track(score, line),
                outcome_bar(score),
                f"{score.means['speed']:.2f}" if "speed" in score.means else "–",
                f"{score.means['time_to_goal']:.1f}" if "time_to_goal" in score.means else "–",
                str(score.episodes) if score.episodes else "–",
            ]
        )
    heads = ["scenario", "success %", "NavRL %", "", "0 … 100 %", "how flights ended", "m/s", "s to goal", "flights"]
    key = [element("span", element("i", style=f"background:{COLOURS[name]}"), SHORT[name]) for name in COLOURS]
    note = (
        f"After {million(run.scored_at)} frames. The bar is the 95 % interval (Wilson), the line NavRL's published"
        f" policy ({PUBLISHED_EPISODES} flights)."
        " Better and worse: the 95 % interval of the difference does not include 0."
    )
    return join([table(heads, rows, "scores"), element("p", *key, class_="key"), element("p", note, class_="note")])


def track(score: Score, line: float | None) -> Html:
    """A score on its way from 0 to 100 %, with its interval and NavRL's line."""
    low, high = score.interval or (score.success, score.success)
    parts = [element("i", class_="range", style=f"left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%")]
    parts += [element("i", class_="dot", style=f"left:{100 * score.success:.2f}%")]
    if line is not None:
        parts.append(element("i", class_="mark", style=f"left:{line:.2f}%", title=f"NavRL {line:.1f} %"))
    return element("div", *parts, class_="track")


def outcome_bar(score: Score) -> Html:
    if not score.outcomes:
        return element("span", NOT_RECORDED, class_="nothing")
    parts = []
    for name, share in score.outcomes.items():
        style = f"width:{100 * share:.2f}%;background:{COLOURS[name]}"
        parts.append(element("i", style=style, title=f"{SHORT[name]} {percent(share)} %"))
    return element("div", *parts, class_="outcomes")


def run_curves(page: Page, run: RunData) -> list[Html]:
    rows = merged(run.rows)
    if not rows:
        return [nothing("metrics.csv: not recorded")]
    x = page.table_of(rows)
    colours = dict(zip(run.scores, PALETTE * len(run.scores), strict=False))
    scored = {name: [row.get(f"eval/{name}/success") for row in rows] for name in run.scores}
    unseen = [
        {"label": name, "table": x, "y": numbers(y, 100), "colour": colours[name], "points": True}
        for name, y in scored.items()
        if any(value is not None for value in y)
    ]
    lines = [{"y": PUBLISHED[name], "colour": colours[name]} for name in run.scores if name in PUBLISHED]
    out = [toolbar()]
    if unseen:
        title = "success on unseen maps, % (dotted: NavRL's published policy)"
        out.append(page.chart(title, unseen, low=0, high=100, lines=lines))
    if flown := [row for row in rows if all(f"flights/{name}" in row for name in COLOURS)]:
        place = page.table_of(flown)
        shares = [
            {"label": SHORT[name], "table": place, "y": numbers([row[f"flights/{name}"] for row in flown], 100)}
            | {"colour": colour}
            for name, colour in COLOURS.items()
        ]
        title = "how training flights end, while exploring, %"
        out.append(page.chart(title, shares, low=0, high=100, stacked=True))
    small = [
        learner_chart(page, rows, name, title) for name, title in LEARNER.items() if any(name in row for row in rows)
    ]
    return [*out, element("div", *small, class_="grid")]


def learner_chart(page: Page, rows: Sequence[Mapping[str, float]], name: str, title: str) -> Html:
    """One metric: as measured, faint, and smoothed."""
    known = [row for row in rows if name in row]
    x = page.table_of(known)
    values = np.array([row[name] for row in known])
    series = [{"label": "measured", "table": x, "y": numbers(values), "colour": PALETTE[0], "faint": True}]
    series += [{"label": "smoothed", "table": x, "y": numbers(smooth(values)), "colour": PALETTE[0]}]
    return page.chart(title, series, small=True)


def replay_section(page: Page, run: RunData, beside: bool) -> Html:
    if run.replay is None:
        return nothing()
    name, data = run.replay
    page.replay = viewer(data, f"{run.name} · {name.removeprefix('flights-').removesuffix('.html')}")
    button = element("button", "▶ watch the flights of the last evaluation", type="button", id="play")
    link = element("a", name, href=link_to(name)) if beside else element("span", name)
    return element("div", button, element("p", "Also as a page of its own: ", link, class_="note"), id="replay")


def link_to(name: str) -> str:
    """An address of a file beside the page: never of a scheme of its own."""
    return "./" + quote(name, errors="replace")


def differs_table(run: RunData) -> Html:
    if run.differs is None:
        return nothing()
    if not run.differs:
        return nothing("nothing: every setting has its default")
    rows = [
        [element("code", key), element("code", default), element("code", value)]
        for key, (default, value) in run.differs.items()
    ]
    return table(["setting", "default", "this run"], rows, "settings")


def phases_table(run: RunData) -> Html:
    """Bars of outer timers, with those inside below them."""
    if not run.phases:
        return nothing()
    rest = 1 - sum(share for path, share in run.phases.items() if "/" not in path)
    phases = {**run.phases} | ({"everything else": rest} if rest > 0.0005 else {})
    rows = []
    for path, share in phases.items():
        inner = path.count("/")
        outer, _, last = path.rpartition("/")
        name = element("span", last if outer in phases else path, style=f"padding-left:{min(inner, 6) * 1.2:.1f}em")
        bar = element("i", style=f"width:{100 * min(1, share):.2f}%")
        took = "–" if not run.seconds else duration(share * run.seconds)
        kind = "bar" if not inner else "bar inner"
        rows.append([name, element("div", bar, class_=kind), f"{100 * share:.1f} %", took])
    return table(["phase", "", "share", "time"], rows, "phases")


def provenance(run: RunData) -> Html:
    rows = [[key, value] for key, value in run.machine.items()]
    rows += [["commit", element("code", run.commit) if run.commit else NOT_RECORDED]]
    rows += [["command", element("code", run.command) if run.command else NOT_RECORDED]]
    if not run.machine:
        rows.insert(0, ["machine", NOT_RECORDED])
    return table(["", ""], rows, "pairs")


def files_table(run: RunData, beside: bool) -> Html:
    if not run.files:
        return nothing()
    rows = [[element("a", name, href=link_to(name)) if beside else name, bytes_text(size)] for name, size in run.files]
    total = sum(size for _, size in run.files)
    return element(
        "details",
        element("summary", f"{len(run.files)} files, {bytes_text(total)}"),
        table(["file", "size"], rows, "files"),
    )


def log_section(run: RunData) -> Html:
    problems = element("ul", *(element("li", line) for line in run.problems)) if run.problems else None
    parts = [element("p", "Could not be read:", class_="note"), problems] if problems else []
    if run.log:
        lines = element("pre", "\n".join(run.log))
        parts.append(element("details", element("summary", f"last {len(run.log)} lines of log.txt"), lines))
    return join([part for part in parts if part] or [nothing()])
