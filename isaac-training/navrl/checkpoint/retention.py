"""Which checkpoints a run keeps: the newest training states to resume from, and policies worth coming back to."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from navrl.io.contents import Number, Text, Unfit, check
from navrl.io.files import MANIFEST, BadCheckpoint, load_checkpoint, read_lines
from navrl.settings import setting

log = logging.getLogger("navrl")

FOLDER = "checkpoints"
STATE = re.compile(r"state-(\d+)\.pt(\.lz4)?")
BEST = re.compile(r"best-(\d+)-(\d+\.\d+)\.pt(\.lz4)?")


@dataclass(frozen=True, kw_only=True)
class SaveSettings:
    """When to save, how, and what is kept."""

    interval: int = setting("save_interval", 0, 1e9)  # iterations
    minutes: float = setting("save_minutes", 0.0)
    compress: bool = setting("compress_checkpoint")
    level: int = setting("save_compression_level", 0, 12)
    queue_size: int = setting("async_checkpoint_queue_size", 1, 1000)
    keep_last: int = setting("checkpoint.keep_last", 1, 1e9)
    keep_every: int = setting("checkpoint.keep_every", 0, 1e9)
    keep_best: int = setting("checkpoint.keep_best", 0, 1e9)


class CheckpointFolder:
    """The checkpoints of one run. Their names hold all that retention needs, so a resumed run needs no other memory."""

    def __init__(self, run: Path, keep_last: int, keep_best: int) -> None:
        self.run, self.path, self.keep_last, self.keep_best = run, run / FOLDER, keep_last, keep_best

    def state(self, iteration: int) -> Path:
        return self.path / f"state-{iteration:08d}.pt"

    def policy(self, iteration: int) -> Path:
        return self.path / f"policy-{iteration:08d}.pt"

    def best(self, iteration: int, score: float) -> Path:
        return self.path / f"best-{iteration:08d}-{score:.4f}.pt"

    def prune(self) -> None:
        """Remove what need not be kept. Called only after something newer is safely on disk."""
        found = [(match, path) for path in self.path.iterdir() if (match := BEST.fullmatch(path.name))]
        best = [path for _, path in sorted(found, key=lambda f: (float(f[0][2]), int(f[0][1])), reverse=True)]
        for path in states_of(self.run)[self.keep_last :] + best[self.keep_best :]:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def bytes_saved(self) -> tuple[int, int]:
        """Bytes of the run's directory as it is, and as it would be had every training state been kept."""
        sizes = {path: path.stat().st_size for path in self.run.rglob("*") if path.is_file()}
        now = sum(sizes.values())
        states = sum(size for path, size in sizes.items() if path.parent == self.path and STATE.fullmatch(path.name))
        every = {}  # of a state that was written twice, the last
        for line in read_lines(self.run / MANIFEST):
            with contextlib.suppress(Unfit):
                check(line, {"file": Text(), "bytes": Number(0, 1e15, whole=True)})
                every |= {line["file"]: line["bytes"]} if STATE.fullmatch(Path(line["file"]).name) else {}
        return now, now - states + max(sum(every.values()), states)


def iteration_of(state: Path) -> int:
    """The iteration in the name of a training state; -1 for any other file."""
    match = STATE.fullmatch(state.name)
    return int(match[1]) if match else -1


def states_of(run: Path) -> list[Path]:
    """Training states of a run, newest first."""
    folder = run / FOLDER
    found = [path for path in folder.iterdir() if STATE.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=iteration_of, reverse=True)


def set_aside_after(run: Path, iteration: int) -> None:
    """Rename states later than the one a run resumes from: they are damaged and must not pass for its newest."""
    for path in states_of(run):
        if iteration_of(path) > iteration:
            path.replace(path.with_name(path.name + ".damaged"))


def newest_state(run: Path) -> tuple[Path, dict]:
    """The newest training state that is whole; logs which ones it skipped. Raises BadCheckpoint if none is."""
    damaged: list[BadCheckpoint] = []
    for path in states_of(run):
        try:
            return path, load_checkpoint(path)
        except BadCheckpoint as error:
            log.warning("%s; falling back to the one before", error)
            damaged.append(error)
    if damaged:
        raise BadCheckpoint(f"{run} has no training state that is whole: {'; '.join(map(str, damaged))}")
    raise BadCheckpoint(f"{run} holds no training state (nothing like {FOLDER}/state-00000100.pt.lz4)")
