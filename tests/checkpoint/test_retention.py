"""What stays of a run, and what it is gone on from."""

from __future__ import annotations

import logging

import pytest

from navrl.io.files import MANIFEST, BadCheckpoint, write_checkpoint
from navrl.checkpoint.retention import Retention, RunFiles, newest_state, states_of


def test_retention(tmp_path) -> None:
    files = RunFiles(tmp_path, Retention(last=2, best=2))
    for iteration in range(1, 8):
        write_checkpoint(files.state(iteration), {"x": [iteration] * 1000}, 0, tmp_path / MANIFEST)
        write_checkpoint(files.best(iteration, 0.5 + (0.1 if iteration % 3 == 0 else 0.0)), {})
        write_checkpoint(files.policy(iteration), {})
        files.prune()
    names = sorted(path.name for path in files.folder.glob("[sb]*"))
    assert names == [
        "best-00000003-0.6000.pt", "best-00000006-0.6000.pt", "state-00000006.pt.lz4", "state-00000007.pt.lz4",
    ]  # fmt: skip
    assert files.best_policy() == files.best(6, 0.6)
    assert len(list(files.folder.glob("policy-*"))) == 7, "kept for good"
    now, otherwise = files.bytes_saved()
    state = files.state(7).with_suffix(".pt.lz4").stat().st_size
    assert abs((otherwise - now) - 5 * state) < 50


def test_damaged_states_are_passed_over_and_named(tmp_path, caplog) -> None:
    files = RunFiles(tmp_path, Retention())
    for iteration in (1, 2, 30):
        write_checkpoint(files.state(iteration), {"iteration": iteration}, 0)
    newest = states_of(tmp_path)
    assert [path.name[:14] for path in newest] == ["state-00000030", "state-00000002", "state-00000001"]
    newest[0].write_bytes(newest[0].read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        path, content = newest_state(tmp_path)
    assert path == newest[1] and content == {"iteration": 2}
    assert len(caplog.records) == 1 and "state-00000030" in caplog.text and "cut off" in caplog.text
    files.set_aside_after(2)
    assert [path.name[:14] for path in states_of(tmp_path)] == ["state-00000002", "state-00000001"]
    for path in newest[1:]:
        path.write_bytes(b"nothing")
    with pytest.raises(BadCheckpoint, match="no training state that is whole"):
        newest_state(tmp_path)


def test_a_run_has_one_writer(tmp_path) -> None:
    files = RunFiles(tmp_path, Retention())
    with pytest.raises(BadCheckpoint, match="is being trained by process"):
        RunFiles(tmp_path, Retention())
    (files.folder / "state-00000009.pt.lz4.tmp").touch()  # a process was killed
    files.close()
    again = RunFiles(tmp_path, Retention())
    assert not list(again.folder.glob("*.tmp"))
    again.close()


def test_nothing_to_go_on_from(tmp_path) -> None:
    with pytest.raises(BadCheckpoint, match="holds no training state"):
        newest_state(tmp_path)
