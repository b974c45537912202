"""Training, stopping, resuming and evaluating on Isaac Lab, as a person does it. make test-isaac"""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

pytest.importorskip("isaaclab", reason="Isaac Lab is not installed: make test-isaac")

from test_train import ROOT, run, start

from navrl.checkpoint.retention import states_of
from navrl.io.files import load_checkpoint
from navrl.monitor.metrics import read_rows

ISAAC = ["sim=isaac", "logger=none"]


def test_train_stop_resume_evaluate(tmp_path) -> None:
    process = start(*ISAAC, "headless=True", "max_frame_num=10240", "eval_interval=0", cwd=tmp_path)  # 20 iterations
    while process.poll() is None and not list(tmp_path.glob("runs/*/*/metrics.csv")):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "physics: ovphysx" in out, out + err
    (there,) = tmp_path.glob("runs/*/*")
    stopped_at = load_checkpoint(states_of(there)[0])["iteration"]
    assert 0 < stopped_at < 20
    done = run(f"resume={there}", cwd=tmp_path, small=False)
    assert done.returncode == 0 and f"iteration {stopped_at}" in done.stdout, done.stderr
    assert "begin new flights" not in done.stdout and "PhysX rounds attitudes" in done.stdout
    frames = [row["frames"] for row in read_rows(there / "metrics.csv") if "losses/entropy" in row]
    assert frames == [512 * k for k in range(1, 21)], "the curve continues"

    flown = [
        "eval.scenarios=[crossing-20-8,borders-20-0]",
        "eval.episodes=8",
        "eval.maps=2",
        "env.max_episode_length=120",
    ]
    for engine in ("isaac", "warp"):  # trained on one, flown on both
        done = run(f"policy={there / 'policy.pt'}", f"sim={engine}", *flown, cwd=tmp_path, script="eval", small=False)
        assert done.returncode == 0 and "borders-20-0" in done.stdout, done.stderr


def test_navrls_policy_flies_as_on_warp(tmp_path) -> None:
    """48 flights from the same starts: success within 6 points."""
    published = ROOT / "third_party/navrl/navrl_checkpoint.pt"
    success = {}
    for engine in ("isaac", "warp"):
        arguments = [f"policy={published}", f"sim={engine}", "eval.scenarios=[crossing-350-0]", "eval.episodes=48"]
        done = run(
            *arguments, "eval.picture=false", "hydra.run.dir=" + engine, cwd=tmp_path, script="eval", small=False
        )
        assert done.returncode == 0, done.stderr
        success[engine] = json.loads((tmp_path / engine / "eval.json").read_text())["crossing-350-0"]["success"]
    assert abs(success["isaac"] - success["warp"]) <= 0.06 and success["warp"] > 0.8, success


def test_a_window_where_there_is_none(tmp_path) -> None:
    done = run(*ISAAC, "headless=False", "max_frame_num=512", "eval_interval=0", cwd=tmp_path)
    assert done.returncode == 0 and "Isaac Lab with ovphysx has no window" in done.stdout, done.stderr


def test_a_run_can_change_engines(tmp_path) -> None:
    done = run("max_frame_num=1024", "logger=none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (there,) = tmp_path.glob("runs/*/*")
    done = run(f"resume={there}", "sim=isaac", "max_frame_num=2048", cwd=tmp_path, small=False)
    assert done.returncode == 0 and "the drones begin new flights" in done.stdout, done.stdout + done.stderr


def test_what_is_missing_costs_one_line(tmp_path) -> None:
    broken = tmp_path / "broken/isaaclab"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libphysx.so: no such file')")
    paths = f"{broken.parent}:{ROOT / 'isaac-training'}"
    for overrides, environment, words in (
        (["sim.physics=physx"], {}, "sim.physics=physx: needs Isaac Sim"),
        (["use_pipelined_collector=true", "return_same_td=false"], {}, "leave it false with sim=isaac"),
        (["sim.physics=havok"], {}, "must be one of auto, ovphysx, physx, newton"),
        (
            [],
            {"PYTHONPATH": paths},
            "Isaac Lab is broken (ImportError: libphysx.so: no such file); run: make clean-isaac",
        ),
    ):
        done = run(*ISAAC, *overrides, cwd=tmp_path, **environment)
        lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("[")]
        assert done.returncode == 2 and len(lines) == 1 and words in lines[0], done.stderr
        assert not (tmp_path / "runs").exists()
