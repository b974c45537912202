"""scripts/eval.py as a person runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLISHED = "third_party/navrl/navrl_checkpoint.pt"


def run(*overrides: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts/eval.py"), *overrides]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_table_json_and_pictures(tmp_path) -> None:
    done = run(
        f"policy={ROOT / PUBLISHED}", "eval.scenarios=[crossing-20-8,borders-0-0]", "eval.episodes=16", "eval.maps=4",
        "env.max_episode_length=300", "sim.decimation=4", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "crossing-20-8" in done.stdout and "success" in done.stdout and "±" in done.stdout
    (run_dir,) = tmp_path.glob("runs/*/*")
    results = json.loads((run_dir / "eval.json").read_text())
    assert list(results) == ["crossing-20-8", "borders-0-0"]
    outcomes = ("success", "static_collision", "dynamic_collision", "out_of_bounds", "timeout")
    for result in results.values():
        assert result["episodes"] == 16
        assert sum(result[name] for name in outcomes) == pytest.approx(1.0)
        assert 0 <= result["success_ci95"][0] <= result["success"] <= result["success_ci95"][1] <= 1
    for suffix in ("png", "html"):
        assert {p.stem for p in run_dir.glob(f"*.{suffix}")} == {"flights-crossing-20-8", "flights-borders-0-0"}
    assert not list(run_dir.glob("*.mp4")), "nobody asked for a video"
    assert (run_dir / "config" / "config.yaml").exists()
    assert "Warp" not in done.stderr, "no alarm about a missing GPU"


def test_a_video_and_nothing_else(tmp_path) -> None:
    done = run(
        "policy=straight", "eval.scenarios=[crossing-20-8]", "eval.episodes=4", "eval.maps=1",
        "env.max_episode_length=60", "eval.picture=false", "eval.replay=false", "eval.video=true", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run_dir,) = tmp_path.glob("runs/*/*")
    (video,) = run_dir.glob("flights-*")
    assert video.name == "flights-crossing-20-8.mp4" and video.read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize(
    "override, words",
    [
        ("policy=nowhere.pt", "no such file, and not one of default, navrl, straight"),
        ("drone.action_limit=fast", "must be a number"),
        ("policy=foreign.pt", "is not a checkpoint"),
        ("sensor.lidar_hres=7", "divide 360"),
        ("eval.episodes=0", "between 1"),
    ],
)
def test_mistakes_cost_one_line_and_leave_nothing(tmp_path, override: str, words: str) -> None:
    (tmp_path / "foreign.pt").write_bytes(b"something else")
    done = run(override, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error: " + override) and words in done.stderr
    assert not (tmp_path / "runs").exists()


def test_unknown_keys_are_hydras_to_refuse(tmp_path) -> None:
    done = run("env.number=3", cwd=tmp_path)
    assert done.returncode != 0 and "env.number" in done.stderr


def test_ctrl_c_keeps_what_is_finished(tmp_path) -> None:
    scenarios = "eval.scenarios=[borders-0-0,crossing-350-80]"
    command = [sys.executable, str(ROOT / "scripts/eval.py"), "policy=hover", scenarios, "eval.episodes=64"]
    pipes: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell starts background jobs with SIGINT ignored, and children inherit that.
    process = subprocess.Popen(
        command, cwd=tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **pipes
    )
    while not (written := list(tmp_path.glob("runs/*/*/eval.json"))):  # the first scenario is done
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in errors and "Traceback" not in errors
    assert list(json.loads(written[0].read_text())) == ["borders-0-0"]
