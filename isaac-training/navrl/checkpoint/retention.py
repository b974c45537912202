"""Which files a run keeps: the newest training states to go on from, and policies worth coming back to."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from navrl.io.files import MANIFEST, TEMPORARY, BadCheckpoint, load_checkpoint, read_lines

log = logging.getLogger("navrl")

FOLDER = "checkpoints"
STATE = re.compile(r"state-(\d+)\.pt(\.lz4)?")
BEST = re.compile(r"best-(\d+)-(\d+\.\d+)\.pt(\.lz4)?")


@dataclass(frozen=True)
class Retention:
    """What is kept; section `checkpoint_keep` of cfg/train.yaml says what each number means."""

    last: int = 2
    every: int = 0
    best: int = 1


class RunFiles:
    """The files of one run. Names tell everything retention needs, so a run that is gone on with needs no other memory.

    Only one process at a time may write into a run: a second one is refused.
    """

    def __init__(self, run: Path, retention: Retention) -> None:
        self.run, self.folder, self.retention = run, run / FOLDER, retention
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        for leftover in self.folder.glob(f"*{TEMPORARY}"):  # of a process that was killed while writing
            leftover.unlink()

    def state(self, iteration: int) -> Path:
        return self.folder / f"state-{iteration:08d}.pt"

    def policy(self, iteration: int) -> Path:
        return self.folder / f"policy-{iteration:08d}.pt"

    def best(self, iteration: int, score: float) -> Path:
        return self.folder / f"best-{iteration:08d}-{score:.4f}.pt"

    def best_policy(self) -> Path | None:
        """The policy that did best on unseen maps so far."""
        ranked = self._best()
        return ranked[0] if ranked else None

    def set_aside_after(self, iteration: int) -> None:
        """States later than the one a run goes on from are damaged: they must not pass for its newest."""
        for path in states_of(self.run):
            if int(STATE.fullmatch(path.name)[1]) > iteration:
                path.replace(path.with_name(path.name + ".damaged"))

    def prune(self) -> None:
        """Remove what need not be kept. Called only after something newer is safely on disk."""
        doomed = states_of(self.run)[self.retention.last :] + self._best()[self.retention.best :]
        for path in doomed:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def bytes_saved(self) -> tuple[int, int]:
        """Bytes of the run's directory as it is, and as it would be had every full save been kept."""
        sizes = {path: path.stat().st_size for path in self.run.rglob("*") if path.is_file()}
        now = sum(sizes.values())
        states = sum(size for path, size in sizes.items() if path.parent == self.folder and STATE.fullmatch(path.name))
        lines = {line["file"]: line["bytes"] for line in read_lines(self.run / MANIFEST)}
        every = sum(size for name, size in lines.items() if STATE.fullmatch(Path(name).name))
        return now, now - states + max(every, states)

    def close(self) -> None:
        """Let another process have the run."""
        os.close(self._lock)

    def _best(self) -> list[Path]:
        found = [(match, path) for path in self.folder.iterdir() if (match := BEST.fullmatch(path.name))]
        return [path for _, path in sorted(found, key=lambda f: (float(f[0][2]), int(f[0][1])), reverse=True)]


def states_of(run: Path) -> list[Path]:
    """Training states of a run, newest first."""
    folder = run / FOLDER
    found = (
        [(match, path) for path in folder.iterdir() if (match := STATE.fullmatch(path.name))] if folder.is_dir() else []
    )
    return [path for _, path in sorted(found, key=lambda f: int(f[0][1]), reverse=True)]


def newest_state(run: Path) -> tuple[Path, dict]:
    """The newest training state that is whole; says which ones it had to pass over. Raises BadCheckpoint if none is."""
    passed: list[BadCheckpoint] = []
    for path in states_of(run):
        try:
            content = load_checkpoint(path)
        except BadCheckpoint as error:
            log.warning("%s; going back to the one before", error)
            passed.append(error)
            continue
        return path, content
    if passed:
        raise BadCheckpoint(f"{run} has no training state that is whole: {'; '.join(map(str, passed))}")
    raise BadCheckpoint(f"{run} holds no training state (nothing like {FOLDER}/state-00000100.pt.lz4)")


def _lock(folder: Path) -> int:
    """Held by the process, gone with it, however it ends."""
    path = folder / ".lock"
    handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise BadCheckpoint(f"{folder.parent} is being trained by process {path.read_text() or '?'}") from None
    except OSError:  # a file system without locks: better to train than not
        return handle
    path.write_text(str(os.getpid()))
    return handle
