"""Learning from a packed batch is learning from the batch."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from navrl.checkpoint.snapshot import tensors_of
from navrl.collect import packed_rows
from navrl.collect.batches import SerialBatches
from navrl.collect.packed_rows import PackedRows
from navrl.ppo.networks import ActorCritic, FastEncoder, NavRLEncoder
from navrl.ppo.ppo import PPO, PPOSettings


@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.parametrize("count", [1, 511, 512, 1300])
def test_rows_come_back(columns: int | None, count: int) -> None:
    inputs = [torch.randn(count, 4).round(decimals=1), torch.randn(count, 3)]
    held = PackedRows(inputs, lambda *parts: torch.cat(parts, dim=1), columns)
    assert held.shape == (count, 7) and len(held) == count
    index = torch.randint(count, (300,))
    out = torch.empty(300, 7)
    held.select(index, out)
    assert torch.equal(out, torch.cat(inputs, dim=1)[index])


@pytest.mark.parametrize("encoder", [FastEncoder, NavRLEncoder])
@pytest.mark.parametrize("columns", [None, 144])
def test_the_same_is_learned(make_env, scene, monkeypatch, encoder: type, columns: int | None) -> None:
    monkeypatch.setattr(packed_rows, "CHUNK", 64)  # several chunks, the last one smaller
    torch.manual_seed(0)
    policy = ActorCritic(encoder((36, 4), 4.0), 2.0)
    weights = {name: value.clone() for name, value in policy.state_dict().items()}
    states, sizes = [], []
    env = make_env(scene, 20, decimation=4, task={"max_episode_length": 60})
    batch = next(SerialBatches(env, PPO(policy, PPOSettings(), seed=5), 20 * 10, return_same_td=False))
    for hold in (None, partial(PackedRows, columns=columns)):
        policy.load_state_dict(weights)
        ppo = PPO(policy, PPOSettings(minibatches=4), seed=5, hold=hold)
        for _ in range(2):
            metrics = ppo.update(batch)
        states.append([*map(torch.clone, tensors_of(ppo.state())), torch.tensor([*metrics.values()])])
        sizes.append(ppo.lay_out(batch)[0])
    assert all(map(torch.equal, *states))
    assert sizes[1].nbytes < 0.8 * sizes[0].rows.nbytes
