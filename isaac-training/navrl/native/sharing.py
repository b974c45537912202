"""Shares the cores with other programs.

OpenMP's threads (libgomp's, which torch and our kernels use) wait for work awake, 3 ms long: they answer at once, and a
training that has the machine for itself is fastest that way. Beside another busy program this is a disaster: a thread
that waits keeps a core from one that works, and two trainings on two cores together reach half the speed of one.

libgomp can wait less: when it manages more threads than there are cores, its threads spin a hundred turns (some 2 µs)
and then sleep. `SharedCores` watches what others use of our cores. While they want some, a second team of threads that
does nothing makes libgomp count more threads than cores; when they are gone, so is the team. What is computed does not
change.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

import psutil
import torch

from navrl.native.launch import openmp

INTERVAL = 1.0  # s between looks
SOME = 0.25  # cores that others must use beyond those that are free, to count
PATIENCE = 5  # looks without others before we wait awake again


class SharedCores:
    """A context in which OpenMP waits asleep while other programs want our cores."""

    def __init__(self) -> None:
        self.crowded = False
        self._cores = sorted(os.sched_getaffinity(0))
        self._process = psutil.Process()
        self._ended, self._released = threading.Event(), threading.Event()
        self._team: threading.Thread | None = None
        self._watcher = threading.Thread(target=self._watch, name="shared cores", daemon=True)

    def __enter__(self) -> SharedCores:
        if torch.get_num_threads() > 1 and openmp():  # one thread waits for nobody
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._release()

    def _watch(self) -> None:
        quiet, before = 0, self._used()
        while not self._ended.wait(INTERVAL):
            now = self._used()
            seconds = max(1e-3, now[0] - before[0])
            others = (now[1] - before[1] - (now[2] - before[2])) / seconds
            before = now
            wanted = others + torch.get_num_threads() - len(self._cores)
            quiet = 0 if wanted > SOME else quiet + 1
            if quiet == 0 and not self.crowded:
                self._crowd()
            elif quiet >= PATIENCE and self.crowded:
                self._release()

    def _used(self) -> tuple[float, float, float]:
        """Now, and seconds that our cores have been busy, and that this process has used."""
        cores = psutil.cpu_times(percpu=True)
        idle = sum(cores[k].idle + getattr(cores[k], "iowait", 0.0) for k in self._cores if k < len(cores))
        now, own = time.monotonic(), self._process.cpu_times()
        return now, now * len(self._cores) - idle, own.user + own.system

    def _crowd(self) -> None:
        self.crowded = True
        self._released.clear()
        self._team = threading.Thread(target=self._idle_team, name="idle team", daemon=True)
        self._team.start()

    def _idle_team(self) -> None:
        """A parallel region gives this thread a team of its own, which sleeps until the thread ends."""
        nothing = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p)  # what every thread of it computes
        ctypes.CDLL("libgomp.so.1").GOMP_parallel(nothing, None, ctypes.c_uint(len(self._cores) + 1), ctypes.c_uint(0))
        self._released.wait()

    def _release(self) -> None:
        self.crowded = False
        self._released.set()
        if self._team:
            self._team.join()
            self._team = None
