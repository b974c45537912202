"""Several ranks: torchrun starts them, kills, signals and restarts included. Real processes, real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from commands import ROOT, SMALL, run

from navrl.checkpoint.retention import newest_state, states_of
from navrl.collect.rollouts import RolloutStorage
from navrl.io.snapshot import tensors_of

BATCH = 64 * 8  # frames of SMALL
QUIET = ["logger=none", "eval_interval=0", "perf.interval=0"]


def start(*overrides: str, cwd: Path, ranks: int = 2, restarts: int = 0) -> subprocess.Popen:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*launcher, f"--max-restarts={restarts}", str(ROOT / "scripts/train.py"), *SMALL, *QUIET, *overrides]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *command], cwd=cwd, env=environment, start_new_session=True, **pipes)


def train(*overrides: str, cwd: Path, **more) -> str:
    process = start(*overrides, cwd=cwd, **more)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out[-3000:]
    return out


def wait_for(condition: Callable[[], object], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, (process.stdout and process.stdout.read()) or ""
        time.sleep(0.05)


def state(run: Path) -> dict:
    return newest_state(run)[1]


def same(a: dict, b: dict, *parts: str) -> bool:
    pairs = [zip(tensors_of(a[part]), tensors_of(b[part]), strict=True) for part in parts]
    return all(torch.equal(x, y) for part in pairs for x, y in part)


def weights(state: dict) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors_of(state["ppo"]["policy"])])


def test_ranks_learn_what_one_learns(tmp_path) -> None:
    """After one iteration drones, obstacles and flights are the same bits, and the weights the same to rounding."""
    done = run(*QUIET, f"max_frame_num={BATCH}", "hydra.run.dir=one", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = train(f"max_frame_num={BATCH}", "hydra.run.dir=two", cwd=tmp_path)
    assert "building 64 drones, shared out over 2 ranks" in out and out.count("drawing 2 maps") == 1
    one, two = state(tmp_path / "one"), state(tmp_path / "two")
    assert same(one, two, "batches", "flights") and one["ppo"]["rate_scale"] == two["ppo"]["rate_scale"]
    difference = (weights(one) - weights(two)).norm() / weights(one).norm()
    assert 0 <= difference < 1e-5
    results = [json.loads((tmp_path / name / "eval.json").read_text()) for name in ("one", "two")]
    assert results[0]["scenarios"].keys() == results[1]["scenarios"].keys(), "flights of all ranks"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"], "no directory of rank 1's own"

    # The state of two ranks continues with one, and the other way round.
    told = run("resume=two", f"max_frame_num={2 * BATCH}", cwd=tmp_path, small=False)
    assert told.returncode == 0 and "ranks (2 → 1)" in told.stdout and state(tmp_path / "two")["iteration"] == 2
    out = train("resume=one", f"max_frame_num={2 * BATCH}", cwd=tmp_path)
    assert "ranks (1 → 2)" in out and "begin new flights" not in out and state(tmp_path / "one")["iteration"] == 2


def test_every_way_to_collect(tmp_path) -> None:
    """Compressed batches learn the same bits; prefetched ones and stored rollouts have all drones."""
    frames = f"max_frame_num={4 * BATCH}"
    train(frames, "hydra.run.dir=plain", cwd=tmp_path)
    train(frames, "compress_rollout=all", "hydra.run.dir=packed", cwd=tmp_path)
    assert same(state(tmp_path / "plain"), state(tmp_path / "packed"), "ppo", "batches")
    given = "use_pipelined_collector=true", "return_same_td=false", "rollout_save_interval=2", "encoder=navrl"
    train(frames, *given, "hydra.run.dir=ahead", cwd=tmp_path)
    storage = RolloutStorage(tmp_path / "ahead" / "rollouts")
    assert len(storage) == 2 and storage[0].batch_size == torch.Size((64, 8))


def test_a_killed_rank_is_restarted_and_nothing_is_lost(tmp_path) -> None:
    """The small version of scripts/bench/kill_storm.py ranks=2."""
    command = [sys.executable, str(ROOT / "scripts/bench/kill_storm.py"), "ranks=2", "kills=3", "seed=2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] == 3 and told["tensors_that_differ"] == told["older"] == told["torn"] == 0


@pytest.mark.parametrize("target", ["agent", "rank"])
def test_a_request_to_stop_saves_once_and_ends_all(tmp_path, target: str) -> None:
    process = start("max_frame_num=1e9", "save_interval=5", "hydra.run.dir=run", cwd=tmp_path, restarts=3)
    wait_for(lambda: states_of(tmp_path / "run"), process)
    ranks = psutil.Process(process.pid).children()
    (ranks[-1] if target == "rank" else process).send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert out.count("resume with: navrl train resume=run") == 1 and "resuming from" not in out
    assert not any(rank.is_running() for rank in ranks)
    before = state(tmp_path / "run")["iteration"]
    train("resume=run", f"max_frame_num={(before + 2) * BATCH}", cwd=tmp_path)
    assert state(tmp_path / "run")["iteration"] == before + 2


def test_a_rank_that_hangs_is_named(tmp_path) -> None:
    process = start("max_frame_num=1e9", "save_interval=1", "ranks.timeout=3", "hydra.run.dir=run", cwd=tmp_path)
    wait_for(lambda: states_of(tmp_path / "run"), process)
    hanging = psutil.Process(process.pid).children()[1]
    hanging.suspend()
    assert process.stdout
    line = next(line for line in process.stdout if "not answered" in line)
    os.killpg(process.pid, signal.SIGKILL)  # torchrun would wait half a minute for the one that cannot answer
    for rank in psutil.Process().children(recursive=True):
        rank.kill()
    process.wait()
    assert re.search(
        rf"error: rank 1 \(process {hanging.pid} on .*\) has not answered for \d+ s \(ranks.timeout=3\)", line
    )


def test_infinity_on_one_rank_stops_all(tmp_path) -> None:
    """All ranks' batches are in the replay file, so that one process fails in the same way."""
    process = start("reward.goal=0", "reward.progress=1e38", "max_frame_num=1e6", "hydra.run.dir=run", cwd=tmp_path)
    out, _ = process.communicate(timeout=120)
    assert process.returncode and out.count("is not finite; training stopped") == 1, out[-3000:]
    again = run("run/not_finite.pt", cwd=tmp_path, script="replay", small=False)
    assert again.returncode == 0 and "again: " in again.stdout


