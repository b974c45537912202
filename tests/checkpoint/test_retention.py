"""What a run keeps, and what it resumes from."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from navrl.checkpoint.retention import CheckpointFolder, newest_state, set_aside_after, states_of
from navrl.io.files import MANIFEST, BadCheckpoint, write_checkpoint


def folder(run: Path) -> CheckpointFolder:
    (run / "checkpoints").mkdir()
    return CheckpointFolder(run, keep_last=2, keep_best=2)


def test_retention(tmp_path) -> None:
    files = folder(tmp_path)
    for iteration in range(1, 8):
        write_checkpoint(files.state(iteration), {"x": [iteration] * 1000}, 0, tmp_path / MANIFEST)
        write_checkpoint(files.best(iteration, 0.5 + (0.1 if iteration % 3 == 0 else 0.0)), {})
        write_checkpoint(files.policy(iteration), {})
        files.prune()
    names = sorted(path.name for path in files.path.glob("[sb]*"))
    assert names == [
        "best-00000003-0.6000.pt", "best-00000006-0.6000.pt", "state-00000006.pt.lz4", "state-00000007.pt.lz4",
    ]  # fmt: skip
    assert len(list(files.path.glob("policy-*"))) == 7, "kept for good"
    now, otherwise = files.bytes_saved()
    state = files.state(7).with_suffix(".pt.lz4").stat().st_size
    assert abs((otherwise - now) - 5 * state) < 50


def test_damaged_states_are_passed_over_and_named(tmp_path, caplog) -> None:
    files = folder(tmp_path)
    for iteration in (1, 2, 30):
        write_checkpoint(files.state(iteration), {"iteration": iteration}, 0)
    newest = states_of(tmp_path)
    assert [path.name[:14] for path in newest] == ["state-00000030", "state-00000002", "state-00000001"]
    newest[0].write_bytes(newest[0].read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        path, content = newest_state(tmp_path)
    assert path == newest[1] and content == {"iteration": 2}
    assert len(caplog.records) == 1 and "state-00000030" in caplog.text and "cut off" in caplog.text
    set_aside_after(tmp_path, 2)
    assert [path.name[:14] for path in states_of(tmp_path)] == ["state-00000002", "state-00000001"]
    for path in newest[1:]:
        path.write_bytes(b"nothing")
    with pytest.raises(BadCheckpoint, match="no training state that is whole"):
        newest_state(tmp_path)


def test_nothing_to_resume_from(tmp_path) -> None:
    with pytest.raises(BadCheckpoint, match="holds no training state"):
        newest_state(tmp_path)
