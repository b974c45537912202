"""The metrics file stays readable when columns appear and when a run goes on."""

from __future__ import annotations

import csv

from navrl.monitor.console import clock
from navrl.monitor.curves import draw_comparison, draw_curves, series
from navrl.monitor.flights import RecentFlights
from navrl.monitor.metrics import CsvLogger
from navrl.monitor.timers import PhaseTimers


def test_new_columns_and_going_on(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CsvLogger(path)
    logger.log({"a": 1.0}, 10)
    logger.log({"a": 2.0, "b": 0.5}, 20)
    again = CsvLogger(path)
    again.log({"a": 3.0}, 30)
    rows = list(csv.DictReader(path.open()))
    assert [row["frames"] for row in rows] == ["10", "20", "30"] or [float(r["frames"]) for r in rows] == [10, 20, 30]
    assert [row["b"] for row in rows] == ["", "0.5", ""]
    assert again.rows[0] == {"frames": 10.0, "a": 1.0}


def test_curves_are_drawn_from_any_rows(tmp_path) -> None:
    rows = [{"frames": k * 1e6, "flights/success": k / 40, "charts/SPS": 1e4} for k in range(40)]
    rows.append({"frames": 40e6, "eval/crossing-350-80/success": 0.5})
    draw_curves(tmp_path / "curves.png", "test", rows)
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    draw_curves(tmp_path / "none.png", "nothing yet", [])
    for row in rows:
        row["charts/minutes"] = row["frames"] / 2e6
    draw_comparison(tmp_path / "both.png", {"a": rows, "b": rows})
    draw_comparison(tmp_path / "empty.png", {"a": []})
    assert (tmp_path / "both.png").exists() and (tmp_path / "empty.png").exists()
    assert series(rows, "eval/crossing-350-80/success")[0].tolist() == [40.0]


def test_recent_flights_forget() -> None:
    import numpy as np

    flights = RecentFlights(window=4)
    assert flights.means() == {}
    flights.add({"success": np.zeros(4)})
    flights.add({"success": np.ones(3)})
    assert flights.means() == {"flights/success": 0.75}


def test_timers_share_out_the_time() -> None:
    timers = PhaseTimers()
    with timers("a"):
        sum(range(10_000))
    assert 0 < timers.shares()["a"] <= 1
    assert clock(3723) == "1:02:03" and clock(63) == "1:03"
