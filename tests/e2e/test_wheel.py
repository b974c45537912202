"""A wheel, installed into an empty folder, trains, evaluates and exports from another directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from navrl.monitor.metrics import read_rows

ROOT = Path(__file__).parents[2]
SMALL = ["env.num_envs=16", "algo.training_frame_num=4", "algo.num_minibatches=2", "env.num_maps=1", "device=cpu",
         "env.max_episode_length=60", "eval.scenarios=[crossing-20-8]", "eval.maps=1"]  # fmt: skip
TRAIN = [*SMALL, "max_frame_num=256", "eval.episodes=4", "eval.final_episodes=4", "logger=none"]
EVAL = ["eval.scenarios=[crossing-20-8]", "eval.episodes=8", "eval.maps=2", "env.max_episode_length=60", "device=cpu"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("navrl-*.whl")
    assert wheel.stat().st_size < 3e6
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def test_it_trains_evaluates_exports_and_reports(installed, tmp_path) -> None:
    def navrl(*arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(installed)}
        command = [sys.executable, str(installed / "bin/navrl"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (arguments, done.stdout + done.stderr)
        return done.stdout

    where = [sys.executable, "-c", "import navrl.train.settings as s; print(s.__file__, s.CONFIG.resolve())"]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    out = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(installed / "navrl/train/settings.py"), str(installed / "navrl/cfg")]

    assert "done after" in navrl("train", *TRAIN)
    (run,) = tmp_path.glob("runs/*/*")
    for policy in (str(run / "policy.pt"), "default", "navrl"):
        assert "crossing-20-8" in navrl("eval", f"policy={policy}", *EVAL)
    assert navrl("export", "checkpoint=default", "output=policy.onnx").strip().endswith("done")
    assert (tmp_path / "policy.onnx").exists() and (tmp_path / "policy.ts").exists()
    navrl("train", f"resume={run}", "max_frame_num=512")
    assert max(row["frames"] for row in read_rows(run / "metrics.csv")) == 512
    assert "frames/s" in navrl("report", str(run)) and (run / "report.html").exists()
