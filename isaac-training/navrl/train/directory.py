"""The directory of a run: its own, and one process at a time may write into it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import shutil
import time
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from navrl.checkpoint.retention import FOLDER, set_aside_after, states_of
from navrl.io.files import TEMPORARY, open_file, write_text
from navrl.settings import ConfigError

SETTINGS = "config"  # folder of the settings; who creates it has the directory
LOCK, LOG = ".lock", "log.txt"
OURS = {SETTINGS, FOLDER, LOG, *(f"{SETTINGS}/{name}" for name in (LOCK, "config.yaml", "overrides.yaml"))}


class RunDirectory:
    """A run's directory, locked for this process until it is closed. What the run logs is kept in log.txt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_links(path)
        for folder in (SETTINGS, FOLDER):
            (path / folder).mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path)
        for leftover in (path / FOLDER).glob(f"*{TEMPORARY}"):  # of a process that was killed while writing
            leftover.unlink()
        self._log: RunLog | None = None

    def take_over(self, iteration: int, config: dict, overrides: list[str]) -> None:
        """Train in here from `iteration` on, with these settings."""
        self._log = RunLog(self.path / LOG)
        self._log.write(f"from iteration {iteration}: navrl train {' '.join(overrides)}")
        logging.getLogger("navrl").addHandler(self._log)
        set_aside_after(self.path, iteration)
        write_settings(self.path, config, overrides)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        """Let another process have the run."""
        if self._log:
            logging.getLogger("navrl").removeHandler(self._log)
        os.close(self._lock)


class RunLog(logging.Handler):
    """Keeps what a run logs, in a file that is open only while a line is written. A full disk costs the line."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        self.write(record.getMessage())

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError), open_file(self.path, "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def write_settings(run: Path, config: dict, overrides: list[str]) -> None:
    """What the run was told, for whoever looks at it: all of it, and what was typed."""
    write_text(run / SETTINGS / "config.yaml", OmegaConf.to_yaml(config))
    write_text(run / SETTINGS / "overrides.yaml", OmegaConf.to_yaml(overrides))


def refuse_links(run: Path) -> None:
    """A link in a directory from elsewhere could have any file of the user overwritten.

    wandb makes links of its own: some beside its runs, which it makes anew, and some inside them, which it never opens
    again.
    """
    wandb = run.resolve() / "wandb"
    for folder, folders, files in os.walk(run):
        for path in (Path(folder) / name for name in folders + files):
            depth = len(path.relative_to(run).parts) if path.relative_to(run).parts[0] == "wandb" else 1
            if path.is_symlink() and (depth == 1 or (depth == 2 and not path.resolve().is_relative_to(wandb))):
                raise ConfigError("resume", run, f"holds a symbolic link, {path.relative_to(run)}; remove it")


def _lock(run: Path) -> int:
    """Held by the process, released with it, however it ends."""
    path = run / SETTINGS / LOCK
    handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.read(handle, 20).decode(errors="replace") or "?"
        os.close(handle)
        key = "hydra.run.dir" if run.absolute() == _fresh else "resume"
        raise ConfigError(key, run, f"is being trained by process {process}") from None
    except OSError:  # a file system without locks: better to train than not
        return handle
    with contextlib.suppress(OSError), open_file(path, "w") as file:  # of a full disk
        file.write(str(os.getpid()))
    return handle


# --- the directory of a new run -------------------------------------------------------------------------------------

_fresh: Path | None = None  # made for this command


def fresh_directory() -> Path:
    """A directory for this command alone: the one Hydra made, or the next free name if another run was quicker."""
    global _fresh
    wanted = Path(HydraConfig.get().runtime.output_dir)
    typed = any(text.startswith("hydra.run.dir=") for text in HydraConfig.get().overrides.hydra)
    for number in itertools.count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir(parents=True, exist_ok=number == 1)
            (path / SETTINGS).mkdir()  # atomic: one process succeeds
        except FileExistsError:
            if not typed:
                continue
            refuse_links(path)
            if states_of(path):
                fix = "holds a training run already; continue it with resume=, or choose another directory"
                raise ConfigError("hydra.run.dir", shortest(path), fix) from None
        _fresh = path
        return shortest(path)
    raise AssertionError("there is always another name")


def shortest(path: Path) -> Path:
    """The path relative to the working directory, if it is below."""
    path = Path(os.path.abspath(path))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def remove_fresh_directory() -> Path | None:
    """Remove the directory made for this command if nothing of value is in it; returns it if it stays."""
    if HydraConfig.instance().cfg is None:
        return None
    hydras = Path(HydraConfig.get().runtime.output_dir)
    for directory in {hydras, _fresh or hydras}:
        if not directory.is_dir():
            continue
        if directory == _fresh and {str(path.relative_to(directory)) for path in directory.rglob("*")} <= OURS:
            for folder in (SETTINGS, FOLDER):
                shutil.rmtree(directory / folder, ignore_errors=True)
            (directory / LOG).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for empty in (directory, *directory.parents[:2]):  # and runs/<date> above it, if they are new too
                if empty != Path.cwd():
                    empty.rmdir()
    return shortest(_fresh) if _fresh and _fresh.is_dir() else None