BAD = {
    ("env.num_envs=63", "algo.num_minibatches=4"): "cannot be shared out evenly over 2 ranks; the nearest that can is",
    ("env.num_envs=1",): "cannot be shared out evenly over 2 ranks; the nearest that can is 2",
    ("algo.num_minibatches=16",): "leaves 32 frames per minibatch for 2 ranks, which need at least 64; use fewer",
    ("-m", "seed=0,1"): "leave out torchrun or -m",
}


@pytest.mark.parametrize("overrides", BAD)
def test_bad_input_is_one_line(tmp_path, overrides: tuple[str, ...]) -> None:
    process = start(*overrides, cwd=tmp_path)
    out, _ = process.communicate(timeout=120)
    lines = [line for line in out.splitlines() if line.startswith("error: ")]
    assert process.returncode and len(set(lines)) == 1 and BAD[overrides] in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_ranks_with_different_settings_are_refused(tmp_path) -> None:
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
    environment |= {"MASTER_PORT": str(20000 + os.getpid() % 10000)}
    processes = []
    for rank in range(2):
        given = [sys.executable, str(ROOT / "scripts/train.py"), *SMALL, *QUIET, f"seed={rank}", "ranks.timeout=60"]
        mine = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(given, cwd=tmp_path, env=mine, **pipes))
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], said
    assert "error: seed=1: rank 0 has 0; start every rank with the same settings" in said[1] and "error" not in said[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="there are no tun devices here")
def test_two_hosts_with_a_cut_cable(tmp_path) -> None:
    """The small version of scripts/bench/hosts.py: the ranks give each other up, and torchrun starts them again."""
    script = [str(ROOT / "scripts/bench/hosts.py"), "iterations=24", "cut=5", "delay=1", "timeout=3"]
    done = subprocess.run([sys.executable, *script], cwd=tmp_path, capture_output=True, text=True, timeout=400)
    if "ip netns" in done.stderr or "No such file or directory: 'ip'" in done.stderr:
        pytest.skip("network namespaces cannot be made here")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["iterations"] == 24 and told["tensors_that_differ"] == 0 and told["machine_ranks"] == 2
