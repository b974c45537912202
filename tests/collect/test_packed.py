"""Learning from a packed batch is learning from the batch, in less memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from conftest import collect_settings, make_learner
from navrl.collect import packed
from navrl.collect.batches import PrefetchedBatches, SerialBatches
from navrl.collect.packed import PackedRows, Packer
from navrl.io.snapshot import tensors_of
from navrl.ppo.batch import VERSION

DRONES, STEPS = 20, 12


@pytest.mark.parametrize("columns", [None, 3, 0])
@pytest.mark.parametrize("drones, steps, piece", [(1, 1, 1), (7, 6, 2), (300, 4, 4), (70, 10, 4)])
def test_rows_come_back(columns: int | None, drones: int, steps: int, piece: int) -> None:
    rows = torch.randn(drones, steps, 7).round(decimals=1)
    held = PackedRows(drones, steps, columns)
    for first in range(0, steps, piece):
        held.add(first, rows[:, first : first + piece].reshape(-1, 7))
    assert held.shape == (drones * steps, 7) and len(held) == drones * steps
    index = torch.randint(drones * steps, (300,))
    out = torch.empty(300, 7)
    held.select(index, out)
    assert torch.equal(out, rows.view(-1, 7)[index])


@pytest.fixture
def make(make_env, scene) -> Callable[[str], tuple]:
    """An environment and a learner, the same every time; flights end, by time and otherwise, within a batch."""

    def build(encoder: str) -> tuple:
        ppo = make_learner(encoder, num_minibatches=5)
        return make_env(scene, DRONES, decimation=4, task={"max_episode_length": 60}), ppo

    return build


@pytest.mark.parametrize("encoder", ["fast", "navrl"])
@pytest.mark.parametrize("compress, pieces", [("all", 4), ("lidar", 3), ("lidar", 1)])
@pytest.mark.parametrize("kind", [SerialBatches, PrefetchedBatches])
def test_the_same_is_learned(make, monkeypatch, kind: type, encoder: str, compress: str, pieces: int) -> None:
    monkeypatch.setattr(packed, "UNIT", 16)  # several blocks per piece, the last one smaller
    monkeypatch.setattr(packed, "PIECES", pieces)
    monkeypatch.setattr(PackedRows, "ahead", 2)
    (env, plain), (twin, ppo) = make(encoder), make(encoder)
    pipelined = {"pipelined": kind is PrefetchedBatches, "return_same_td": kind is SerialBatches}
    one = kind(env, plain, collect_settings(STEPS, **pipelined))
    other = kind(twin, ppo, collect_settings(STEPS, compress=compress, **pipelined))
    ended = 0
    for _ in range(3):
        whole, held = next(one), next(other)
        assert isinstance(held.rows, PackedRows) and torch.equal(held[VERSION], whole[VERSION])
        assert torch.equal(held.rows.tensor(), whole.rows.tensor())
        for key in (("next", "done"), ("next", "stats", "length"), "value"):
            assert torch.equal(held[key], whole[key])
        metrics = plain.update(whole), ppo.update(held)
        assert metrics[0] == metrics[1]
        assert all(map(torch.equal, tensors_of(plain.state()), tensors_of(ppo.state())))
        ended += int(whole["next", "truncated"].sum())
    assert ended > 0
    one.shutdown(), other.shutdown()


def test_pieces_divide_the_steps() -> None:
    assert [Packer(torch.cat, steps, None).pieces for steps in (1, 7, 12, 32, 64)] == [1, 7, 6, 8, 8]


def test_a_batch_takes_less_memory(make) -> None:
    env, ppo = make("fast")
    whole = next(SerialBatches(env, ppo, collect_settings(64, return_same_td=False))).frames.bytes()
    env, ppo = make("fast")
    for compress, most in (("lidar", 0.35), ("all", 0.3)):
        assert next(SerialBatches(env, ppo, collect_settings(64, compress=compress))).bytes() < most * whole
