"""scripts/train.py, export.py and replay.py as a person runs them."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from navrl.ppo.policy_file import load_policy

ROOT = Path(__file__).parents[2]
SMALL = [
    "env.num_envs=64", "algo.training_frame_num=8", "algo.num_minibatches=4", "env.num_maps=2", "env.num_obstacles=20",
    "env_dyn.num_obstacles=8", "env.max_episode_length=120", "eval.scenarios=[crossing-20-8]", "eval.episodes=8",
    "eval.final_episodes=8", "eval.maps=2",
]  # fmt: skip


def start(
    *overrides: str, cwd: Path, script: str = "train", small: bool = True, **environment: str
) -> subprocess.Popen:
    command = [sys.executable, str(ROOT / f"scripts/{script}.py"), *(SMALL if small else []), *overrides]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=os.environ | environment, start_new_session=True, **pipes)


def run(*overrides: str, cwd: Path, **more) -> subprocess.CompletedProcess:
    process = start(*overrides, cwd=cwd, **more)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """One small run, with everything switched on."""
    folder = tmp_path_factory.mktemp("trained")
    done = run("headless=True", "max_frame_num=5120", "eval_interval=4", "save_interval=4", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run_dir,) = folder.glob("runs/*/*")
    return run_dir, done


def test_a_run_leaves_everything(trained) -> None:
    run_dir, done = trained
    names = {path.name for path in run_dir.iterdir()}
    assert {"policy.pt", "manifest.jsonl", "metrics.csv", "curves.png", "eval.json", "config", "wandb"} <= names
    assert "flights-crossing-20-8.png" in names
    assert "frames/s" in done.stdout and "peak memory" in done.stdout and "GB needed" in done.stdout
    rows = list(csv.DictReader((run_dir / "metrics.csv").open()))
    assert max(int(float(row["frames"])) for row in rows) == 5120
    for name in (
        "losses/approx_kl", "losses/clipfrac", "losses/entropy", "losses/explained_variance", "losses/grad_norm",
        "charts/SPS", "charts/learning_rate", "eval/crossing-20-8/success",
    ):  # fmt: skip
        assert any(row[name] for row in rows), name
    assert sum(bool(row["eval/crossing-20-8/success"]) for row in rows) == 3, "after 4, 8 and 10 iterations"
    assert json.loads((run_dir / "eval.json").read_text())["frames"] == 5120
    _, known = load_policy(run_dir / "policy.pt")
    assert known["about"]["frames"] == 5120 and known["about"]["decimation"] == 4 and known["about"]["scores"]


def test_the_same_seed_gives_the_same_policy(trained, tmp_path) -> None:
    run_dir, _ = trained
    done = run("max_frame_num=5120", "logger=tensorboard", "sim.threads=1", "return_same_td=false", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (other,) = tmp_path.glob("runs/*/*")
    assert list((other / "tensorboard").glob("events*"))
    ours, theirs = (load_policy(path / "policy.pt")[0].state_dict() for path in (run_dir, other))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_trained_policy_is_evaluated_and_exported(trained, tmp_path) -> None:
    run_dir, _ = trained
    arguments = ["eval.scenarios=[crossing-20-8]", "eval.episodes=8", "env.max_episode_length=60"]
    done = run(f"policy={run_dir / 'policy.pt'}", *arguments, cwd=tmp_path, script="eval", small=False)
    assert done.returncode == 0, done.stderr
    arguments = [f"checkpoint={run_dir / 'policy.pt'}", "output=policy.onnx"]
    done = run(*arguments, cwd=tmp_path, script="export", small=False)
    assert done.returncode == 0 and done.stdout.strip().endswith("done"), done.stderr

    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["decimation"]) == 4 and json.loads(metadata["action_limit"]) == 2.0
    assert {"goal_frame", "lidar_order", "commit", "scores", "beams", "lidar_vfov"} <= set(metadata)
    assert [i.name for i in session.get_inputs()] == ["state", "lidar", "direction", "dynamic_obstacle"]
    extra = {"metadata.json": ""}
    torch.jit.load(tmp_path / "policy.ts", _extra_files=extra)
    assert json.loads(extra["metadata.json"])["encoder"] == "fast"


def test_navrls_network_trains_on_from_its_checkpoint_and_back(tmp_path) -> None:
    published = ROOT / "third_party/navrl/navrl_checkpoint.pt"
    done = run("encoder=navrl", f"checkpoint={published}", "max_frame_num=512", "logger=none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = tmp_path.glob("runs/*/*")
    arguments = [f"checkpoint={run_dir / 'policy.pt'}", "output=policy.onnx"]
    assert run(*arguments, cwd=tmp_path, script="export", small=False).returncode == 0
    theirs = torch.load(tmp_path / "policy.navrl.pt", weights_only=True)
    original = torch.load(published, map_location="cpu", weights_only=True)
    assert {k: v.shape for k, v in theirs.items()} == {k: v.shape for k, v in original.items()}


def test_ctrl_c_leaves_a_policy_curves_and_a_picture(tmp_path) -> None:
    process = start("max_frame_num=1e8", "save_interval=0", "eval_interval=0", cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/*/metrics.csv")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells the whole group, wandb's helper too
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped after" in out and "Traceback" not in err
    (run_dir,) = tmp_path.glob("runs/*/*")
    assert {"policy.pt", "curves.png", "flights-crossing-20-8.png"} <= {path.name for path in run_dir.iterdir()}
    assert not list(run_dir.glob("*.tmp"))


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["algo.num_minibatches=5"], "must divide"),
        (["env.num_envs=1000000", "algo.training_frame_num=100000", "max_frame_num=1e12"], "GB available"),
        (["checkpoint=nowhere.pt"], "does not exist"),
        (["checkpoint=[a]"], "must be a word"),
        (["wandb=5"], "must be a section"),
        (["env.num_envs=???"], "env.num_envs"),
        (["no.such.key=1"], "no"),
    ],
)
def test_mistakes_cost_one_line_and_leave_nothing(tmp_path, overrides: list[str], words: str) -> None:
    done = run(*overrides, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 or "no.such.key=1" in overrides  # Hydra's own words are three
    assert not (tmp_path / "runs").exists()


def test_a_run_directory_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run("hydra.run.dir=file/run", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: hydra.run.dir=file/run")


def test_infinity_stops_the_run_and_can_be_replayed(tmp_path) -> None:
    done = run("reward.progress=1e38", "logger=none", cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: iteration ") and "is not finite" in line
    (saved,) = tmp_path.glob("runs/*/*/not_finite.pt")
    again = run(str(saved), cwd=tmp_path, script="replay", small=False)
    assert again.returncode == 0 and "again: " in again.stdout, again.stdout + again.stderr


def test_a_disk_that_takes_no_more(tmp_path) -> None:
    """Files may grow to 50 kB and no further: training goes on to its end, says so once, and exits with an error."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    command = [sys.executable, str(ROOT / "scripts/train.py"), *SMALL, "max_frame_num=2560", "save_interval=1"]
    done = subprocess.run([*command, "logger=none"], cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("training goes on") == 1 and "done after 0.0 M frames" in done.stdout
    assert "writes to" in done.stderr and "Traceback" not in done.stderr
    (run_dir,) = tmp_path.glob("runs/*/*")
    assert (run_dir / "metrics.csv").exists() and not (run_dir / "policy.pt").exists()
    assert not list(run_dir.glob("*.tmp"))


def test_wandb_online_without_network_goes_on_offline(tmp_path) -> None:
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}
    for environment, words in ((nowhere, "logging offline"), (nowhere | {"WANDB_API_KEY": ""}, "no API key")):
        done = run("max_frame_num=512", "wandb.mode=online", cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("logging offline") == 1 and words in done.stdout
    assert len(list(tmp_path.glob("runs/*/*/wandb/offline-run-*"))) == 2


def test_help_reads_like_documentation(tmp_path) -> None:
    done = run("--help", cwd=tmp_path, small=False)
    assert done.returncode == 0
    for words in ("python scripts/train.py", "max_frame_num", "# physics steps per action", "reward=<preset>"):
        assert words in done.stdout
    assert not (tmp_path / "runs").exists()
