# pyright: reportInvalidTypeForm=false, reportOperatorIssue=false
"""Splitting launches across threads."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from navrl.native import launch
from navrl.native.launch import Recorded, Team, number_at
from navrl.native.runtime import start_warp

CPU = torch.device("cpu")


@wp.kernel
def mark(first: int, order: int, numbers: wp.uint64, out: wp.array2d(dtype=int)):
    i = first + wp.tid()
    out[i, order] = out[i, 0] + number_at(numbers, i)


@pytest.mark.parametrize("total, threads, parts", [(1024, 2, 2), (1023, 3, 3), (40, 2, 1), (1, 8, 1), (100, 8, 3)])
def test_slices_cover_every_drone_once(total: int, threads: int, parts: int) -> None:
    slices = Team(CPU, threads).slices(total)
    assert len(slices) == parts
    assert [i for first, size in slices for i in range(first, first + size)] == list(range(total))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_launch_of_every_slice_runs_in_order(threads: int) -> None:
    start_warp()
    out = torch.zeros(1000, 3, dtype=torch.int32)
    numbers = torch.arange(1000, dtype=torch.int32)
    team = Team(CPU, threads)
    slices = [
        [Recorded(mark, size, [first, order, numbers.data_ptr(), out], CPU) for order in (0, 1, 2)]
        for first, size in team.slices(1000)
    ]
    prepared = team.prepare(slices)
    for _ in range(200):
        out.zero_()
        team.run(slices, prepared)
        assert torch.equal(out, torch.stack([numbers, 2 * numbers, 2 * numbers], dim=1))


def test_arguments_and_size_can_change() -> None:
    start_warp()
    out = torch.zeros(10, 1, dtype=torch.int32)
    ones, twos = torch.ones(10, dtype=torch.int32), torch.full((10,), 2, dtype=torch.int32)
    recorded = Recorded(mark, 10, [0, 0, ones.data_ptr(), out], CPU)
    recorded.run()
    recorded.set("numbers", twos.data_ptr())
    recorded.resize(3)
    recorded.run()
    assert out.view(-1).tolist() == [3] * 3 + [1] * 7


def test_single_thread_without_torchs_openmp(monkeypatch, make_sim, scene) -> None:
    monkeypatch.setattr(launch, "openmp", lambda: None)
    sim = make_sim(scene, 200, threads=2)
    assert sim.team.size == 1
    sim.step(torch.zeros(200, 3))
