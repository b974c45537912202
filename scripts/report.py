"""Report on a training run, or compare several: a page with scores, learning curves, settings and times.

navrl report runs/<date>/<time>                          writes report.html into the run's directory
navrl report runs/<date>/<time> runs/… runs/…            compares runs: writes report.html here
navrl report runs/<date>/<time> runs/… output=report.png only their learning curves, as a picture (png, pdf, svg, jpg)

The page is one file that opens offline in any browser. Runs that differ only in their seed are one group, with mean and
spread; for each pair of groups it says whether they differ by more than noise. Every training run ends with its own
report.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from navrl.cli import command, fail, options
from navrl.monitor.console import clock
from navrl.monitor.curves import draw_comparison
from navrl.settings import one_line
from navrl.train.report import REPORT, is_run, read_run
from navrl.view.report import write_report
from navrl.view.runs import RunData, scenarios_of

PICTURES = (".png", ".pdf", ".svg", ".jpg")


@command
def main() -> None:
    given = options(__doc__, "runs", runs=[], output=None)
    if not given.runs:
        fail("runs=[]: give at least one run directory (--help shows how)")
    for run in given.runs:
        if not is_run(Path(run)):
            fail(f"runs={run}: is not a run directory (it has no metrics.csv)")
    paths = list({Path(run).resolve(): Path(run) for run in given.runs}.values())  # given twice is not a second run
    output = Path(given.output) if given.output else paths[0] / REPORT if len(paths) == 1 else Path(REPORT)
    if output.suffix not in (".html", *PICTURES) or output.is_dir():
        fail(f"output={output}: must be a file that ends in .html, {', '.join(PICTURES)}")
    if not output.absolute().parent.is_dir():
        fail(f"output={output}: the directory does not exist")
    runs = [read_run(path) for path in paths]
    console = Console()
    if not console.is_terminal:
        console.width = 160  # nobody resizes a log file
    console.print(results(runs))
    try:
        if output.suffix == ".html":
            write_report(output, runs)
        else:
            draw_comparison(output, {str(run.path): run.rows for run in runs})
    except OSError as error:
        fail(f"output={output}: {error.strerror or error}")
    print(f"{'written' if output.suffix == '.html' else 'drawn'}: {output}")


def results(runs: Sequence[RunData]) -> Table:
    """One row per run: how long it trained, how fast, and its last success on unseen maps, in %."""
    scenarios = scenarios_of(runs)
    table = Table(caption="success on unseen maps at the last evaluation, %", box=box.SIMPLE_HEAD)
    table.add_column("run")
    for heading in ("M frames", "time", "frames/s", *scenarios):
        table.add_column(Text(heading), justify="right")  # of names nothing is markup
    for run in runs:
        told = f"{(run.frames or 0) / 1e6:.1f}", clock(run.seconds or 0), f"{run.speed:,.0f}" if run.speed else "–"
        scores = [f"{100 * run.scores[name].success:.1f}" if name in run.scores else "–" for name in scenarios]
        table.add_row(Text(one_line(str(run.path))), *told, *scores)
    return table


if __name__ == "__main__":
    main()
