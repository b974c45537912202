"""Training may change everything the moment `save_async` returns, and never waits for the disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from navrl.checkpoint import saver as saver_module
from navrl.checkpoint.saver import AsyncCheckpointSaver
from navrl.io.files import load_checkpoint
from navrl.io.snapshot import Live, Snapshot, tensors_of


@pytest.fixture
def saver() -> Iterator[AsyncCheckpointSaver]:
    made = AsyncCheckpointSaver(max_queue_size=3)
    yield made
    made.shutdown(timeout=20)


@pytest.fixture
def slow_disk(monkeypatch) -> threading.Event:
    """Block writing until the event is set."""
    go, write = threading.Event(), saver_module.write_checkpoint

    def waiting(*arguments):
        go.wait(20)
        return write(*arguments)

    monkeypatch.setattr(saver_module, "write_checkpoint", waiting)
    return go


def learner() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    net = torch.nn.Linear(30, 20)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(4, 30)).square().sum().backward()
    optimizer.step()
    return net, optimizer


def test_saves_the_state_at_the_time_of_the_call(saver, slow_disk, tmp_path) -> None:
    net, optimizer = learner()
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "deep": [{"x": [torch.arange(5)]}], "n": 1}
    expected = {name: value.clone() for name, value in net.state_dict().items()}
    moment = optimizer.state_dict()["state"][0]["exp_avg"].clone()
    saver.save_async(state, tmp_path / "x.pt")
    for value in tensors_of(state):
        value.zero_()
    state["n"], state["deep"][0]["x"] = 2, None
    slow_disk.set()
    assert saver.shutdown()
    read = load_checkpoint(tmp_path / "x.pt")
    assert all(torch.equal(read["net"][name], value) for name, value in expected.items())
    assert torch.equal(read["optimizer"]["state"][0]["exp_avg"], moment)
    assert read["n"] == 1 and torch.equal(read["deep"][0]["x"][0], torch.arange(5))


def test_full_queue_keeps_the_newest_periodic_saves(saver, slow_disk, tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        for k in range(10):
            saver.save_async({"k": torch.tensor(k)}, tmp_path / f"{k}.pt", compress=False)
            time.sleep(0.01 if k else 0.2)  # the first one is being written
    assert saver.get_stats()["dropped"] == 6 and saver.get_stats()["queued"] == 4
    assert len(caplog.records) == 1 and "async_checkpoint_queue_size" in caplog.text and "save_interval" in caplog.text
    slow_disk.set()
    assert saver.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.pt", "7.pt", "8.pt", "9.pt"]
    assert int(load_checkpoint(tmp_path / "9.pt")["k"]) == 9
    with pytest.raises(RuntimeError, match="shut down"):
        saver.save_async({}, tmp_path / "late.pt")


def test_final_saves_wait_and_are_never_dropped(saver, slow_disk, tmp_path) -> None:
    saver.save_async({}, tmp_path / "first.pt")
    time.sleep(0.2)
    for k in range(3):
        saver.save_async({"k": k}, tmp_path / f"kept{k}.pt", keep=True)
    saver.save_async({}, tmp_path / "periodic.pt")  # no room, nothing may be dropped for it
    threading.Timer(0.3, slow_disk.set).start()
    began = time.monotonic()
    saver.save_async({}, tmp_path / "final.pt", keep=True)
    assert time.monotonic() - began > 0.2
    assert saver.shutdown()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"first.pt.lz4", "kept0.pt.lz4", "kept1.pt.lz4", "kept2.pt.lz4", "final.pt.lz4"}
    assert saver.get_stats()["dropped"] == 1 and saver.get_stats()["saved"] == 5


def test_shutdown_logs_what_it_waits_for_and_can_time_out(slow_disk, tmp_path, caplog) -> None:
    saver = AsyncCheckpointSaver()
    saver.save_async({}, tmp_path / "x.pt")
    with caplog.at_level(logging.INFO):
        assert not saver.shutdown(timeout=1.5)
    assert [record.getMessage() for record in caplog.records] == ["saving x.pt", "not saved in 2 s: x.pt"]
    slow_disk.set()
    assert saver.shutdown(timeout=20)


def test_failures_are_counted_reported_once_and_survived(saver, tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        for k in range(3):
            (tmp_path / f"{k}.pt.lz4.tmp").mkdir()  # in the way
            saver.save_async({}, tmp_path / f"{k}.pt", keep=True)
        saver.save_async({}, tmp_path / "good.pt", keep=True)
        assert saver.shutdown()
    assert saver.get_stats()["failed"] == 3 and saver.get_stats()["saved"] == 1 and saver.disk.failures == 3
    assert len(caplog.records) == 1 and "training continues" in caplog.text


def test_vanished_directory_is_recreated_and_counted(saver, tmp_path) -> None:
    saver.save_async({"a": 1}, tmp_path / "gone" / "x.pt")
    assert saver.shutdown()
    assert load_checkpoint(tmp_path / "gone" / "x.pt") == {"a": 1} and saver.disk.failures == 1


def test_stats(saver, tmp_path) -> None:
    saver.save_async({"zeros": torch.zeros(100_000)}, tmp_path / "x.pt")
    saver.save_async({"zeros": torch.zeros(100_000)}, tmp_path / "y.pt", compress=False)
    assert saver.shutdown()
    stats = saver.get_stats()
    assert stats["saved"] == 2 and stats["queued"] == stats["failed"] == 0 and stats["seconds"] > 0
    assert stats["bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())
    packed = (tmp_path / "x.pt.lz4").stat().st_size
    assert stats["ratio"] == packed / (stats["raw_bytes"] / 2) < 0.05, "of compressed saves only"


def test_snapshots_are_reused(saver, tmp_path) -> None:
    for k in range(20):
        saver.save_async({"a": torch.full((1000,), k)}, tmp_path / "x.pt")
        while saver.get_stats()["queued"]:
            time.sleep(0.002)
    assert len(saver._free) == 1


def test_snapshot_reuses_its_memory_where_it_fits() -> None:
    snapshot = Snapshot()
    tensors = [torch.ones(3), torch.ones(2, 2, dtype=torch.int32)]
    snapshot.take({"a": tensors})
    first, second = snapshot.content["a"]
    snapshot.take({"a": [torch.zeros(3), torch.zeros(2, 2)], "b": torch.zeros(3)})
    assert snapshot.content["a"][0] is first and (first == 0).all()
    assert snapshot.content["a"][1] is not second and snapshot.content["b"] is not first


def test_live_tensors_are_traversed_once_and_copied_every_time() -> None:
    live = Live({"x": torch.zeros(3), "list": [torch.zeros(2, dtype=torch.bfloat16)]})
    snapshot = Snapshot()
    for k in range(3):
        live["x"].fill_(k), live["list"][0].fill_(k)
        snapshot.take({"a": {"live": live}, "k": k})
        assert (snapshot.content["a"]["live"]["x"] == k).all() and (snapshot.content["a"]["live"]["list"][0] == k).all()
        assert type(snapshot.content["a"]["live"]) is dict
    first = snapshot.content["a"]["live"]["x"]
    snapshot.take({"a": {"live": Live({"x": torch.full((3,), 9.0)})}})
    assert snapshot.content["a"]["live"]["x"] is first and (first == 9).all()


@pytest.mark.parametrize("value", [np.float64(1.0), np.zeros(3), {1, 2}, torch.nn.Linear(1, 1), torch.__version__])
def test_unsupported_values_are_rejected_at_the_call(saver, tmp_path, value: object) -> None:
    with pytest.raises(TypeError, match="a checkpoint holds tensors and plain values, not a "):
        saver.save_async({"a": [1, value]}, tmp_path / "x.pt")
