"""The page that compares runs: groups of seeds, whether they differ by more than noise, their curves and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from navrl.monitor.console import clock
from navrl.monitor.curves import PUBLISHED
from navrl.view.document import (
    PALETTE,
    Html,
    Page,
    badge,
    element,
    header,
    join,
    million,
    nothing,
    numbers,
    percent,
    points,
    section,
    status,
    success_cell,
    table,
    toolbar,
    verdict,
)
from navrl.view.runs import (
    PAIRWISE,
    UNKNOWN,
    Group,
    RunData,
    Score,
    changed_settings,
    compare,
    curve,
    group_runs,
    mean_and_spread,
    merged,
    pairs_of,
    scenarios_of,
)

AXES = {"frames": "frames", "minutes": "charts/minutes"}  # what curves can be drawn over: column of metrics.csv


def comparison_page(page: Page, runs: Sequence[RunData]) -> Html:
    """The page that compares runs: those that differ only in their seed are one group."""
    groups, scenarios = group_runs(runs), scenarios_of(runs)
    colours = dict(zip((group.name for group in groups), PALETTE * len(groups), strict=False))
    changed = changed_settings(groups)
    title = f"{len(runs)} runs in {len(groups)} group{'s' if len(groups) > 1 else ''}"
    return join(
        [
            header("comparison", title, None, group_tiles(groups, scenarios)),
            element(
                "main",
                section("Success on unseen maps", group_table(groups, scenarios, colours)),
                section("Is it noise?", noise_section(groups, scenarios)),
                section("Learning curves", *comparison_curves(page, groups, scenarios, colours)),
                section("Settings that differ between groups", changed_table(groups, changed)),
                section("Runs", runs_table(groups, scenarios, colours)),
            ),
        ]
    )


def group_tiles(groups: Sequence[Group], scenarios: Sequence[str]) -> list[tuple[str, str, str]]:
    """Success of each group over all scenarios; none where a group lacks some, which would not compare."""
    tiles = []
    for group in groups[:6]:
        means = [np.mean([score.success for score in group.by_seed(name)]) for name in scenarios if group.by_seed(name)]
        mean = f"{100 * np.mean(means):.1f} %" if means and len(means) == len(scenarios) else "–"
        count = f"{len(group.runs)} run{'s' if len(group.runs) > 1 else ''}"
        tiles.append((f"group {group.name}, mean success", mean, f"{count}, {len(scenarios)} scenarios"))
    return tiles


def chip(group: Group, colours: Mapping[str, str]) -> Html:
    return element("b", group.name, class_="chip", style=f"background:{colours[group.name]}")


def described(group: Group, groups: Sequence[Group]) -> str:
    """What is special about a group, in a few words."""
    if group.runs[0].learning is None:
        return "settings not recorded"
    changed = changed_settings(groups)
    place = groups.index(group)
    return ", ".join(f"{key}={values[place]}" for key, values in changed.items()) or "the same settings"


def group_table(groups: Sequence[Group], scenarios: Sequence[str], colours: Mapping[str, str]) -> Html:
    """One row per group: mean and spread over its seeds, per scenario."""
    if not scenarios:
        return nothing("no evaluation yet")
    rows = []
    for group in groups:
        cells = [group_cell(group.by_seed(name)) for name in scenarios]
        seeds = ", ".join(run.seed or "?" for run in group.runs)
        rows.append([chip(group, colours), described(group, groups), seeds, *cells])
    line = [f"{PUBLISHED[name]:.1f}" if name in PUBLISHED else "–" for name in scenarios]
    rows.append(["", "NavRL's published policy", "", *line])
    note = "Mean ± standard deviation over seeds, in %; of a single run its 95 % interval (Wilson) over flights."
    heads = ["group", "settings", "seeds", *scenarios]
    return join([table(heads, rows, "groups"), element("p", note, class_="note")])


def group_cell(scores: Sequence[Score]) -> Html:
    if not scores:
        return element("span", "–")
    if len(scores) == 1:
        return success_cell(scores[0])
    values = [score.success for score in scores]
    told = f" ± {percent(float(np.std(values, ddof=1)))} (n = {len(values)})"
    return element("span", element("b", percent(float(np.mean(values)))), element("small", told), class_="value")


def noise_section(groups: Sequence[Group], scenarios: Sequence[str]) -> Html:
    """For each pair of groups and scenario a sentence that says whether they differ."""
    if len(groups) < 2:
        return nothing(
            "there is one group: its runs differ only in their seeds, so what differs in their scores is noise"
        )
    if not scenarios:
        return nothing("no evaluation yet")
    parts = []
    for a, b in pairs_of(groups):
        rows = [[element("b", name), *sentence(a, b, name)] for name in scenarios]
        parts += [element("h3", f"{b.name} against {a.name}"), table(["scenario", "", ""], rows, "noise")]
    note = (
        "Within noise: the 95 % interval of the difference includes 0. Of twenty comparisons one fails this by chance."
    )
    if any(len(group.by_seed(name)) < 2 for group in groups for name in scenarios):
        note += " An interval over flights knows nothing of how much runs differ by their seed alone: train more seeds."
    scored = {run.scored_at for group in groups for run in group.runs if run.scored_at is not None}
    if len(scored) > 1:
        span = f"{million(min(scored))} to {million(max(scored))}"
        note += f" The runs were not trained equally long: scores are after {span} frames."
    if len(groups) > PAIRWISE:
        note += f" There are more than {PAIRWISE} groups, so each is compared with the first."
    return join([*parts, element("p", note, class_="note")])


def sentence(a: Group, b: Group, scenario: str) -> tuple[Html, str]:
    difference = compare(a, b, scenario)
    if difference is None:
        return badge("–", "even"), "not recorded: the numbers of flights, or the scores, are missing"
    mine, theirs = (float(np.mean([score.success for score in group.by_seed(scenario)])) for group in (a, b))
    how = f"({points(difference.value)} points, 95 % interval {points(difference.low)} to {points(difference.high)};"
    how += f" {difference.method})"
    said = f"{b.name} has {percent(theirs)} % and {a.name} {percent(mine)} %: "
    if difference.within_noise:
        said += "the difference is within noise"
    else:
        said += f"{b.name} is {'better' if difference.value > 0 else 'worse'}, by more than noise"
    return verdict(difference), f"{said} {how}."


def comparison_curves(
    page: Page, groups: Sequence[Group], scenarios: Sequence[str], colours: Mapping[str, str]
) -> list[Html]:
    wanted = {f"eval/{name}/success": (f"{name}: success on unseen maps, %", PUBLISHED.get(name)) for name in scenarios}
    wanted["flights/success"] = ("success of training flights, while exploring, %", None)
    out = []
    for metric, (title, line) in wanted.items():
        series = [one for group in groups for one in group_series(page, group, metric, colours[group.name])]
        if series:
            lines = [] if line is None else [{"y": line, "colour": None}]
            out.append(page.chart(title, series, low=0, high=100, lines=lines))
    if not out:
        return [nothing("metrics.csv: not recorded")]
    note = "Thin: runs. Thick: mean of a group, with a band of one standard deviation over its seeds. Dotted: NavRL."
    return [toolbar(), element("div", *out, class_="pairs-of-charts"), element("p", note, class_="note")]


def group_series(page: Page, group: Group, metric: str, colour: str) -> list[dict]:
    """Curves of a group: its runs, their mean, and what the band lies between."""
    out, all_rows = [], [merged(run.rows) for run in group.runs]
    for run, rows in zip(group.runs, all_rows, strict=True):
        known = [row for row in rows if metric in row]
        if len(group.runs) > 1 and known:
            x = page.table_of(known)
            y = numbers([row[metric] for row in known], 100)
            out.append({"label": run.name, "table": x, "y": y, "colour": colour, "faint": True, "quiet": True})
    means = {axis: mean_and_spread([curve(rows, key, metric) for rows in all_rows]) for axis, key in AXES.items()}
    if not len(means["frames"][0]):
        return out
    x = page.table(means["frames"][0], means["minutes"][0])
    mean = {"label": group.name, "table": x, "colour": colour, "width": 2.5, "points": len(means["frames"][0]) < 60}
    out.append(mean | {"y": {axis: numbers(y, 100) for axis, (_, y, _) in means.items()}})
    if len(group.runs) > 1:
        for side in (1, -1):
            edge = {axis: numbers(y + side * spread, 100) for axis, (_, y, spread) in means.items()}
            kind = {"label": "spread", "table": x, "colour": colour, "quiet": True, "edge": side}
            out.append(kind | {"y": edge})
    return out


def changed_table(groups: Sequence[Group], changed: Mapping[str, Sequence[str]]) -> Html:
    unknown = any(group.runs[0].learning is None for group in groups)
    if not changed:
        return nothing("not recorded for every run" if unknown else "none: the runs differ only in their seeds")
    rows = [[element("code", key), *(element("code", value) for value in values)] for key, values in changed.items()]
    heads = ["setting", *(group.name for group in groups)]
    note = element("p", f"{UNKNOWN}: not recorded.", class_="note") if unknown else Html()
    return join([table(heads, rows, "settings"), note])


def runs_table(groups: Sequence[Group], scenarios: Sequence[str], colours: Mapping[str, str]) -> Html:
    rows = []
    for group in groups:
        for run in group.runs:
            told = [million(run.frames), clock(run.seconds) if run.seconds else "–"]
            told += [f"{run.speed:,.0f}" if run.speed else "–"]
            scores = [percent(run.scores[name].success) if name in run.scores else "–" for name in scenarios]
            machine = run.machine.get("CPU") or run.machine.get("processor") or "–"
            name = element("span", element("b", run.name), " ", status(run))
            rows.append([chip(group, colours), name, run.seed or "–", *told, *scores, machine, (run.commit or "–")[:9]])
    heads = ["group", "run", "seed", "frames", "time", "frames/s", *scenarios, "machine", "commit"]
    return table(heads, rows, "runs")
