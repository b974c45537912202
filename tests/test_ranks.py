"""What the processes of a run exchange, on real processes; and a lone one, which exchanges nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from navrl.ranks import ALONE, RankFailed, Ranks, RanksSettings, connect
from navrl.settings import ConfigError

PROGRAM = Path(__file__).parent / "ranks_program.py"


@pytest.mark.parametrize("count", [3, 4])  # a ring, and recursive doubling
def test_several_ranks(count: int) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{count} ranks: all is well" in done.stdout


def test_a_lone_process_passes_through() -> None:
    tensor = torch.arange(3.0)
    ALONE.sum(tensor)
    assert tensor.tolist() == [0, 1, 2] and ALONE.most(3, 4) == (3, 4) and ALONE.from_first("x") == "x"
    assert ALONE.gather(5) == [5] and ALONE.share(10) == (0, 10) and ALONE.first and ALONE.agreed
    with pytest.raises(ZeroDivisionError), ALONE.together():
        raise ZeroDivisionError


def test_shares_are_whole_and_even() -> None:
    for total, size in ((1024, 4), (10, 3), (1, 2)):
        shares = [Ranks(rank, size).share(total) for rank in range(size)]
        assert [k for first, count in shares for k in range(first, first + count)] == list(range(total))
        assert max(count for _, count in shares) - min(count for _, count in shares) <= 1 and shares[0][1] > 0


WRONG = {
    "RANK=1": "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not; start several ranks with torchrun",
    "WORLD_SIZE=2": "RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not",
    "RANK=x WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1": "must be a whole number",
    "RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1": "must be below WORLD_SIZE=2",
    "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1": "the 2 ranks cannot meet there",
}


@pytest.mark.parametrize("variables", WRONG)
def test_wrong_variables_are_one_line(monkeypatch, variables: str) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    with pytest.raises(ConfigError) as error:
        connect(RanksSettings(timeout=1.0))
    assert WRONG[variables] in str(error.value) and "\n" not in str(error.value)


def test_a_port_in_use_is_one_line(monkeypatch) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_RANK", 0), ("MASTER_PORT", port)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port}: the 2 ranks cannot meet there"):
            connect(RanksSettings(timeout=2.0))


def test_failures_have_a_kind() -> None:
    assert RankFailed("rank 1 is gone").kind == "" and RankFailed("x", "ValueError").kind == "ValueError"
