"""Rollouts are read back bit for bit, whole or in part, and damage stays local."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase

from conftest import collect_settings, make_learner
from navrl.collect.batches import SerialBatches
from navrl.collect.rollouts import DATA, INDEX, BadRollout, RolloutArchive, RolloutStorage
from navrl.ppo.batch import VERSION

DRONES, STEPS = 64, 12


@pytest.fixture
def batches(make_env, scene) -> list[TensorDictBase]:
    """Three real batches with flights that end within them."""
    env = make_env(scene, DRONES, decimation=4, task={"max_episode_length": 60})
    flown = SerialBatches(env, make_learner(), collect_settings(STEPS, return_same_td=False))
    return [next(flown).frames for _ in range(3)]


@pytest.fixture
def archive(batches, tmp_path) -> Path:
    writer = RolloutArchive(tmp_path / "rollouts", waiting=10)
    for number, batch in enumerate(batches):
        writer.append(batch, {"iteration": number})
    writer.shutdown()
    assert writer.stats["stored"] == 3 and writer.stats["failed"] == 0
    return tmp_path / "rollouts"


def test_round_trip(archive, batches) -> None:
    storage = RolloutStorage(archive)
    assert len(storage) == 3 and [line["iteration"] for line in storage.lines] == [0, 1, 2]
    for number, batch in enumerate(batches):
        read = storage[number]
        assert set(read.keys(True, True)) == set(batch.keys(True, True))
        for key in batch.keys(True, True):
            assert torch.equal(read[key], batch[key]) and read[key].dtype == batch[key].dtype, key
    assert (storage[-1][VERSION] == batches[-1][VERSION]).all()
    line = storage.lines[0]
    assert line["bytes"] < 0.4 * line["raw_bytes"], "most of it is redundant"


def test_partial_read(archive, batches) -> None:
    storage = RolloutStorage(archive, threads=1)
    keys = ["next/agents/observation/state", "agents/action"]
    read = storage.read(1, drones=[39, 3, 3], keys=keys)
    assert read.batch_size == (3, STEPS) and len(list(read.keys(True, True))) == 2
    assert torch.equal(read["agents", "action"], batches[1]["agents", "action"][[39, 3, 3]])
    wanted = batches[1]["next", "agents", "observation", "state"][[39, 3, 3]]
    assert torch.equal(read["next", "agents", "observation", "state"], wanted)
    with pytest.raises(KeyError, match="nothing"):
        storage.read(0, keys=["nothing"])


def test_only_the_needed_blocks_are_read(archive, monkeypatch) -> None:
    storage, taken, pread = RolloutStorage(archive), [], os.pread
    assert storage._header(0).fields["agents/observation/lidar"].group < DRONES
    storage.find_episode(0)
    monkeypatch.setattr(os, "pread", lambda *a: taken.append(a[1]) or pread(*a))
    storage.read(0, drones=[5], keys=["agents/observation/lidar"])
    assert len(taken) == 1 and taken[0] < storage.lines[0]["bytes"] / 2


def test_episodes_are_found(archive, batches) -> None:
    storage = RolloutStorage(archive)
    assert storage.num_frames == 3 * DRONES * STEPS
    with pytest.raises(IndexError):
        storage.find_episode(storage.num_episodes)
    expected = []
    for rollout, batch in enumerate(batches):
        for drone, done in enumerate(batch["next", "done"].squeeze(-1).tolist()):
            begin = 0
            for step in range(STEPS):
                if done[step] or step == STEPS - 1:
                    expected.append((rollout, drone, begin, step + 1 - begin))
                    begin = step + 1
    assert len(expected) > 3 * DRONES, "some flights ended within a rollout"
    assert [storage.find_episode(k) for k in range(storage.num_episodes)] == expected
    rollout, drone, begin, length = expected[-3]
    read = storage.episode(len(expected) - 3, ["agents/action"])["agents", "action"]
    assert torch.equal(read, batches[rollout]["agents", "action"][drone, begin : begin + length])


def test_replay_buffer(archive, batches) -> None:
    buffer = RolloutStorage(archive).replay_buffer(["agents/action", "next/agents/reward"], batch_size=32)
    assert len(buffer) == 3 * DRONES * STEPS
    sample = buffer.sample()
    assert sample["agents", "action"].shape == (32, 3)
    assert torch.equal(buffer[:]["agents", "action"], torch.cat([b["agents", "action"].flatten(0, 1) for b in batches]))


def test_concurrent_readers(archive, batches) -> None:
    storage = RolloutStorage(archive)
    with ThreadPoolExecutor(8) as pool:
        read = [*pool.map(lambda k: storage.read(k % 3, [k % DRONES], ["agents/action"]), range(60))]
    for k, part in enumerate(read):
        assert torch.equal(part["agents", "action"][0], batches[k % 3]["agents", "action"][k % DRONES])


def test_damage_is_reported_and_stays_local(archive, batches) -> None:
    """500 byte changes or truncations, one at a time: whatever can be read is correct."""
    path, rng = archive / DATA, random.Random(0)
    good, storage = path.read_bytes(), RolloutStorage(archive)
    begins = [line["offset"] for line in storage.lines]
    for attempt in range(500):
        place = rng.randrange(len(good))
        if attempt % 5:
            bad = bytearray(good)
            bad[place] ^= rng.randrange(1, 256)
            hit = {max(k for k in range(3) if begins[k] <= place)}
        else:
            bad, hit = good[:place], {k for k in range(3) if begins[k] + storage.lines[k]["bytes"] > place}
        path.write_bytes(bad)
        fresh = RolloutStorage(archive, threads=1)
        for number in range(3):
            key = ["agents/action", "next/agents/observation/state", "agents/observation/lidar"][attempt % 3]
            try:
                read = fresh.read(number, keys=[key])
            except BadRollout as error:
                assert number in hit and f"rollout {number} in {archive}" in str(error) and "\n" not in str(error)
            else:
                assert torch.equal(read[tuple(key.split("/"))], batches[number][tuple(key.split("/"))])
    with path.open("wb") as file:
        file.write(good)


def test_damaged_index_is_rebuilt(archive, batches, caplog) -> None:
    """300 byte changes or truncations, and a missing index: every rollout is still found, and damage is reported."""
    path, rng = archive / INDEX, random.Random(1)
    good, lines = path.read_bytes(), RolloutStorage(archive).lines
    for attempt in range(300):
        place = rng.randrange(len(good))
        bad = bytearray(good[:place] if attempt % 5 == 0 else good)
        if attempt % 5:
            bad[place] ^= rng.randrange(1, 256)
        path.write_bytes(bad)
        assert RolloutStorage(archive).lines == lines
    assert "were recovered" in caplog.text
    path.unlink()
    storage = RolloutStorage(archive)
    assert storage.lines == lines and torch.equal(storage[2]["value"], batches[2]["value"])


def test_resuming_drops_rollouts_that_will_be_repeated(archive, batches) -> None:
    """Resuming from the state after iteration 1 replaces the rollout of iteration 2."""
    writer = RolloutArchive(archive, iteration=1)
    writer.append(batches[0], {"iteration": 2})
    writer.shutdown()
    storage = RolloutStorage(archive)
    assert [line["iteration"] for line in storage.lines] == [0, 1, 2]
    assert torch.equal(storage[2]["value"], batches[0]["value"])


def test_replay_buffer_skips_damaged_rollouts(archive, caplog) -> None:
    lines = RolloutStorage(archive).lines
    data = bytearray((archive / DATA).read_bytes())
    data[lines[1]["offset"] + lines[1]["bytes"] // 2] ^= 1
    (archive / DATA).write_bytes(data)
    buffer = RolloutStorage(archive).replay_buffer()
    assert len(buffer) == 2 * DRONES * STEPS and "rollout 1 in" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_full_disk(batches, tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed on this machine")
    try:
        writer = RolloutArchive(disk, waiting=50)
        for number in range(20):
            writer.append(batches[number % 3], {"iteration": number})
        writer.shutdown()
        storage = RolloutStorage(disk)
        assert 0 < len(storage) == writer.stats["stored"] < 20 and writer.stats["failed"] == 20 - len(storage)
        for number in range(len(storage)):
            assert torch.equal(storage[number]["value"], batches[number % 3]["value"])
        assert (disk / DATA).stat().st_size == sum(line["bytes"] for line in storage.lines), "no partial record remains"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_remains_of_a_crash_are_skipped(archive, batches) -> None:
    with (archive / DATA).open("ab") as file:
        file.write(b"half a record")
    with (archive / INDEX).open("a") as file:
        file.write('{"offset": 12, "by')
    writer = RolloutArchive(archive)
    writer.append(batches[0], {"iteration": 9})
    writer.shutdown()
    storage = RolloutStorage(archive)
    assert [line["iteration"] for line in storage.lines] == [0, 1, 2, 9]
    for number, batch in enumerate([*batches, batches[0]]):
        assert torch.equal(storage.read(number, keys=["value"])["value"], batch["value"])


def test_killed_while_writing(batches, tmp_path) -> None:
    """SIGKILL at different moments of appending: every indexed rollout is complete."""
    batch = tmp_path / "batch.pt"
    torch.save(batches[0].to_dict(), batch)
    program = (
        "import sys, torch; from pathlib import Path; from tensordict import TensorDict;"
        "from navrl.collect.rollouts import append_record, pack_rollout;"
        f"batch = TensorDict(torch.load({str(batch)!r}), [{DRONES}, {STEPS}]); folder = Path(sys.argv[1])\n"
        "for k in range(10**9): append_record(folder, *pack_rollout(batch, {'iteration': k}))"
    )
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for life in range(3):
        process = subprocess.Popen([sys.executable, "-c", program, str(folder)])
        have = len(RolloutStorage(folder)) if (folder / INDEX).exists() else 0
        while not (folder / INDEX).exists() or len(RolloutStorage(folder)) < have + 3:
            time.sleep(0.01)
        time.sleep(0.013 * life)
        process.send_signal(signal.SIGKILL)
        process.wait()
        storage = RolloutStorage(folder)
        for number in range(have, len(storage)):
            assert torch.equal(storage[number]["value"], batches[0]["value"])


def test_failing_disk_and_slow_disk(batches, tmp_path, monkeypatch, caplog) -> None:
    writer = RolloutArchive(tmp_path / "rollouts", waiting=1)
    (tmp_path / "rollouts" / DATA).mkdir()  # in the way
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            writer.append(batches[0], {})
            while writer._queue.qsize():
                time.sleep(0.01)
        writer.shutdown()
    assert writer.stats["failed"] == writer.disk.failures == 2 and len(caplog.records) == 1
    slow = RolloutArchive(tmp_path / "slow", waiting=1)
    monkeypatch.setattr(
        "navrl.collect.rollouts.append_record", lambda *a: time.sleep(0.5) or {"bytes": 1, "raw_bytes": 1}
    )
    for _ in range(6):
        slow.append(batches[0], {})
    slow.shutdown()
    assert slow.stats["left_out"] >= 3 and slow.stats["stored"] + slow.stats["left_out"] == 6


def test_missing_archive(tmp_path) -> None:
    with pytest.raises(BadRollout, match="rollout_save_interval"):
        RolloutStorage(tmp_path)
