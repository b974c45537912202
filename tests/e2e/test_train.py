"""scripts/train.py, export.py and replay.py as a person runs them."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT, SMALL, run, small_disk, start, start_and_wait

from navrl.checkpoint.retention import states_of
from navrl.collect.rollouts import RolloutStorage
from navrl.io.files import BadCheckpoint, load_checkpoint, read_lines
from navrl.monitor.metrics import read_rows
from navrl.ppo.batch import VERSION
from navrl.ppo.policy_file import load_policy


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """One small run, with everything switched on."""
    folder = tmp_path_factory.mktemp("trained")
    switches = ["headless=True", "max_frame_num=5120", "eval_interval=4", "save_interval=4", "perf.interval=5"]
    done = run(*switches, "perf.trace=true", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run_dir,) = folder.glob("runs/*/*")
    return run_dir, done


def test_a_run_leaves_everything(trained) -> None:
    run_dir, done = trained
    names = {path.name for path in run_dir.iterdir()}
    assert {"policy.pt", "manifest.jsonl", "metrics.csv", "curves.png", "eval.json", "config", "wandb"} <= names
    assert {"flights-crossing-20-8.png", "trace.json"} <= names
    assert "where the time goes" in done.stdout and "simulation" in done.stdout
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


def test_several_seeds_with_hydras_multirun_have_a_directory_each(tmp_path) -> None:
    done = run("-m", "seed=0,1", "max_frame_num=512", "logger=none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = sorted(tmp_path.glob("multirun/*/*/*/policy.pt"))
    assert [path.parent.name for path in runs] == ["0", "1"] and not (tmp_path / "runs").exists()
    first, second = (load_policy(path)[0].state_dict() for path in runs)
    assert any(not torch.equal(value, second[name]) for name, value in first.items())


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


@pytest.mark.parametrize(
    "modes", [[], ["use_pipelined_collector=true", "return_same_td=false", "rollout_save_interval=1"]]
)
def test_ctrl_c_leaves_a_policy_curves_and_a_picture(tmp_path, modes: list[str]) -> None:
    process = start_and_wait("save_interval=0", "eval_interval=0", *modes, cwd=tmp_path)
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells the whole group, wandb's helper too
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and time.monotonic() - began < 10, err
    assert "stopped after" in out and "Traceback" not in err
    (run_dir,) = tmp_path.glob("runs/*/*")
    assert {"policy.pt", "curves.png", "flights-crossing-20-8.png"} <= {path.name for path in run_dir.iterdir()}
    assert (
        not list(run_dir.rglob("*.tmp"))
        and f"resume with: navrl train resume=runs/{run_dir.parent.name}/{run_dir.name}" in out
    )


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["algo.num_minibatches=5"], "must divide"),
        (["env.num_envs=1000000", "algo.training_frame_num=100000", "max_frame_num=1e12"], "GB available"),
        (["checkpoint=nowhere.pt"], "does not exist"),
        (["checkpoint=[a]"], "must be a word"),
        (["wandb=5"], "must be a section"),
        (["env.num_envs=???"], "env.num_envs=???: must be a whole number"),
        pytest.param(
            ["sim=isaac"],
            "sim=isaac: Isaac Lab is not installed in this environment",
            marks=pytest.mark.skipif(find_spec("isaaclab") is not None, reason="Isaac Lab is installed"),
        ),
        (["rollout_save_interval=5"], "set return_same_td=false"),
        (["rollout_save_interval=5", "return_same_td=false", "compress_rollout=all"], "set compress_rollout=none"),
        (["use_pipelined_collector=true"], "set return_same_td=false"),
        (["learner_device=cuda"], "set learner_device=cpu"),
        (["env.num_maps=1e2", "seed=-1e1"], "seed=-10: must be a whole number between 0"),
        (["no.such.key=1"], "Could not override 'no.such.key'"),
    ],
)
def test_mistakes_cost_one_line_and_leave_nothing(tmp_path, overrides: list[str], words: str) -> None:
    done = run(*overrides, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 or "no.such.key=1" in overrides  # Hydra's own words are three
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run("hydra.run.dir=file/run", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: hydra.run.dir=file/run: ") and "Not a directory" in done.stderr


@pytest.mark.parametrize("mode", ["compress_rollout=none", "compress_rollout=lidar"])
@pytest.mark.parametrize(
    "reward, name", [("reward.progress=1e38", "returns"), ("reward.static_clearance=3e38", "reward")]
)
def test_infinity_stops_the_run_and_can_be_replayed(tmp_path, reward: str, name: str, mode: str) -> None:
    done = run(reward, "logger=none", mode, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: iteration ") and f"{name} is not finite" in line
    (saved,) = tmp_path.glob("runs/*/*/not_finite.pt")
    again = run(str(saved), cwd=tmp_path, script="replay", small=False)
    assert again.returncode == 0 and f"{name} is not finite" in again.stdout, again.stdout + again.stderr


# --- saving and resuming ------------------------------------------------------------------------------------------


def assert_same(a: Any, b: Any, where: str) -> None:
    """Nested dicts, lists, tensors and plain values are equal."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for index, pair in enumerate(zip(a, b, strict=True)):
            assert_same(*pair, f"{where}.{index}")
    else:
        assert a == b, where


