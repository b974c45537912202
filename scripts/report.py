"""Compare training runs: a table of their last scores, and their learning curves in one picture.

navrl report runs/<date>/<time> [more runs …] output=report.png

The picture shows every run, their mean and spread, and NavRL's published policy, over minutes of training.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from navrl.cli import command, fail, options
from navrl.monitor.console import clock
from navrl.monitor.curves import draw_comparison
from navrl.monitor.metrics import read_rows

PICTURES = (".png", ".pdf", ".svg", ".jpg")


@command
def main() -> None:
    given = options(__doc__, "runs", runs=[], output="report.png")
    if not given.runs:
        fail("runs=[]: give at least one run directory (--help shows how)")
    runs = {}
    for run in given.runs:
        if not (Path(run) / "metrics.csv").is_file():
            fail(f"runs={run}: is not a run directory (it has no metrics.csv)")
        runs[run] = read_rows(Path(run) / "metrics.csv")
    output = Path(given.output)
    if output.suffix not in PICTURES or output.is_dir():
        fail(f"output={output}: must be a file that ends in {', '.join(PICTURES)}")
    if not output.absolute().parent.is_dir():
        fail(f"output={output}: the directory does not exist")
    Console().print(results(runs))
    try:
        draw_comparison(output, runs)
    except OSError as error:
        fail(f"output={output}: {error.strerror or error}")
    print(f"drawn: {output}")


def results(runs: dict[str, list[dict[str, float]]]) -> Table:
    """One row per run: how long it trained, how fast, and its last success on unseen maps, in %."""
    scenarios = sorted({key for rows in runs.values() for row in rows for key in row if key.startswith("eval/")})
    table = Table(caption="success on unseen maps at the last evaluation, %", box=box.SIMPLE_HEAD)
    table.add_column("run")
    for heading in ("M frames", "time", "frames/s", *(key.split("/")[1] for key in scenarios)):
        table.add_column(heading, justify="right")
    for run, rows in runs.items():
        last = {key: value for row in rows for key, value in row.items()}  # of every metric, the latest
        frames, minutes = last.get("frames", 0), last.get("charts/minutes", 0)
        numbers = f"{frames / 1e6:.1f}", clock(60 * minutes), f"{frames / (60 * minutes):,.0f}" if minutes else "–"
        table.add_row(run, *numbers, *(f"{100 * last[key]:.1f}" if key in last else "–" for key in scenarios))
    return table


if __name__ == "__main__":
    main()
