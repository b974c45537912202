"""All the places metrics go, as one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from navrl.io.files import DiskGuard
from navrl.monitor.metrics import CsvLogger, Logger, TensorBoardLogger, WandbLogger, read_rows
from navrl.ranks import ALONE, Ranks
from navrl.train.resume import Resumed
from navrl.train.settings import TrainSettings


class Loggers:
    """metrics.csv always, wandb or TensorBoard if the settings ask for it; nothing on other ranks than the first.

    A disk that fails does not end the run.
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

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        for logger in self._loggers:
            with self.disk("logging"):
                logger.log(metrics, frames)

    def picture(self, name: str, path: Path, frames: int) -> None:
        for logger in self._loggers:
            with self.disk("logging a picture"):
                logger.picture(name, path, frames)

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, *_: object) -> None:
        for logger in self._loggers:
            try:
                logger.close()
            except Exception as error:  # whatever a logger fails with at the end, the run is saved
                self.disk.failed("closing a log", error)
