"""The table and the picture hold what they are given."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from navrl.monitor.flights import COLOURS, draw_flights, results_table
from navrl.schema import OUTCOMES
from navrl.sim.scene import generate_scene
from navrl.task.evaluation import Flights, summarize


def flights(outcome: np.ndarray) -> Flights:
    n = len(outcome)
    scene = generate_scene(0, 3, starts_per_map=n)
    rng = np.random.default_rng(0)
    return Flights(
        outcome, np.full(n, 20.0), np.full(n, 30.0), np.full(n, 29.0), np.full(n, 0.4),
        rng.uniform(-20, 20, (n, 50, 3)), np.arange(n) % 3, scene,
    )  # fmt: skip


def test_every_outcome_has_a_colour() -> None:
    assert tuple(COLOURS) == OUTCOMES


def test_table() -> None:
    results = {"crossing-350-80": summarize(flights(np.array([0, 0, 1, 4]))), "x": summarize(flights(np.array([1])))}
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(results_table(results, "title"))
    text = console.export_text()
    assert "crossing-350-80" in text and "50.0±" in text and "–" in text


def test_picture(tmp_path) -> None:
    import matplotlib.image

    flown = flights(np.arange(25) % 5)
    path = tmp_path / "flights.png"
    draw_flights(path, "title", flown)
    pixels = matplotlib.image.imread(path)[..., :3]
    for colour in COLOURS.values():
        wanted = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
        assert (np.abs(pixels - wanted).max(-1) < 0.12).any(), f"no line in {colour}"
