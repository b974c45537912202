"""The metrics file stays readable when columns appear and when the disk fails."""

from __future__ import annotations

import csv

import pytest

from navrl.monitor.curves import draw_comparison, draw_curves, series
from navrl.monitor.flights import RecentFlights
from navrl.monitor.metrics import CsvLogger, read_rows


def test_new_columns(tmp_path) -> None:
    path = tmp_path / "metrics.csv"
    logger = CsvLogger(path)
    logger.log({"a": 1.0}, 10)
    logger.log({"a": 2.0, "b": 0.5}, 20)
    logger.log({"a": 3.0}, 30)
    rows = list(csv.DictReader(path.open()))
    assert [row["frames"] for row in rows] == ["10", "20", "30"]
    assert [row["b"] for row in rows] == ["", "0.5", ""]
    assert read_rows(path) == [{"frames": 10, "a": 1}, {"frames": 20, "a": 2, "b": 0.5}, {"frames": 30, "a": 3}]


def test_a_write_that_fails_is_made_good_by_the_next(tmp_path) -> None:
    logger = CsvLogger(tmp_path / "run" / "metrics.csv")
    for frames in (10, 20):  # the directory is not there
        with pytest.raises(OSError):
            logger.log({"a": 1.0}, frames)
    (tmp_path / "run").mkdir()
    logger.log({"b": 1.0}, 30)
    assert read_rows(logger.path) == [{"frames": 10, "a": 1}, {"frames": 20, "a": 1}, {"frames": 30, "b": 1}]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.csv"]


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


def test_curves_of_a_run_that_lost_its_metrics(tmp_path) -> None:
    """A run resumed without metrics.csv evaluates first: a score at a time that no row knows."""
    rows = [{"frames": 4e6, "eval/crossing-350-80/success": 0.5}]
    rows += [{"frames": 1e6 * k, "charts/minutes": float(k)} for k in range(5, 9)]
    rows.append({"frames": 8e6, "eval/crossing-350-80/success": 0.6})
    draw_comparison(tmp_path / "one.png", {"a": rows})
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_recent_flights_forget() -> None:
    import numpy as np

    flights = RecentFlights(window=4)
    assert flights.means() == {}
    flights.extend({"success": np.zeros(4)})
    flights.extend({"success": np.ones(3)})
    assert flights.means() == {"flights/success": 0.75}
