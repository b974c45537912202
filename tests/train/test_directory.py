"""A run's directory belongs to one process."""

from __future__ import annotations

import pytest

from navrl.settings import ConfigError
from navrl.train.directory import RunDirectory


def test_one_writer(tmp_path) -> None:
    with RunDirectory(tmp_path) as run:
        with pytest.raises(ConfigError, match="is being trained by process"):
            RunDirectory(tmp_path)
        (run.path / "checkpoints/state-00000009.pt.lz4.tmp").touch()  # a process was killed
    with RunDirectory(tmp_path):
        assert not list(tmp_path.rglob("*.tmp"))
