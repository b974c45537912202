"""Commands as a person runs them, on the smallest run there is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = [
    "env.num_envs=64", "algo.training_frame_num=8", "algo.num_minibatches=4", "env.num_maps=2", "env.num_obstacles=20",
    "env_dyn.num_obstacles=8", "env.max_episode_length=120", "eval.scenarios=[crossing-20-8]", "eval.episodes=8",
    "eval.final_episodes=8", "eval.maps=2",
]  # fmt: skip


def start(
    *overrides: str, cwd: Path, script: str = "train", small: bool = True, **environment: str
) -> subprocess.Popen:
    command = [sys.executable, str(ROOT / f"scripts/{script}.py"), *(SMALL if small else []), *overrides]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=os.environ | environment, start_new_session=True, **pipes)


def run(*overrides: str, cwd: Path, **more) -> subprocess.CompletedProcess:
    process = start(*overrides, cwd=cwd, **more)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of 9 MB, for this test alone."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def start_and_wait(*overrides: str, cwd: Path, until: str = "runs/*/*/metrics.csv", **more) -> subprocess.Popen:
    """A run that will not end by itself, once it has written the file `until`."""
    process = start("max_frame_num=1e8", *overrides, cwd=cwd, **more)
    deadline = time.monotonic() + 120
    while not list(cwd.glob(until)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process
