"""Following a run: what is new in its metrics, its newest policy, hostile names."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from navrl.monitor.metrics import CsvLogger
from navrl.settings import ConfigError
from navrl.task.evaluation import hover
from navrl.view.watch import POINTS, FollowedRun, MetricsTail


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    log, tail = CsvLogger(tmp_path / "metrics.csv"), MetricsTail(tmp_path / "metrics.csv", lambda name: name == "a")
    assert not tail.read()  # there is none yet
    for frames in range(3):
        log.log({"a": frames / 2, "b": 7.0}, frames * 1_000_000)
    assert tail.read() and tail.curves == {"a": [(0.0, 0.0), (1.0, 0.5), (2.0, 1.0)]} and tail.last["b"] == 7.0
    assert not tail.read()
    log.log({"a": 5.0, "b": 8.0}, 3_000_000)
    assert tail.read() and tail.curves["a"][-1] == (3.0, 5.0)
    log.log({"a": 6.0, "c": 9.0}, 4_000_000)  # another column: the file is written anew
    assert tail.read() and [x for x, _ in tail.curves["a"]] == [0, 1, 2, 3, 4] and tail.last["c"] == 9.0


def test_a_line_that_is_not_finished_waits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("frames,a\n1000000,0.5\n20000")
    tail = MetricsTail(path, lambda name: name == "a")
    assert tail.read() and tail.curves == {"a": [(1.0, 0.5)]}
    with path.open("a") as file:
        file.write("00,0.75\nnonsense,x\n-5,1\n3000000,nan\n")
    assert tail.read() and tail.curves == {"a": [(1.0, 0.5), (2.0, 0.75)]}


def test_long_runs_are_thinned(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("frames,a\n" + "".join(f"{k * 1000},{k}\n" for k in range(200_000)))
    tail = MetricsTail(path, lambda name: name == "a")
    looks = sum(tail.read() for _ in range(50))
    assert 2 <= looks < 50 and POINTS / 2 < len(tail.curves["a"]) <= 2 * POINTS
    assert tail.curves["a"][-1][1] > 199_000


@pytest.fixture
def server() -> Iterator:
    """A page without flights."""
    viser = pytest.importorskip("viser", reason="viser is not installed (extra view)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = viser.ViserServer("127.0.0.1", port, verbose=False)
    yield server
    server.stop()


@pytest.fixture
def now(monkeypatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr("navrl.view.watch.time.monotonic", lambda: clock[0])
    return clock


def test_the_newest_policy_is_picked_up(tmp_path: Path, now: list[float], server) -> None:
    loaded = []

    def load(name: str):
        loaded.append(name)
        if len(loaded) == 2:
            raise ConfigError("policy", name, "is damaged")
        return hover

    (tmp_path / "policy.pt").write_bytes(b"1")
    followed = FollowedRun(tmp_path, "the policy", load)
    followed.build(server.gui)
    assert followed.refresh() is None and loaded == []  # that one flies already
    for expected in (hover, None, hover):
        now[0] += 10
        new = tmp_path / "policy.new"
        new.write_bytes(b"2")
        os.replace(new, tmp_path / "policy.pt")
        assert followed.refresh() is expected
        assert followed.refresh() is None
    assert len(loaded) == 3


def test_curves_and_hostile_names(tmp_path: Path, now: list[float], server, browser) -> None:
    run = tmp_path / "<img src=x onerror=alert(1)>{globalThis.hacked=1}"
    run.mkdir()
    log = CsvLogger(run / "metrics.csv")
    for k in range(5):
        log.log({"eval/crossing-350-80/success": k / 5, "flights/success": 0.5, "flights/timeout": 0.5}, k * 1000)
    log.log({"eval/<b onclick=x>{globalThis.hacked=1}/success": 0.5}, 5000)
    followed = FollowedRun(run, "policy", lambda _: hover)
    followed.build(server.gui)
    followed.refresh()
    plots = {name: plot for name, (_, plot) in followed._plots.items()}
    assert plots["scores"].series[1]["label"] == "crossing-350-80 (NavRL 38)"
    assert plots["scores"].data[1][:5].tolist() == [0, 20, 40, 60, 80] and len(plots["shares"].data) == 3
    page = browser.open(f"http://127.0.0.1:{server.get_port()}")
    page.get_by_text("<img src=x onerror=alert(1)>").wait_for()
    page.get_by_text("crossing-350-80 (NavRL 38)").first.wait_for()
    assert page.evaluate("globalThis.hacked") is None and page.locator("img[src=x]").count() == 0
    assert page.locator(".uplot canvas, canvas").count() >= 3  # two charts beside the scene
    log.log({"eval/borders-0-0/success": 1.0, "eval/crossing-350-80/success": 1.0}, 9000)
    now[0] += 10
    followed.refresh()
    assert len(followed._plots["scores"][1].data) == 4  # a curve that is new
    page.get_by_text("borders-0-0").first.wait_for()
