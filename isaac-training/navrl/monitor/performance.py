"""Time and memory use of a run: nested timers, a summary, a trace for Perfetto."""

from __future__ import annotations

import functools
import json
import logging
import os
import resource
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType

import numpy as np
import psutil
import torch

from navrl.io.contents import MapOf, Number
from navrl.io.files import open_file

log = logging.getLogger("navrl")

PERFORMANCE_STATE = {  # of `PerformanceMonitor.state()` in a file
    "elapsed": Number(0, 1e10), "timers": MapOf([Number(0, 1e12), Number(0, 1e15, whole=True)], 1000, r"[\w /.-]+"),
}  # fmt: skip
KEPT = 1000  # durations kept per timer
GROWTH_WINDOWS, GROWTH_MB = 5, 50.0  # warn if memory grows in so many windows in a row, by so much


class Timer:
    """One node in the tree of timers; a context manager. On CUDA it measures device time, read later."""

    __slots__ = (
        "_began",
        "_monitor",
        "_pending",
        "_started",
        "children",
        "count",
        "durations",
        "parent",
        "path",
        "total",
    )

    def __init__(self, monitor: PerformanceMonitor, parent: Timer | None, path: str) -> None:
        self._monitor, self.parent, self.path = monitor, parent, path
        self.children: dict[str, Timer] = {}
        self.durations: deque[float] = deque(maxlen=KEPT)
        self.total, self.count, self._began = 0.0, 0, 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def __enter__(self) -> Timer:
        monitor = self._monitor
        monitor._place.current = self
        if monitor._cuda:
            self._started = _event()
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ended = time.perf_counter()
        monitor = self._monitor
        monitor._place.current = self.parent or self  # only a root has none, and roots are not entered
        if monitor._cuda:
            self._pending.append((self._started, _event()))
        else:
            self.add(ended - self._began)
        if monitor._events is not None:
            monitor._events.append((self.path, self._began, ended, threading.get_native_id()))

    def add(self, seconds: float) -> None:
        self.durations.append(seconds)
        self.total += seconds
        self.count += 1

    def collect(self) -> None:
        """Add the measurements the device has finished, without waiting for the rest."""
        while self._pending and self._pending[0][1].query():
            began, ended = self._pending.popleft()
            self.add(began.elapsed_time(ended) / 1e3)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class PerformanceMonitor:
    """Measures blocks of `with monitor.timer("update"):`; nested timers become children, as in "collect/policy".

    Every thread has its own tree. A timer costs about a microsecond; nothing here waits for a device.
    """

    def __init__(self, device: str = "cpu", trace: Path | None = None) -> None:
        self._cuda = device.startswith("cuda")
        self._roots: list[Timer] = []
        self._growing = threading.Lock()  # a thread may add a timer while another lists them all
        self._before: dict[str, tuple[float, int]] = {}  # total and count per timer, before a resume
        self._place = _Place(self)
        self._began = time.perf_counter()
        self._memory: deque[float] = deque(maxlen=GROWTH_WINDOWS + 1)
        self._samples = [0.0, 0]  # sum and number since the last window
        self._warned = False
        self._process = psutil.Process()
        self._trace = trace
        self._events: list[tuple[str, float, float, int]] | None = None if trace is None else []

    # --- measuring ----------------------------------------------------------------------------------------------

    def timer(self, name: str) -> Timer:
        """Return the timer `name` inside the current one, for use in a `with` statement."""
        here = self._place.current
        return here.children.get(name) or self._new(here, name)

    def watch(self, thing: object, method: str, name: str) -> None:
        """Time every call of a method of this one object."""
        call = getattr(thing, method)

        @functools.wraps(call)
        def timed(*arguments, **options):
            with self.timer(name):
                return call(*arguments, **options)

        setattr(thing, method, timed)

    def _new(self, parent: Timer, name: str) -> Timer:
        timer = Timer(self, parent, f"{parent.path}/{name}" if parent.path else name)
        with self._growing:
            return parent.children.setdefault(name, timer)

    # --- reporting ----------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds of this run, including those before a resume."""
        return time.perf_counter() - self._began

    def get_stats(self, window: int = 100) -> dict[str, dict[str, float]]:
        """Return mean, std, min, max, p50, p95 (s) of the last `window` calls and share of wall time, per timer."""
        out: dict[str, dict[str, float]] = {}
        totals = self._totals()
        for timer in self._timers():
            last = np.array([*timer.durations][-window:])
            if len(last):
                p50, p95 = np.percentile(last, [50, 95])
                total, count = totals.get(timer.path, (timer.total, timer.count))  # added since by another thread
                out[timer.path] = {
                    "mean": float(last.mean()), "std": float(last.std()), "min": float(last.min()),
                    "max": float(last.max()), "p50": float(p50), "p95": float(p95),
                    "share": total / self.elapsed, "count": count,
                }  # fmt: skip
        return out

    def get_summary(self, window: int = 100) -> str:
        """Format the statistics as a table."""
        lines = [
            f"{'where the time goes':32}  share     mean      p50      p95      max  ms of the last {window} calls"
        ]
        for path, s in self.get_stats(window).items():
            indent = "  " * path.count("/") + path.rpartition("/")[2]
            ms = " ".join(f"{1e3 * s[key]:8.2f}" for key in ("mean", "p50", "p95", "max"))
            lines.append(f"{indent:32} {100 * s['share']:5.1f} % {ms}")
        return "\n".join(lines)

    def shares(self) -> dict[str, float]:
        """Return the share of wall time per outermost timer."""
        return {path: total / self.elapsed for path, (total, _) in self._totals().items() if "/" not in path}

    def memory(self, buffers: int = 0) -> dict[str, float]:
        """Return current memory in MB: of the process, of the device, and of the given `buffers` (bytes)."""
        resident = self._process.memory_info().rss / 1e6
        self._samples = [self._samples[0] + resident, self._samples[1] + 1]
        out = {"perf/memory_mb": resident, "perf/buffers_mb": buffers / 1e6}
        if self._cuda:
            out["perf/cuda_mb"] = torch.cuda.memory_allocated() / 1e6
        return out

    def end_window(self) -> dict[str, float]:
        """Return `perf/*` for a logger and check memory growth; call every hundred iterations or so."""
        total, count = self._samples
        if count:
            self._memory.append(total / count)
            self._samples = [0.0, 0]
        rises = np.diff(self._memory)
        if not self._warned and len(rises) == GROWTH_WINDOWS and (rises > 0).all() and rises.sum() > GROWTH_MB:
            self._warned = True
            log.warning("memory grows steadily: %.0f MB more, now %.0f MB", rises.sum(), self._memory[-1])
        out = {}
        for path, s in self.get_stats().items():
            out |= {f"perf/{path}_ms": 1e3 * s["mean"], f"perf/{path}_share": s["share"]}
        return out

    def write_trace(self) -> None:
        """Append new events to the trace: a JSON array that need not be closed, so a crash costs nothing."""
        if not self._trace or not self._events:
            return
        events, self._events = self._events, []
        process = os.getpid()
        with open_file(self._trace, "a") as file:
            file.write("" if file.tell() else "[\n")
            for path, began, ended, thread in events:
                span = {"ts": 1e6 * (began - self._began), "dur": 1e6 * (ended - began), "pid": process, "tid": thread}
                file.write(json.dumps({"name": path.rpartition("/")[2], "cat": path, "ph": "X", **span}) + ",\n")

    # --- resuming -----------------------------------------------------------------------------------------------

    def state(self) -> dict:
        """Return what has been counted so far."""
        return {"elapsed": self.elapsed, "timers": {path: list(sums) for path, sums in self._totals().items()}}

    def load_state(self, state: dict) -> None:
        """Continue counting from `state()`."""
        self._began = time.perf_counter() - state["elapsed"]
        self._before = {path: (total, count) for path, (total, count) in state["timers"].items()}

    def _totals(self) -> dict[str, tuple[float, int]]:
        """Return seconds and calls per timer, over all threads and resumes of a run."""
        out = dict(self._before)
        for timer in self._timers():
            timer.collect()
            total, count = out.get(timer.path, (0.0, 0))
            out[timer.path] = total + timer.total, count + timer.count
        return out

    def _timers(self) -> list[Timer]:
        """List every timer, parents before their children."""
        with self._growing:
            out, queue = [], [timer for root in self._roots for timer in root.children.values()]
            while queue:
                timer = queue.pop(0)
                out.append(timer)
                queue = [*timer.children.values(), *queue]
            return out


class _Place(threading.local):
    """Current position of a thread in its tree of timers."""

    def __init__(self, monitor: PerformanceMonitor) -> None:
        thread = threading.current_thread()
        self.current = Timer(monitor, None, "" if thread is threading.main_thread() else thread.name)
        monitor._roots.append(self.current)


def peak_memory_mb() -> float:
    """The most memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
