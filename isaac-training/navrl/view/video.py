"""Videos of recorded flights: frames go one by one into ffmpeg, so that memory does not grow with their length.

The encoder comes with the wheel of imageio-ffmpeg. No screen and no OpenGL are needed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from navrl.io.files import whole_file
from navrl.settings import ConfigError, one_line
from navrl.task.evaluation import Cancelled, Flights, Report
from navrl.view.frames import FlightPicture
from navrl.view.replay import choose

if TYPE_CHECKING:
    from PIL import Image

FPS, SIZE = 30, (1280, 720)
FLIGHTS, SPEED = 4, 2.0  # four flights at twice their speed: most of a minute
HOLD_SECONDS = 1.2  # for which the end of a flight is shown
GIF_SECONDS = 12.0  # a GIF grows by 0.35 MB per second
# Colours of HD, and said so: players that are not told may take those of old television.
HD = "scale=out_color_matrix=bt709:out_range=tv"
HD += ",setparams=range=tv:colorspace=bt709:color_primaries=bt709:color_trc=bt709"


def check_video(key: str = "eval.video", value: object = True) -> str:
    """The program that encodes; ConfigError about the setting that asks for a video if there is none."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        raise ConfigError(key, value, "needs the extra view: pip install 'navrl[view]' (or make setup)") from None


def write_video(
    path: Path,
    title: str,
    flights: Flights,
    fps: int = FPS,
    size: tuple[int, int] = SIZE,
    flights_shown: int = FLIGHTS,
    speed: float = SPEED,
    report: Report | None = None,
    cancelled: Cancelled | None = None,
) -> bool:
    """Draw the flights worth seeing into an mp4; `speed` times as fast as they were flown, `size` in even pixels.

    `report(done, total)` is called with numbers of frames. The file appears when it is complete; false if `cancelled()`
    turned true before, and there is none. A full disk or an encoder that dies is an OSError.
    """
    chosen = choose(flights, flights_shown)
    total = sum(len(frame_times(flights, index, fps, speed)) for index, _ in chosen)
    try:
        with whole_file(path, "wb") as file, Encoder(file, path, size, fps) as encoder:
            for done, frame in enumerate(_frames(title, flights, chosen, fps, size, speed), 1):
                if cancelled and cancelled():
                    raise _Cancelled
                encoder.write(frame)
                if report:
                    report(done, total)
    except _Cancelled:
        return False
    return True


class _Cancelled(Exception):
    """The file is not wanted any more."""


def frame_times(flights: Flights, index: int, fps: int, speed: float) -> list[float]:
    """The time of the flight that each of its frames shows, in s; infinity: its end, which is shown for a while."""
    assert flights.recording is not None
    seconds = (int(flights.recording.samples[index]) - 1) * flights.recording.seconds
    shown = [k * speed / fps for k in range(round(seconds / speed * fps))]
    return shown + [float("inf")] * max(1, round(HOLD_SECONDS * fps))


def _frames(
    title: str, flights: Flights, chosen: Sequence[tuple[int, str]], fps: int, size: tuple[int, int], speed: float
) -> Iterator[Image.Image]:
    for number, (index, reason) in enumerate(chosen, 1):
        pace = "" if speed == 1 else f"   {speed:g} × speed"
        picture = FlightPicture(flights, index, title, f"flight {number} of {len(chosen)}   {reason}{pace}", size)
        end = None
        for time in frame_times(flights, index, fps, speed):
            if time < float("inf"):
                yield picture.draw(time)
            else:
                end = end or picture.draw(time, ended=True)
                yield end


class Encoder:
    """ffmpeg, which turns frames into the file of that name. It is gone when the block ends, however that ends."""

    def __init__(self, file: IO, path: Path, size: tuple[int, int], fps: int) -> None:
        if size[0] % 2 or size[1] % 2:
            raise ValueError(f"size={size}: both must be even for H.264")
        self.path = path  # what the user knows it as
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size[0]}x{size[1]}", "-r", str(fps), "-i", "-"]
        codec = ["-c:v", "libx264", "-preset", "veryfast", "-crf", "25", "-pix_fmt", "yuv420p"]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in __exit__; a pipe could fill up
        self._process = subprocess.Popen(
            [*_ffmpeg(), *raw, "-vf", HD, *codec, "-movflags", "+faststart", "-f", "mp4", _name(file.name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C in a terminal is for us: ffmpeg would die before we are done with it
        )

    def write(self, frame: Image.Image) -> None:
        """Encode one more frame."""
        assert self._process.stdin
        try:
            self._process.stdin.write(frame.tobytes())
        except OSError:  # a broken pipe: why is known to ffmpeg
            raise self._failure() from None

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        process = self._process
        assert process.stdin
        try:
            if kind is not None:
                process.kill()
            with contextlib.suppress(OSError):  # what it could not flush: the exit code tells
                process.stdin.close()
            if process.wait() and kind is None:
                raise self._failure()
        finally:
            if process.poll() is None:  # interrupted while waiting
                process.kill()
                process.wait()
            self._errors.close()

    def _failure(self) -> OSError:
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        return _failure(self.path, code, self._errors.read())


def write_gif(
    video: Path, path: Path, width: int = 480, fps: int = 10, seconds: float = GIF_SECONDS, start: float = 0.0
) -> None:
    """A small animated GIF of `seconds` of a video, from `start` on.

    In two passes, first the palette: in one pass ffmpeg would keep every frame in memory.
    """
    part = ["-ss", f"{start:g}", "-t", f"{seconds:g}", "-i", _name(video)]
    small = f"fps={fps},scale={width}:-2:flags=lanczos"
    with tempfile.TemporaryDirectory() as folder, whole_file(path, "wb") as file:
        palette = _name(Path(folder) / "palette.png")
        for arguments in (
            [*part, "-vf", f"{small},palettegen=max_colors=128:stats_mode=diff", palette],
            [*part, "-i", palette, "-lavfi", f"{small}[x];[x][1:v]paletteuse=dither=none:diff_mode=rectangle",
             "-f", "gif", _name(file.name)],
        ):  # fmt: skip
            done = subprocess.run([*_ffmpeg(), *arguments], stdin=subprocess.DEVNULL, capture_output=True)
            if done.returncode:
                raise _failure(path, done.returncode, done.stderr)


def _ffmpeg() -> list[str]:
    return [check_video(), "-hide_banner", "-loglevel", "error", "-nostats", "-y"]


def _name(path: str | Path) -> str:
    """A file as ffmpeg takes it: never an option, a protocol or a pattern, whatever characters it has."""
    return "file:" + os.path.abspath(path)


def _failure(path: Path, code: int, errors: bytes) -> OSError:
    """What went wrong in ffmpeg, in one line."""
    text = errors.decode(errors="replace").strip()
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(number) in text:
            return OSError(number, os.strerror(number), str(path))
    why = one_line(text.splitlines()[-1]) if text else f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return OSError(errno.EIO, f"the video encoder failed: {why}", str(path))
