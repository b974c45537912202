"""Evaluations during training: scores, table, pictures, replays and the best policy, on maps never trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from navrl.checkpoint.stop import StopRequest
from navrl.io.files import write_text
from navrl.monitor.console import TrainingConsole, clock
from navrl.monitor.curves import draw_curves
from navrl.monitor.flights import draw_flights, results_table
from navrl.task.evaluation import EvaluationSettings, Evaluator, Flights, Scenario, join_flights, summarize
from navrl.train.saving import Saving
from navrl.train.settings import TrainSettings

DRAWN = 1500  # rows of metrics in a picture: more than it has pixels
# While training a video is short and small: 2 MB, of which a logger keeps every one, and a tenth of the time.
VIDEO = {"flights_shown": 2, "size": (960, 540), "fps": 20}
GIF = {"width": 400, "fps": 8}


def writers(
    settings: EvaluationSettings, **video: Any
) -> Iterator[tuple[str, str, Callable[[Path, str, Flights], Any]]]:
    """What an evaluation was asked to show of its flights: its kind, the suffix of the file, and who writes it.

    `video`: options of `write_video`, which returns false if it was cancelled.
    """
    if settings.picture:
        yield "picture", ".png", draw_flights
    if settings.replay:
        from navrl.view.replay import write_replay

        yield "replay", ".html", write_replay
    if settings.video:
        from navrl.view.video import write_video

        yield "video", ".mp4", partial(write_video, **video)


class PeriodicEvaluation:
    """Flies the EMA policy through the scenarios and records how it did. A request to stop cuts it short."""

    def __init__(self, settings: TrainSettings, saving: Saving, console: TrainingConsole, stop: StopRequest) -> None:
        self.settings, self.saving, self.console, self.stop = settings.evaluation, saving, console, stop
        # Isaac holds one world per process, so these flights use Warp; scripts/eval.py sim=isaac flies on Isaac.
        self.evaluator = Evaluator(settings.evaluation, replace(settings.sim, engine="warp"), settings.task)
        self._patience = 0.0  # s that a request to stop waits

    def run(self, episodes: int) -> None:
        """Evaluate on every scenario; the scores count, and the policy may be kept as the best."""
        if results := self._fly(self.settings.scenarios, episodes):
            self.saving.progress.scored.update(frames=self.saving.progress.frames, episodes=episodes)
            self.saving.save_best(sum(result["success"] for result in results.values()) / len(results))

    def quick_look(self) -> None:
        """Something to see for a person who stopped the run before its first evaluation: a few flights, 5 s at most."""
        self._patience = 5.0
        self._fly(self.settings.scenarios[:1], min(64, self.settings.episodes))

    def _fly(self, scenarios: Sequence[Scenario], episodes: int) -> dict[str, dict]:
        """Results by scenario, drawn and logged; empty if it was cut short."""
        progress, monitor, loggers = self.saving.progress, self.saving.monitor, self.saving.loggers
        ranks = self.saving.ranks
        with monitor.timer("evaluate"):
            with ranks.together():
                mine = self._fly_share(scenarios, episodes, ranks.share(episodes))
            light = mine and {
                name: replace(flights, scene=None, recording=None) for name, flights in mine.items()
            }  # maps are large
            flown = self._join(ranks.gather(light), mine)
            results = ranks.from_first({name: summarize(flights) for name, flights in flown.items()})
        progress.scores.update({f"eval/{name}/success": result["success"] for name, result in results.items()})
        if results and ranks.first:
            with monitor.timer("evaluate"), loggers.disk("drawing an evaluation"):
                told = {"frames": progress.frames, "scenarios": results}
                write_text(self.saving.run / "eval.json", json.dumps(told, indent=2) + "\n")
            with monitor.timer("evaluate"):
                self._show(*next(iter(flown.items())))
            title = f"unseen maps after {progress.frames / 1e6:.1f} M frames, {clock(monitor.elapsed)}"
            self.console.say(results_table(results, title))
            with monitor.timer("log"):
                loggers.log(progress.scores, progress.frames)
                loggers.table(results, progress.frames)
            self.draw_curves()
        return results

    def _show(self, scenario: str, flights: Flights) -> None:
        """Write and log what a person can look at; what fails leaves the rest alone."""
        run, frames, loggers = self.saving.run, self.saving.progress.frames, self.saving.loggers
        title = f"{run.name}   {scenario}   after {frames / 1e6:.1f} M frames"
        for kind, suffix, write in writers(self.settings, cancelled=lambda: bool(self.stop), **VIDEO):
            path = run / f"flights-{scenario}{suffix}"
            with self.saving.monitor.timer(kind), loggers.disk(f"writing {path}"):
                if write(path, title, flights) is False:
                    continue
                loggers.media(f"media/{kind}", path, frames)
                if kind == "video" and loggers.takes(".gif"):
                    self._log_gif(path)

    def _log_gif(self, video: Path) -> None:
        """Log a video as a GIF, for a logger that shows no other."""
        from navrl.view.video import write_gif

        animation = video.with_suffix(".gif")
        try:
            write_gif(video, animation, **GIF)
            self.saving.loggers.media("media/video", animation, self.saving.progress.frames)
        finally:
            animation.unlink(missing_ok=True)  # the logger has a copy

    def _fly_share(self, scenarios: Sequence[Scenario], episodes: int, share: tuple[int, int]) -> dict | None:
        """Flights of this rank by scenario; None if they were cut short."""
        flown = {}
        for scenario in scenarios if share[1] else ():
            record = self.settings.records and self.saving.ranks.first and not flown  # the first scenario is shown
            flights = self.evaluator.fly(
                scenario, self._act, episodes, cancelled=self._cancelled, share=share, record=record
            )
            if flights is None:
                return None
            flown[str(scenario)] = flights
        return flown

    @staticmethod
    def _join(shares: list[dict | None], mine: dict | None) -> dict[str, Flights]:
        """Flights of all ranks by scenario; empty if any were cut short, and on every rank but the first."""
        if not shares or not mine or None in shares:
            return {}
        whole = {name: join_flights([share[name] for share in shares if share]) for name in mine}
        return {
            name: replace(flights, scene=mine[name].scene, recording=mine[name].recording)
            for name, flights in whole.items()
        }

    def draw_curves(self) -> None:
        """Draw the metrics so far into curves.png."""
        monitor, run, loggers = self.saving.monitor, self.saving.run, self.saving.loggers
        if not self.saving.ranks.first:
            return
        with monitor.timer("evaluate"), loggers.disk("drawing curves"):
            draw_curves(run / "curves.png", f"{run}   {clock(monitor.elapsed)}", loggers.csv.rows(DRAWN))

    def _act(self, observation: TensorDictBase) -> torch.Tensor:
        ppo = self.saving.ppo
        return ppo.ema_policy.act(**observation.to(ppo.device)).to(observation.device)

    def _cancelled(self) -> bool:
        return bool(self.stop) and self.stop.seconds > self._patience
