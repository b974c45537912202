"""Timers nest, add up, survive a resume, and write traces for Perfetto."""

from __future__ import annotations

import json
import logging
import threading
import time

import pytest

from navrl.monitor.performance import GROWTH_WINDOWS, PerformanceMonitor


def test_timers_nest_and_add_up() -> None:
    monitor = PerformanceMonitor()
    for _ in range(3):
        with monitor.timer("collect"):
            with monitor.timer("policy"):
                time.sleep(0.01)
            with monitor.timer("simulation"):
                time.sleep(0.02)
        with monitor.timer("policy"):
            pass
    stats = monitor.get_stats()
    assert list(stats) == ["collect", "collect/policy", "collect/simulation", "policy"]
    collect, policy, simulation = stats["collect"], stats["collect/policy"], stats["collect/simulation"]
    assert collect["count"] == 3 and collect["mean"] >= policy["mean"] + simulation["mean"] >= 0.03
    assert policy["min"] <= policy["p50"] <= policy["p95"] <= policy["max"] and policy["min"] >= 0.01
    assert 0 < policy["share"] < collect["share"] <= 1
    assert set(monitor.shares()) == {"collect", "policy"} and monitor.shares()["collect"] <= 1
    assert "  simulation" in monitor.get_summary()


def test_window() -> None:
    monitor = PerformanceMonitor()
    for pause in (0.05, 0.0, 0.0):
        with monitor.timer("a"):
            time.sleep(pause)
    assert monitor.get_stats(window=2)["a"]["max"] < 0.05 <= monitor.get_stats()["a"]["max"]


def test_exception_leaves_the_timer_tree_intact() -> None:
    monitor = PerformanceMonitor()
    with pytest.raises(ZeroDivisionError), monitor.timer("a"), monitor.timer("b"):
        1 / 0  # noqa: B018
    with monitor.timer("c"):
        pass
    assert set(monitor.get_stats()) == {"a", "a/b", "c"}


def test_watched_methods_and_other_threads() -> None:
    class Thing:
        def work(self, x: int) -> int:
            return x + 1

    monitor, thing = PerformanceMonitor(), Thing()
    monitor.watch(thing, "work", "working")

    def elsewhere() -> None:
        with monitor.timer("thread"):
            thing.work(1)

    with monitor.timer("main"):
        thread = threading.Thread(target=elsewhere, name="other")
        thread.start(), thread.join()
        assert thing.work(1) == 2
    assert set(monitor.get_stats()) == {"main", "main/working", "other/thread", "other/thread/working"}


def test_counting_continues_after_a_resume() -> None:
    first, second = PerformanceMonitor(), PerformanceMonitor()
    for _ in range(2):
        with first.timer("a"), first.timer("b"):
            time.sleep(0.01)
    second.load_state(json.loads(json.dumps(first.state())))
    with second.timer("a"), second.timer("b"):
        pass
    assert second.get_stats()["a/b"]["count"] == 3 and second.elapsed >= 0.02
    assert second.shares()["a"] > 0


def test_trace_format_for_perfetto(tmp_path) -> None:
    monitor = PerformanceMonitor(trace=tmp_path / "trace.json")
    for _ in range(2):
        with monitor.timer("outer"), monitor.timer("inner"):
            pass
        monitor.write_trace()
    text = (tmp_path / "trace.json").read_text()
    events = json.loads(text.rstrip(",\n") + "]")
    assert [event["name"] for event in events] == ["inner", "outer"] * 2
    inner, outer = events[:2]
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert all(event["ph"] == "X" and event["tid"] and event["pid"] for event in events)


def test_steady_memory_growth_is_reported_once(monkeypatch, caplog) -> None:
    monitor, size = PerformanceMonitor(), [1e9]

    class Info:
        @property
        def rss(self) -> float:
            return size[0]

    monkeypatch.setattr(monitor._process, "memory_info", Info)
    with caplog.at_level(logging.WARNING):
        for growth in ([0.0] * 10, [1e6, -1e6] * 5, [20e6] * (GROWTH_WINDOWS + 3)):
            for step in growth:
                size[0] += step
                memory = monitor.memory(buffers=2_000_000)
                assert memory["perf/memory_mb"] == size[0] / 1e6 and memory["perf/buffers_mb"] == 2.0
                monitor.end_window()
    assert len(caplog.records) == 1 and "memory grows steadily: 100 MB" in caplog.text


def test_metrics_for_loggers() -> None:
    monitor = PerformanceMonitor()
    with monitor.timer("a"):
        pass
    assert set(monitor.end_window()) == {"perf/a_ms", "perf/a_share"}


def test_a_thread_may_add_timers_while_they_are_listed() -> None:
    monitor, names = PerformanceMonitor(), [f"timer {k}" for k in range(3000)]

    def add() -> None:
        for name in names:
            with monitor.timer(name):
                pass

    thread = threading.Thread(target=add, name="prefetch")
    thread.start()
    while thread.is_alive():
        monitor.get_stats(), monitor.shares()
    thread.join()
    assert set(monitor.get_stats()) == {f"prefetch/{name}" for name in names}
