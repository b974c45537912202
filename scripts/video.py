"""Fly a policy over maps it has never seen, and draw the flights worth seeing as a video.

navrl video
navrl video policy=runs/2026-11-16/18-31-09/policy.pt scenario=borders-350-120 output=mine.mp4
navrl video policy=navrl video.flights=8 video.speed=1

`policy` is a file, or one of: default (comes with navrl), navrl (NavRL's published one), straight, hover, random.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from navrl.checkpoint.stop import StopRequest
from navrl.cli import hydra_command
from navrl.settings import SEED, ConfigError, read, setting
from navrl.sim.scene import SceneSettings
from navrl.sim.simulator import SimSettings
from navrl.task.env import TaskSettings
from navrl.task.evaluation import MAX_EPISODES, EvaluationSettings, Evaluator, Flights, Scenario, scenarios
from navrl.train.build import named_policy
from navrl.train.settings import check_keys, plain, read_sim
from navrl.view.video import check_video, write_video


def one_scenario(value: Any, key: str) -> Scenario:
    """Parse a scenario."""
    first, *others = scenarios(value, key)
    if others:
        raise ConfigError(key, value, "a video shows one; start it once for each")
    return first


def video_file(value: Any, key: str) -> Path:
    """Parse the name of the file to write."""
    path = Path(str(value))
    if path.suffix != ".mp4" or path.is_dir():
        raise ConfigError(key, value, "must be a file that ends in .mp4")
    if not path.absolute().parent.is_dir():
        raise ConfigError(key, value, "the directory does not exist")
    return path


def frame_size(value: Any, key: str) -> tuple[int, int]:
    """Parse width and height in pixels."""
    good = isinstance(value, list | tuple) and len(value) == 2
    good = good and all(type(v) is int and v % 2 == 0 and 120 <= v <= 4096 for v in value)
    if not good:
        raise ConfigError(key, value, "must be two even numbers of pixels between 120 and 4096")
    return value[0], value[1]


@dataclass(frozen=True, kw_only=True)
class VideoSettings:
    """Everything this script is told. `scene` is only checked: the scenario says what is flown."""

    policy: str = setting("policy")
    scenario: Scenario = setting("scenario", parse=one_scenario)
    output: Path = setting("output", parse=video_file)
    episodes: int = setting("eval.episodes", 1, MAX_EPISODES)
    maps: int = setting("eval.maps", 1, MAX_EPISODES)
    seed: int = setting("eval.seed", *SEED)
    flights: int = setting("video.flights", 1, 256)
    fps: int = setting("video.fps", 1, 120)
    speed: float = setting("video.speed", 0.05, 50)
    size: tuple[int, int] = setting("video.size", parse=frame_size)
    sim: SimSettings
    scene: SceneSettings
    task: TaskSettings

    @property
    def evaluation(self) -> EvaluationSettings:
        flown = {"scenarios": (self.scenario,), "episodes": self.episodes, "maps": self.maps, "seed": self.seed}
        return EvaluationSettings(**flown, picture=False, replay=False, video=True)


def read_video(cfg: DictConfig) -> VideoSettings:
    """Settings of a video, checked."""
    config = plain(cfg)
    check_keys(config, VideoSettings)
    return read(VideoSettings, config, sim=read_sim(config))


@hydra_command("video", __doc__)
def main(cfg: DictConfig) -> None:
    # Everything the user wrote is read, and may be refused, before anything is built.
    settings = read_video(cfg)
    check_video("output", settings.output)
    policy = named_policy(settings.policy, settings.sim, settings.task, settings.seed)
    evaluator = Evaluator(settings.evaluation, settings.sim, settings.task)

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TimeRemainingColumn()) as progress:
        bar = Bar(progress, str(settings.scenario))
        flights = evaluator.fly(settings.scenario, policy, report=bar.report, record=True)
        assert flights is not None, "nobody cancels it"
        frames = Bar(progress, "frames")
        draw(settings, flights, frames)
    output, megabytes = settings.output, settings.output.stat().st_size / 1e6
    print(f"drawn: {output}, {frames.done / settings.fps:.0f} s, {megabytes:.1f} MB")


def draw(settings: VideoSettings, flights: Flights, bar: Bar) -> None:
    """Write the video; Ctrl-C removes what there is of it."""
    title = f"{Path(settings.policy).name}   {settings.scenario}   {settings.episodes} flights"
    with StopRequest() as stop:
        written = write_video(
            settings.output,
            title,
            flights,
            fps=settings.fps,
            size=settings.size,
            flights_shown=settings.flights,
            speed=settings.speed,
            report=bar.report,
            cancelled=lambda: bool(stop),
        )
    if not written:
        print("interrupted; no video was written", file=sys.stderr)
        sys.exit(stop.exit_code)


class Bar:
    """A progress bar."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name
        self._bar, self.done = progress.add_task(name, total=None), 0

    def report(self, done: int, total: int, what: str = "") -> None:
        self.done = done
        self._progress.update(self._bar, description=f"{self._name}{what}", completed=done, total=total)


if __name__ == "__main__":
    main()
