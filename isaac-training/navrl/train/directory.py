"""The directory of a run: one process at a time may write into it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from navrl.checkpoint.retention import FOLDER, set_aside_after
from navrl.io.files import TEMPORARY
from navrl.settings import ConfigError


class RunDirectory:
    """A run's directory, locked for this process until it is closed; created if it is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / FOLDER).mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path)
        for leftover in (path / FOLDER).glob(f"*{TEMPORARY}"):  # of a process that was killed while writing
            leftover.unlink()

    def take_over(self, iteration: int, config: dict, overrides: list[str]) -> None:
        """Continue the run in here from `iteration`, with these settings."""
        set_aside_after(self.path, iteration)
        (self.path / "config").mkdir(exist_ok=True)
        OmegaConf.save(OmegaConf.create(config), self.path / "config" / "config.yaml")
        OmegaConf.save(OmegaConf.create(overrides), self.path / "config" / "overrides.yaml")

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        """Let another process have the run."""
        os.close(self._lock)


def _lock(run: Path) -> int:
    """Held by the process, released with it, however it ends."""
    path = run / FOLDER / ".lock"
    handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError("resume", run, f"is being trained by process {path.read_text() or '?'}") from None
    except OSError:  # a file system without locks: better to train than not
        return handle
    path.write_text(str(os.getpid()))
    return handle


def fresh_directory() -> Path:
    """The directory Hydra made for this command, as short as it can be written."""
    return shortest(Path(HydraConfig.get().runtime.output_dir))


def shortest(path: Path) -> Path:
    """The path relative to the working directory, if it is below."""
    path = Path(os.path.abspath(path))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def remove_fresh_directory() -> None:
    """Remove the directory Hydra made, if it holds nothing but the configuration."""
    directory = Path(HydraConfig.get().runtime.output_dir)
    saved = directory / str(HydraConfig.get().output_subdir)
    if set(directory.rglob("*")) <= {saved, *(saved / f"{name}.yaml" for name in ("config", "hydra", "overrides"))}:
        shutil.rmtree(saved, ignore_errors=True)
        with contextlib.suppress(OSError):
            for empty in (directory, *directory.parents[:2]):  # and runs/<date> above it, if they are new too
                if empty != Path.cwd():
                    empty.rmdir()