def assert_same_run(one: Path, two: Path) -> None:
    """Everything that decides how a run continues is the same, bit for bit, and so is what it has logged."""
    a, b = load_checkpoint(states_of(one)[0]), load_checkpoint(states_of(two)[0])
    for part in ("iteration", "frames", "network", "scores", "scored"):
        assert a[part] == b[part], part
    for part in ("ppo", "batches", "random", "flights"):
        assert_same(a[part], b[part], part)
    rows = []
    for run_dir in (one, two):
        timeless = {"charts/SPS", "charts/minutes", "perf/memory_mb", "perf/buffers_mb"}
        rows.append([{k: v for k, v in row.items() if k not in timeless} for row in read_rows(run_dir / "metrics.csv")])
    assert rows[0] == rows[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """Twelve iterations, every state kept."""
    folder = tmp_path_factory.mktemp("undisturbed")
    settings = ["max_frame_num=6144", "eval_interval=4", "eval.picture=false", "logger=tensorboard"]
    done = run(*settings, "save_interval=1", "checkpoint.keep_last=100", "checkpoint.keep_every=5", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run_dir,) = folder.glob("runs/*/*")
    return run_dir


@pytest.mark.parametrize("mode", ["return_same_td=true", "return_same_td=false", "compress_rollout=all"])
def test_resume_is_exact(undisturbed, tmp_path, mode: str) -> None:
    """5 iterations and 7 more in another process are 12."""
    done = run(f"resume={undisturbed}/checkpoints/state-00000005.pt.lz4", mode, cwd=tmp_path, small=False)
    assert done.returncode == 0, done.stderr
    assert "iteration 5" in done.stdout and "not bit for bit" not in done.stdout
    (branch,) = tmp_path.glob("runs/*/*")
    assert_same_run(undisturbed, branch)


def test_resume_is_exact_while_prefetching(tmp_path) -> None:
    modes = ["use_pipelined_collector=true", "return_same_td=false", "prefetch_count=2", "eval_interval=0"]
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    settings = ["max_frame_num=6144", "save_interval=1", "checkpoint.keep_last=100", "logger=none", *modes]
    done = run(*settings, "rollout_save_interval=6", cwd=folders[0])
    assert done.returncode == 0, done.stderr
    (undisturbed,) = folders[0].glob("runs/*/*")
    done = run(f"resume={undisturbed}/checkpoints/state-00000005.pt.lz4", cwd=folders[1], small=False)
    assert done.returncode == 0, done.stderr
    (branch,) = folders[1].glob("runs/*/*")
    assert_same_run(undisturbed, branch)
    rows = read_rows(branch / "metrics.csv")
    assert [row["charts/staleness"] for row in rows if "charts/staleness" in row] == [0, 1, *([2] * 10)]

    storage = RolloutStorage(undisturbed / "rollouts")  # and what was flown on the way
    assert [line["iteration"] for line in storage.lines] == [6, 12] and (storage[0][VERSION] == 3).all()
    listed = run(str(undisturbed), cwd=tmp_path, script="rollouts", small=False)
    assert listed.returncode == 0 and "64 × 8" in listed.stdout, listed.stderr
    drawn = run(f"run={undisturbed}", "draw=1", "drones=[0,5]", cwd=tmp_path, script="rollouts", small=False)
    assert drawn.returncode == 0 and (undisturbed / "rollout-1.png").stat().st_size > 5000, drawn.stderr
    wrong = run(str(undisturbed), "--draw", "7", "--drones", "0", "5", cwd=tmp_path, script="rollouts", small=False)
    assert wrong.returncode == 2 and wrong.stderr.strip() == "error: draw=7: there are 2 rollouts, counted from 0"


def test_stopped_during_the_last_evaluation(tmp_path) -> None:
    """Nothing is left to learn, but the run has not been evaluated: that is what resuming does."""
    long = ["eval.final_episodes=4000", "env.max_episode_length=2200", "max_frame_num=1024"]
    process = start(*long, "logger=none", cwd=tmp_path)
    while process.poll() is None and not list(tmp_path.glob("runs/*/*/checkpoints/state-00000002*")):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    (there,) = tmp_path.glob("runs/*/*")
    assert process.returncode == 143 and not (there / "eval.json").exists(), err
    done = run(f"resume={there}", "eval.final_episodes=8", cwd=tmp_path, small=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((there / "eval.json").read_text())["frames"] == 1024
    again = run(f"resume={there}", cwd=tmp_path, small=False)
    assert again.returncode == 2 and "raise it to continue" in again.stderr


def test_resuming_needs_nothing_but_the_run(tmp_path) -> None:
    """Not the file whose weights it began with, nor a metrics.csv that no power cut spoiled; it saves by the clock."""
    shutil.copy(ROOT / "policies/default.pt", tmp_path / "origin.pt")
    settings = ["checkpoint=origin.pt", "max_frame_num=5120", "logger=none", "save_interval=0", "save_minutes=0.0001"]
    done = run(*settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (there,) = tmp_path.glob("runs/*/*")
    lines = read_lines(there / "manifest.jsonl")
    assert sum(line["file"].startswith("checkpoints/state-") for line in lines) > 3, "saved by the clock"
    (tmp_path / "origin.pt").unlink()
    with (there / "metrics.csv").open("ab") as file:
        file.write(bytes(100) + b"\nx,y,z\n" + bytes(7))
    done = run(f"resume={there}", "max_frame_num=6144", cwd=tmp_path, small=False)
    assert done.returncode == 0, done.stderr
    frames = [row["frames"] for row in read_rows(there / "metrics.csv") if "losses/entropy" in row]
    assert frames == [512 * k for k in range(1, 13)]


def test_damage_to_a_real_training_state(undisturbed, tmp_path) -> None:
    """400 bytes changed or cuts: every one is found, or changed nothing."""
    path, rng = states_of(undisturbed)[0], random.Random(0)
    good, whole = path.read_bytes(), load_checkpoint(path)
    bad = tmp_path / path.name
    found = 0
    for attempt in range(400):
        place = rng.randrange(len(good))
        data = bytearray(good[:place] if attempt % 4 == 0 else good)
        if attempt % 4:
            data[place] ^= rng.randrange(1, 256)
        bad.write_bytes(data)
        try:
            assert_same(load_checkpoint(bad), whole, "state")
        except BadCheckpoint as error:
            assert "\n" not in str(error) and bad.name in str(error)
            found += 1
    assert found > 390


def test_retention_keeps_what_it_says(undisturbed, tmp_path) -> None:
    names = {path.name for path in (undisturbed / "checkpoints").iterdir()}
    assert {f"state-{k:08d}.pt.lz4" for k in range(1, 13)} <= names
    assert {"policy-00000005.pt", "policy-00000010.pt"} <= names and len(
        [n for n in names if n.startswith("best")]
    ) == 1
    lines = read_lines(undisturbed / "manifest.jsonl")
    assert sum(line["file"].startswith("checkpoints/state-") for line in lines) >= 13
    branch = f"resume={undisturbed}/checkpoints/state-00000005.pt.lz4"
    assert run(branch, "checkpoint.keep_last=2", "compress_checkpoint=false", cwd=tmp_path, small=False).returncode == 0
    states = [path.name for path in states_of(next(tmp_path.glob("runs/*/*")))]
    assert states == ["state-00000012.pt", "state-00000011.pt"]


def test_preempted_twice_and_damaged_it_ends_where_it_would_have(undisturbed, tmp_path) -> None:
    """SIGTERM, SIGKILL, the newest file damaged: the run continues in its directory and comes to the same end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        (there,) = tmp_path.glob("runs/*/*") if list(tmp_path.glob("runs/*/*")) else (None,)
        have = load_checkpoint(states_of(there)[0])["iteration"] if there else 0
        arguments = [f"resume={there}"] if there else ["eval_interval=4", "eval.picture=false", "save_interval=1"]
        process = start(*arguments, "max_frame_num=6144", "logger=tensorboard", cwd=tmp_path, small=not there)
        while process.poll() is None and not list(tmp_path.glob(f"runs/*/*/checkpoints/state-{have + 2:08d}*")):
            time.sleep(0.005)
        began = time.monotonic()
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == (143 if number == signal.SIGTERM else -9), err
        assert time.monotonic() - began < 10 and "Traceback" not in err
    (there,) = tmp_path.glob("runs/*/*")
    newest = states_of(there)[0]
    newest.write_bytes(newest.read_bytes()[:-100])
    with (there / "metrics.csv").open("a") as file:
        file.write("51")  # and a row torn by the kill
    done = run(f"resume={there}", cwd=tmp_path, small=False)
    assert done.returncode == 0, done.stderr
    assert f"{newest.name} is cut off; falling back to the one before" in done.stdout
    assert len(list(tmp_path.glob("runs/*/*"))) == 1, "in its own directory"
    assert_same_run(undisturbed, there)


def test_the_second_ctrl_c_leaves_at_once(tmp_path) -> None:
    process = start_and_wait("save_interval=1", "logger=none", cwd=tmp_path, until="runs/*/*/checkpoints/state-*")
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=30)
    assert process.returncode == 130 and time.monotonic() - began < 2
    for path in states_of(next(tmp_path.glob("runs/*/*"))):
        load_checkpoint(path)


def test_a_changed_run_resumes_and_mistakes_cost_one_line(undisturbed, tmp_path) -> None:
    state = f"{undisturbed}/checkpoints/state-00000011.pt.lz4"
    done = run(f"resume={state}", "env.num_envs=32", "max_frame_num=6656", cwd=tmp_path, small=False)
    assert done.returncode == 0 and "the drones begin new flights: env.num_envs changed" in done.stdout, done.stderr
    shutil.rmtree(tmp_path / "runs")
    for overrides, words in [
        ([f"resume={undisturbed}"], "raise it to continue"),
        ([f"resume={state}", "encoder=navrl"], "encoder=fast"),
        ([f"resume={undisturbed}/policy.pt"], f"checkpoint={undisturbed}/policy.pt"),
    ]:
        done = run(*overrides, cwd=tmp_path, small=False)
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 2 and len(lines) == 1 and words in lines[0], (overrides, done.stderr)
        assert not (tmp_path / "runs").exists()


def test_a_run_is_trained_by_one_process(tmp_path) -> None:
    process = start_and_wait("save_interval=1", "logger=none", cwd=tmp_path, until="runs/*/*/checkpoints/state-*")
    (there,) = tmp_path.glob("runs/*/*")
    done = run(f"resume={there}", cwd=tmp_path, small=False)
    process.kill(), process.communicate()
    assert done.returncode == 2 and f"is being trained by process {process.pid}" in done.stderr


def test_a_storm_of_kills(tmp_path) -> None:
    command = [sys.executable, str(ROOT / "scripts/bench/kill_storm.py"), "kills=6"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    count = json.loads(done.stdout.splitlines()[-1])
    assert count["kills"] == 6 and count["resumes"] >= 4 and count["torn"] == count["older"] == 0
    assert count["tensors_that_differ"] == 0


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_file_system_that_fails_during_a_run(tmp_path, trouble: str) -> None:
    """A tmpfs that fills up, or turns read-only, between two saves: training continues to its end and says so."""
    with small_disk(tmp_path / "disk") as disk:
        arguments = ["save_interval=1", "logger=none", "eval_interval=0", f"hydra.run.dir={disk}/run"]
        process = start(*arguments, "max_frame_num=40960", cwd=tmp_path)
        while process.poll() is None and not (disk / "run/checkpoints/state-00000003.pt.lz4").exists():
            time.sleep(0.005)
        if trouble == "full":
            with contextlib.suppress(OSError):
                (disk / "filler").write_bytes(bytes(9 << 20))
        else:
            remount = ["mount", "-o", "remount,ro", str(disk)]  # refused while a file is being written
            while subprocess.run(remount, capture_output=True).returncode and process.poll() is None:
                time.sleep(0.001)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 1, out + err
        assert out.count("training continues") == 1 and "done after" in out and "Traceback" not in err
        assert re.search(r"error: \d+ writes to .* failed", err)
        for path in states_of(disk / "run"):
            load_checkpoint(path)


def test_a_disk_that_takes_no_more(tmp_path) -> None:
    """Files may grow to 50 kB and no further: training continues to its end, says so once, and exits with an error."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    command = [sys.executable, str(ROOT / "scripts/train.py"), *SMALL, "max_frame_num=2560", "save_interval=1"]
    done = subprocess.run([*command, "logger=none"], cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("training continues") == 1 and "done after 0.0 M frames" in done.stdout
    assert "writes to" in done.stderr and "Traceback" not in done.stderr
    (run_dir,) = tmp_path.glob("runs/*/*")
    assert (run_dir / "metrics.csv").exists() and not (run_dir / "policy.pt").exists()
    assert "no policy could be saved" in done.stdout and "navrl eval" not in done.stdout
    assert not list(run_dir.glob("*.tmp"))


def test_wandb_online_without_network_continues_offline(tmp_path) -> None:
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}
    for environment, words in ((nowhere, "logging offline"), (nowhere | {"WANDB_API_KEY": ""}, "no API key")):
        done = run("max_frame_num=512", "wandb.mode=online", cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("logging offline") == 1 and words in done.stdout
    assert len(list(tmp_path.glob("runs/*/*/wandb/offline-run-*"))) == 2


def test_help_reads_like_documentation(tmp_path) -> None:
    done = run("--help", cwd=tmp_path, small=False)
    assert done.returncode == 0
    for words in (
        "navrl train",
        "python scripts/train.py",
        "max_frame_num",
        "# physics steps per action",
        "reward=<preset>",
    ):
        assert words in done.stdout
    assert not (tmp_path / "runs").exists()
