"""Waiting asleep while other programs want the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch

from navrl.native.sharing import SharedCores

BUSY = "while True: pass"


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="torch has one thread here, which waits for nobody")
def test_a_busy_neighbour_is_noticed_and_forgotten() -> None:
    def teams() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "idle team"]

    before = torch.arange(1 << 18, dtype=torch.float64).cumsum(0)
    with SharedCores() as cores:
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in os.sched_getaffinity(0)]
        try:
            assert wait_for(lambda: cores.crowded) and teams()
            assert torch.equal(before, torch.arange(1 << 18, dtype=torch.float64).cumsum(0))
        finally:
            for process in busy:
                process.kill()
                process.wait()
        assert wait_for(lambda: not cores.crowded) and not teams()
    assert not cores._watcher.is_alive()


def test_one_thread_needs_no_watcher() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with SharedCores() as cores:
            assert not cores._watcher.is_alive()
    finally:
        torch.set_num_threads(threads)
