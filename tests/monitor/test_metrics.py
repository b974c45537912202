"""The metrics file stays readable when columns appear and when the disk fails."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from navrl.monitor.curves import draw_comparison, draw_curves, series
from navrl.monitor.flights import RecentFlights
from navrl.monitor.metrics import CsvLogger, TensorBoardLogger, read_rows, table_rows
from navrl.schema import OUTCOMES


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


def result(**changes) -> dict:
    """Of an evaluation, as `summarize` has it."""
    names = (*OUTCOMES, "speed", "path_ratio", "time_to_goal")
    return dict.fromkeys(names, 0.2) | {f"{name}_ci95": [0.1, 0.3] for name in names} | {"episodes": 64} | changes


def test_a_table_has_every_figure_and_its_interval() -> None:
    results = {"crossing-350-80": result(), "borders-0-80": result(time_to_goal=None, time_to_goal_ci95=None)}
    columns, rows = table_rows(results, 1000)
    first, second = (dict(zip(columns, row, strict=True)) for row in rows)
    assert first["scenario"] == "crossing-350-80" and first["frames"] == 1000 and first["flights"] == 64
    assert {*OUTCOMES, "speed", "time_to_goal"} < set(columns)
    assert first["success"] == 0.2 and first["success ±"] == pytest.approx(0.1)
    assert second["time_to_goal"] is None and second["time_to_goal ±"] is None


def test_tensorboard_shows_numbers_pictures_animations_and_tables(tmp_path) -> None:
    noise = [Image.fromarray(np.full((30, 40, 3), 60 * k, np.uint8)) for k in range(4)]
    noise[0].save(tmp_path / "a.gif", save_all=True, append_images=noise[1:])
    noise[1].save(tmp_path / "a.png")
    logger = TensorBoardLogger(tmp_path / "tensorboard")
    for frames in (10, 20):
        logger.log({"losses/entropy": frames / 10}, frames)
        logger.media("media/picture", tmp_path / "a.png", frames)
        logger.media("media/video", tmp_path / "a.gif", frames)
        logger.table({"crossing-350-80": result(time_to_goal=None, time_to_goal_ci95=None)}, frames)
        logger.policy(b"weights", {}, best=True)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("losses/entropy")] == [(10, 1), (20, 2)]
    assert [(e.step, e.width, e.height) for e in events.Images("media/picture")] == [(10, 40, 30), (20, 40, 30)]
    shown = events.Images("media/video")
    assert [(e.step, e.width, e.height) for e in shown] == [(10, 40, 30), (20, 40, 30)]
    assert shown[0].encoded_image_string == (tmp_path / "a.gif").read_bytes()
    with Image.open(io.BytesIO(shown[0].encoded_image_string)) as animation:
        assert getattr(animation, "n_frames", 1) == 4
    text = events.Tensors("media/table/text_summary")[0].tensor_proto.string_val[0].decode()
    head, rule, row = text.splitlines()
    assert head.startswith("| scenario | frames | flights | success | success ± |") and set(rule) <= set("| -")
    assert row.startswith("| crossing-350-80 | 10 | 64 | 0.200 | 0.100 |") and row.endswith("| – | – |")
    assert len({line.count("|") for line in (head, rule, row)}) == 1


def test_recent_flights_forget() -> None:
    flights = RecentFlights(window=4)
    assert flights.means() == {}
    flights.extend({"success": np.zeros(4)})
    flights.extend({"success": np.ones(3)})
    assert flights.means() == {"flights/success": 0.75}
