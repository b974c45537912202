"""Videos: decoded again with the same ffmpeg, and encoders that die."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import psutil
import pytest
from PIL import Image

from navrl.settings import ConfigError
from navrl.view.replay import choose
from navrl.view.video import HOLD_SECONDS, check_video, frame_times, write_gif, write_video


def small(**changes) -> dict[str, Any]:
    """Options of a video that is quickly drawn."""
    return {"fps": 10, "size": (320, 180), "flights_shown": 2, "speed": 4.0} | changes


def decoded(path: Path) -> tuple[dict, np.ndarray]:
    """What the file says of itself, and its frames (n, height, width, 3)."""
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    width, height = about["size"]
    return about, np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


def encoders() -> list[psutil.Process]:
    """Children of this process that encode."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "ffmpeg" in child.name() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def video(flights, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("video") / "flights.mp4"
    assert write_video(path, "straight   crossing-200-80", flights, **small())
    return path


def test_it_is_the_video_that_was_asked_for(flights, video) -> None:
    about, frames = decoded(video)
    assert about["codec"] == "h264" and about["pix_fmt"].startswith("yuv420p") and about["fps"] == 10
    chosen = choose(flights, 2)
    assert len(chosen) == 2
    assert frames.shape == (sum(len(frame_times(flights, index, 10, 4.0)) for index, _ in chosen), 180, 320, 3)
    assert frames.std(axis=(1, 2, 3)).min() > 20, "no frame is blank"
    content = video.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat"), "players start before they have all of it"
    assert [*video.parent.iterdir()] == [video]


def test_it_moves_until_the_flight_ends_and_stands_still_then(flights, video) -> None:
    _, frames = decoded(video)
    change = np.abs(np.diff(frames[:, :, :200].astype(int), axis=0)).mean(axis=(1, 2, 3))  # of the chase view
    (index, _), held = choose(flights, 2)[0], round(HOLD_SECONDS * 10)
    flown = len(frame_times(flights, index, 10, 4.0)) - held
    assert change[1 : flown - 2].min() > 1.0
    assert change[flown + 1 : flown + held - 2].max() < 1.0


def test_frames_keep_the_time(flights) -> None:
    index = choose(flights, 1)[0][0]
    for fps, speed in itertools.product((10, 30), (0.5, 1.0, 3.0)):
        times = frame_times(flights, index, fps, speed)
        shown = [t for t in times if t < np.inf]
        assert np.allclose(np.diff(shown), speed / fps)
        assert len(shown) / fps * speed == pytest.approx(flights.length[index], abs=0.064 + speed / fps)
        assert len(times) - len(shown) == round(HOLD_SECONDS * fps)


@pytest.mark.parametrize(
    "name", ["-y.mp4", "http:evil.mp4", "a%03d b'\"$(x).mp4", "é漢.mp4", "concat:a|b.mp4", "x.gif.mp4"]
)
def test_names_and_titles_of_any_kind(flights, tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    title = "<script>alert(1)</script>\n\x00\x1b[31m ‮ 漢字 \U0001f600 é́ %s {x} [b]" * 30
    assert write_video(Path(name), title, flights, **small(flights_shown=1, speed=30.0))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    frames, _ = imageio_ffmpeg.count_frames_and_secs("file:" + str(tmp_path / name))
    assert frames and frames > 3


class Interfering:
    """A report that does something at the third frame."""

    def __init__(self, action) -> None:
        self.action, self.calls = action, 0

    def __call__(self, done: int, total: int, what: str = "") -> None:
        self.calls += 1
        assert done == self.calls <= total
        if done == 3:
            self.action()


def test_an_encoder_that_dies(flights, tmp_path) -> None:
    path = tmp_path / "x.mp4"

    def kill() -> None:
        (encoder,) = encoders()
        encoder.kill()
        while encoder.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)

    report = Interfering(kill)
    with pytest.raises(OSError, match="the video encoder failed: killed by signal 9") as caught:
        write_video(path, "t", flights, **small(), report=report)
    assert caught.value.filename == str(path) and "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == [] and not encoders() and report.calls < 10


