"""Draw the learning curves of one or more runs into one picture: every run, their mean, and NavRL's published policy.

python scripts/curves.py runs/<date>/<time> [more runs ...] output=curves.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from navrl.monitor.curves import draw_comparison
from navrl.monitor.metrics import read_rows


def main(arguments: list[str]) -> None:
    output = Path(next((a.partition("=")[2] for a in arguments if a.startswith("output=")), "curves.png"))
    runs = [Path(a) for a in arguments if not a.startswith("output=")]
    for run in runs:
        if not (run / "metrics.csv").is_file():
            sys.exit(f"error: {run} is not a run directory (it has no metrics.csv)")
    if not runs:
        sys.exit(__doc__)
    draw_comparison(output, {str(run): read_rows(run / "metrics.csv") for run in runs})
    print(output)


if __name__ == "__main__":
    main(sys.argv[1:])
