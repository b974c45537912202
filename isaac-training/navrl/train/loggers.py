"""All the places metrics go, as one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from navrl.io.files import DiskGuard
from navrl.monitor.metrics import CsvLogger, Logger, TensorBoardLogger, WandbLogger, read_rows
from navrl.ranks import ALONE, Ranks
from navrl.train.resume import Resumed
from navrl.train.settings import TrainSettings


class Loggers:
    """metrics.csv always, wandb or TensorBoard if the settings ask for it; nothing on other ranks than the first.

    A disk that fails does not end the run. Tables and policies are logged by a thread: wandb asks its server about them
    first, and training does not wait for that.
    """

    def __init__(
        self,
        settings: TrainSettings,
        run: Path,
        disk: DiskGuard,
        code_version: str,
        resumed: Resumed | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.disk, self.wandb_id = disk, settings.logging.run_id
        self._loggers: list[Logger] = []
        self._thread = ThreadPoolExecutor(1, "logging")
        if not ranks.first:
            return
        frames, rows = 0, []
        if resumed:
            frames, self.wandb_id = resumed.state["frames"], self.wandb_id or resumed.state.get("wandb_id")
            with disk("reading the metrics so far"), contextlib.suppress(FileNotFoundError):
                rows = [row for row in read_rows(resumed.history / "metrics.csv") if row["frames"] <= frames]
        self.csv = CsvLogger(run / "metrics.csv", rows)
        self._loggers.append(self.csv)
        s = settings.logging
        if s.logger == "tensorboard":
            self._loggers.append(TensorBoardLogger(run / "tensorboard", frames))
        elif s.logger == "wandb" and s.mode != "disabled":
            config, name = settings.config | {"code_version": code_version}, s.name or "-".join(run.parts[-2:])
            wandb = WandbLogger(run, config, s.mode, s.project, name, s.entity, self.wandb_id)
            self._loggers.append(wandb)
            self.wandb_id = wandb.run.id
            with disk("saving the settings for wandb"):
                wandb.text("config/config.yaml", OmegaConf.to_yaml(settings.config))

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        for logger in self._loggers:
            with self.disk("logging"):
                logger.log(metrics, frames)

    def takes(self, suffix: str) -> bool:
        """Whether any logger shows files that end in `suffix`."""
        return any(suffix in logger.takes for logger in self._loggers)

    def media(self, name: str, path: Path, frames: int) -> None:
        """Log a picture, page or video; the file may be overwritten afterwards."""
        for logger in self._loggers:
            if path.suffix in logger.takes:
                with self.disk(f"logging {path}"):
                    logger.media(name, path, frames)

    def table(self, results: Mapping[str, Mapping[str, Any]], frames: int) -> None:
        """Log the results of an evaluation by scenario, soon."""
        for logger in self._loggers:
            self._thread.submit(self._attempt, "logging a table", logger.table, results, frames)

    def policy(self, path: Path, about: Mapping[str, Any], best: bool = False) -> None:
        """Log a policy file that is whole, soon; it may be removed afterwards. Any thread may call this."""
        content = path.read_bytes()
        for logger in self._loggers:
            self._thread.submit(self._attempt, f"logging {path}", logger.policy, content, about, best)

    def _attempt(self, what: str, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception as error:  # wandb has a class of its own for whatever its server answers
            self.disk.failed(what, error)

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        for logger in self._loggers:
            try:
                logger.close()
            except Exception as error:  # whatever a logger fails with at the end, the run is saved
                self.disk.failed("closing a log", error)
