"""Where numbers go: a CSV file always, and wandb or TensorBoard if asked for."""

from __future__ import annotations

import contextlib
import csv
import errno
import logging
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from navrl.io.files import open_file, whole_file

log = logging.getLogger("navrl")

LARGEST = 1 << 29  # bytes of a metrics.csv


class Logger(Protocol):
    """Takes named numbers at a frame count; pictures are files."""

    def log(self, metrics: Mapping[str, float], frames: int) -> None: ...
    def picture(self, name: str, path: Path, frames: int) -> None: ...
    def close(self) -> None: ...


class CsvLogger:
    """metrics.csv: one row per iteration, one column per metric; a column that appears later is added to the file.

    Rows are kept in memory only until they are on disk: a run may have any number of them.
    """

    def __init__(self, path: Path, rows: Sequence[Mapping[str, float]] | None = None) -> None:
        """`rows`: what the file holds from before, in a resumed run; None: it begins anew."""
        self.path = path
        self._unwritten = [*(rows or [])]
        self._columns: list[str] = []  # of the file
        self._whole = True  # nothing was torn by a write that failed
        self._begun = False

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        self._unwritten.append({"frames": frames, **metrics})
        if self._whole and self._begun and all(row.keys() <= set(self._columns) for row in self._unwritten):
            self._whole = False
            with open_file(self.path, "a", newline="") as file:
                csv.DictWriter(file, self._columns).writerows(self._unwritten)
        else:
            self._write_all(self.rows())
        self._whole, self._begun = True, True
        self._unwritten.clear()

    def rows(self, most: int | None = None) -> list[dict[str, float]]:
        """The rows so far, all or about `most` of them."""
        return [*(read_rows(self.path, most) if self._begun else []), *map(dict, self._unwritten)]

    def _write_all(self, rows: Sequence[Mapping[str, float]]) -> None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with whole_file(self.path, newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        self._columns = columns

    def picture(self, name: str, path: Path, frames: int) -> None:
        """Pictures are already in the run directory."""

    def close(self) -> None:
        """Every row is on disk already."""


def read_rows(path: Path, most: int | None = None) -> list[dict[str, float]]:
    """The rows of a metrics.csv, without those that a crash, a power cut or somebody spoiled.

    Files of up to `LARGEST` bytes are read: 100,000 iterations are about 100 MB. With `most`, only about so many rows
    are kept, evenly spread, and all with a score: as many as a picture can show.
    """
    if path.stat().st_size > LARGEST:
        raise OSError(errno.EFBIG, f"{path} is larger than {LARGEST >> 20} MB, which no run of ours writes")
    stride = -(-sum(1 for _ in _whole_lines(path)) // most) if most else 1
    rows = []
    for number, row in enumerate(csv.DictReader(_whole_lines(path), quoting=csv.QUOTE_NONE)):
        if number % max(1, stride) and not any(value for key, value in row.items() if key and key.startswith("eval/")):
            continue
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            values = {key: float(value) for key, value in row.items() if value}
            values = {key: value for key, value in values.items() if abs(value) < 1e18}  # not NaN, not infinite
            if 0 <= values.get("frames", -1) <= 1e13:
                rows.append({**values, "frames": int(values["frames"])})
    return rows


def _whole_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line.replace("\0", "") for line in file if line.endswith("\n") and len(line) < 1 << 16)


class TensorBoardLogger:
    """Event files under `directory`, for `tensorboard --logdir`."""

    def __init__(self, directory: Path, after: int = 0) -> None:
        """`after`: frames up to which earlier events stand, in a resumed run."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory), purge_step=after + 1 if after else None)

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, frames)

    def picture(self, name: str, path: Path, frames: int) -> None:
        import matplotlib.image

        self.writer.add_image(name, matplotlib.image.imread(path)[..., :3], frames, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class WandbLogger:
    """A wandb run. Offline needs neither account nor network; `wandb sync <directory>` uploads it later."""

    def __init__(
        self,
        directory: Path,
        config: dict,
        mode: str,
        project: str | None,
        name: str | None = None,
        entity: str | None = None,
        run_id: str | None = None,
    ) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        wanted = {"project": project, "name": name, "entity": entity, "id": run_id, "dir": str(directory)}
        if run_id:
            wanted["resume"] = "allow"
        try:
            if mode == "online" and not wandb.api.api_key:  # wandb would ask for one and wait
                raise RuntimeError("no API key; set WANDB_API_KEY or run wandb login")
            self.run = wandb.init(**wanted, config=config, mode=mode, settings=wandb.Settings(init_timeout=20))  # pyright: ignore[reportArgumentType]
        except Exception as error:  # no key, no network, no such entity: wandb has a class of its own for each
            if mode != "online":
                raise
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            log.warning("wandb.mode=online: %s; logging offline, upload later with: wandb sync %s", reason, directory)
            self.run = wandb.init(**wanted, config=config, mode="offline")
        # Frames are the x axis, not wandb's own step: that may only rise, and a resumed run may repeat.
        self.run.define_metric("*", step_metric="frames")

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        self.run.log({"frames": frames, **metrics})

    def picture(self, name: str, path: Path, frames: int) -> None:
        import wandb
        from PIL import Image

        with Image.open(path) as picture:  # wandb keeps every one: small, or they would be most of the run's directory
            small = picture.convert("RGB")
            small.thumbnail((1000, 1000))
            self.run.log({"frames": frames, name: wandb.Image(small, file_type="jpg")})

    def close(self) -> None:
        self.run.finish()


def code_version() -> str:
    """The commit this code is at, with + if files were changed since; 'unknown' outside a checkout."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here, capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit + ("+" if changed else "")