def test_an_encoder_that_dies_at_the_end(flights, tmp_path, monkeypatch) -> None:
    """All frames are in the pipe, and only the exit code tells."""
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\ncat > /dev/null\necho 'line one' >&2\necho 'out of order' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    with pytest.raises(OSError, match="the video encoder failed: out of order"):
        write_video(tmp_path / "x.mp4", "t", flights, **small())
    assert [*tmp_path.iterdir()] == [program]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_happens_meanwhile_no_file_and_no_process_is_left(
    flights, tmp_path, error: type[BaseException]
) -> None:
    path = tmp_path / "x.mp4"
    path.write_text("the one before")

    def interrupt() -> None:
        assert len(encoders()) == 1 and len([*tmp_path.iterdir()]) == 2
        raise error

    with pytest.raises(error):
        write_video(path, "t", flights, **small(), report=Interfering(interrupt))
    assert not encoders() and [*tmp_path.iterdir()] == [path] and path.read_text() == "the one before"


def test_it_can_be_cancelled(flights, tmp_path) -> None:
    frames = []
    report = lambda done, total, what="": frames.append(done)  # noqa: E731
    written = write_video(
        tmp_path / "x.mp4", "t", flights, **small(), report=report, cancelled=lambda: len(frames) >= 4
    )
    assert not written and len(frames) == 4 and [*tmp_path.iterdir()] == [] and not encoders()


def test_a_directory_that_is_not_there(flights, tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        write_video(tmp_path / "nowhere" / "x.mp4", "t", flights, **small())
    assert not encoders()


def test_sizes_that_h264_does_not_know(flights, tmp_path) -> None:
    with pytest.raises(ValueError, match="even"):
        write_video(tmp_path / "x.mp4", "t", flights, **small(size=(321, 180)))
    assert [*tmp_path.iterdir()] == []


def test_memory_does_not_grow_with_the_length(flights, tmp_path) -> None:
    """250 frames of 640 × 360 would be 170 MB."""
    used: list[int] = []
    process = psutil.Process()
    report = lambda done, total, what="": used.append(process.memory_info().rss)  # noqa: E731
    write_video(tmp_path / "x.mp4", "t", flights, fps=10, size=(640, 360), flights_shown=4, speed=1.0, report=report)
    assert len(used) > 250
    assert max(used[len(used) // 2 :]) - max(used[: len(used) // 4]) < 40e6


def test_a_gif(video, tmp_path) -> None:
    path = tmp_path / "small.gif"
    write_gif(video, path, width=160, fps=5, seconds=2.0)
    with Image.open(path) as gif:
        assert gif.size == (160, 90) and gif.n_frames in (9, 10, 11) and gif.info["duration"] == 200  # pyright: ignore[reportAttributeAccessIssue]
        first = np.asarray(gif.convert("RGB")).astype(int)
        gif.seek(8)
        assert np.abs(np.asarray(gif.convert("RGB")).astype(int) - first).mean() > 2
    assert [*tmp_path.iterdir()] == [path] and path.stat().st_size < 400_000


def test_a_gif_of_something_else(tmp_path) -> None:
    (tmp_path / "x.mp4").write_text("not a video")
    with pytest.raises(OSError, match="the video encoder failed") as caught:
        write_gif(tmp_path / "x.mp4", tmp_path / "x.gif")
    assert "\n" not in str(caught.value) and not (tmp_path / "x.gif").exists()


def test_without_the_extra_it_says_what_to_install(monkeypatch) -> None:
    assert Path(check_video()).exists()
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"^eval\.video=True: needs the extra view: pip install 'navrl\[view\]'"):
        check_video()
    with pytest.raises(ConfigError, match=r"^output=x\.mp4: needs the extra view"):
        check_video("output", "x.mp4")
