"""scripts/video.py as a person runs it."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import imageio_ffmpeg
import psutil
import pytest
from commands import run, small_disk, start

from navrl.scripts.video import read_video
from navrl.settings import ConfigError
from navrl.train.settings import compose_config

SMALL = [
    "policy=straight", "scenario=crossing-100-16", "eval.episodes=8", "eval.maps=2", "video.flights=2", "video.fps=10",
    "video.size=[320,180]", "video.speed=4", "device=cpu",
]  # fmt: skip


def video(*overrides: str, cwd: Path) -> subprocess.CompletedProcess:
    return run(*SMALL, *overrides, cwd=cwd, script="video", small=False)


def test_a_video_and_nothing_else(tmp_path) -> None:
    done = video("output=flights.mp4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["flights.mp4"], "no runs/, nothing temporary"
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "flights.mp4"))
    assert frames and frames > 20 and seconds == pytest.approx(frames / 10)
    last = done.stdout.strip().splitlines()[-1]
    megabytes = (tmp_path / "flights.mp4").stat().st_size / 1e6
    assert last == f"drawn: flights.mp4, {seconds:.0f} s, {megabytes:.1f} MB"


@pytest.mark.parametrize(
    "override, words",
    [
        ("output=nowhere/video.mp4", "the directory does not exist"),
        ("policy=nowhere.pt", "no such file, and not one of default, navrl, straight"),
    ],
)
def test_mistakes_cost_one_line_and_leave_nothing(tmp_path, override: str, words: str) -> None:
    done = video(override, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: " + override) and words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "override, words",
    [
        ("output=video.avi", "must be a file that ends in .mp4"),
        ("scenario=crossing", "for example crossing-350-80"),
        ("scenario=[crossing-0-8,crossing-0-16]", "a video shows one"),
        ("video.size=[641,360]", "two even numbers"),
        ("video.size=640", "two even numbers"),
        ("video.flights=0", "between 1 and 256"),
        ("video.speed=fast", "must be a number"),
        ("+eval.scenarios=[crossing-0-8]", "no such key; did you mean scenario?"),
    ],
)
def test_what_is_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        read_video(compose_config("video", ["device=cpu", override]))
    assert str(caught.value).startswith(override.lstrip("+").partition("=")[0] + "=")


def test_ctrl_c_leaves_nothing(tmp_path) -> None:
    process = start(
        *SMALL, "video.fps=120", "video.speed=0.05", "video.size=[1280,720]", cwd=tmp_path, script="video", small=False
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "video.mp4.tmp").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.strip() == "interrupted; no video was written"
    assert [*tmp_path.iterdir()] == [] and len(children) == 1 and not children[0].is_running()


def test_a_full_disk_costs_one_line(tmp_path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk / "filler").write_bytes(bytes(9 * 1024 * 1024 - 64 * 1024))
        done = video(f"output={disk / 'video.mp4'}", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.strip().splitlines() == [f"error: {disk / 'video.mp4'}: No space left on device"]
        assert [path.name for path in disk.iterdir()] == ["filler"]
