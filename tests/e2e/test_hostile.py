"""A hostile world: outputs that break, terminals that vanish, runs started together, files of strangers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from commands import ROOT, SMALL, run, small_disk, start, start_and_wait

from navrl.checkpoint.retention import iteration_of, newest_state, states_of
from navrl.collect.rollouts import RolloutStorage
from navrl.io.output import OUTPUT_LOST
from navrl.monitor.metrics import read_rows

TRAIN = [sys.executable, str(ROOT / "scripts/train.py"), *SMALL, "logger=none"]
QUICK = ["max_frame_num=2560", "perf.interval=1"]


def the_run(folder: Path) -> Path:
    (path,) = folder.glob("runs/*/*")
    return path


def assert_trained_unseen(folder: Path, code: int, errors: str) -> None:
    assert code == OUTPUT_LOST and "Traceback" not in errors, errors
    path = the_run(folder)
    assert newest_state(path)[1]["iteration"] == 5 and (path / "policy.pt").exists()
    assert "the output can no longer be written" in (path / "log.txt").read_text()


# --- output -------------------------------------------------------------------------------------------------------


def test_a_reader_that_leaves(tmp_path) -> None:
    """`navrl train | head -1`"""
    process = subprocess.Popen(
        [*TRAIN, *QUICK], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stderr and process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert_trained_unseen(tmp_path, process.wait(timeout=120), errors)


def test_a_full_device(tmp_path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*TRAIN, *QUICK], cwd=tmp_path, stdout=full, stderr=full, timeout=120)
    assert_trained_unseen(tmp_path, done.returncode, "")


def test_closed_descriptors(tmp_path) -> None:
    """No file of the run takes the place of an output that is not there."""
    shell = " ".join(f"'{word}'" for word in [*TRAIN, *QUICK]) + " <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], cwd=tmp_path, timeout=120).returncode == 0
    assert newest_state(the_run(tmp_path))[1]["iteration"] == 5


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_an_output_that_knows_few_characters(tmp_path, environment: dict[str, str]) -> None:
    done = run(*QUICK, "logger=none", cwd=tmp_path, PYTHONCOERCECLOCALE="0", **environment)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert run("--help", cwd=tmp_path, small=False, **environment).returncode == 0


def in_terminal(command: list[str], cwd: Path, columns: int = 80, **environment: str) -> tuple[int, int]:
    """Start it in a terminal of its own; returns the process and the terminal's other end."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(cwd)
        os.environ.update(environment)
        os.execv(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return process, terminal


def test_a_terminal_that_is_closed(tmp_path) -> None:
    """ssh is lost: the run saves and leaves, and can be resumed."""
    process, terminal = in_terminal([*TRAIN, "max_frame_num=1e8", "save_interval=0"], tmp_path)
    while not list(tmp_path.glob("runs/*/*/metrics.csv")):
        os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert newest_state(the_run(tmp_path))[1]["iteration"] > 0


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {}])
def test_narrow_and_simple_terminals(tmp_path, environment: dict[str, str]) -> None:
    process, terminal = in_terminal([*TRAIN, *QUICK], tmp_path, columns=40, **environment)
    shown = b""
    with contextlib.suppress(OSError):  # the other end closes when the process ends
        while data := os.read(terminal, 65536):
            shown += data
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0 and b"Traceback" not in shown, shown.decode()
    assert b"done after" in shown
    assert "NO_COLOR" not in environment or not re.search(rb"\x1b\[[0-9;]*3[0-9]m", shown), "colours"


def test_nohup_keeps_its_meaning(tmp_path) -> None:
    process = subprocess.Popen(["nohup", *TRAIN, "max_frame_num=1e8"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("runs/*/*/metrics.csv")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    assert process.poll() is None, "it trains on"
    process.terminate()
    assert process.wait(timeout=60) == 143


# --- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("seconds", [0.4, 1.6])
def test_a_signal_while_starting_leaves_nothing(tmp_path, number: int, seconds: float) -> None:
    process = start("max_frame_num=1e8", "env.num_maps=256", "logger=none", cwd=tmp_path)
    time.sleep(seconds)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (128 + number, -number) and "Traceback" not in errors, errors
    if (tmp_path / "runs").exists():  # a machine so fast that it was training
        assert states_of(the_run(tmp_path))


# --- directories ----------------------------------------------------------------------------------------------------


def test_runs_started_together(tmp_path) -> None:
    """Each has a directory of its own, with its own settings."""
    quick = ["eval.scenarios=[borders-0-0]", "eval.episodes=2", "eval.maps=1", "env.max_episode_length=8"]
    quick += ["policy=hover"]
    processes = [start(*quick, f"eval.seed={k}", cwd=tmp_path, script="eval", small=False) for k in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    runs = [*tmp_path.glob("runs/*/*")]
    assert len(runs) == 3 and all((path / "eval.json").exists() for path in runs)
    seeds = {re.search(r"eval.seed=(\d)", (path / "config/overrides.yaml").read_text())[1] for path in runs}  # pyright: ignore
    assert seeds == {"0", "1", "2"}


def test_a_directory_that_holds_a_run_is_not_trained_into(tmp_path) -> None:
    assert run("max_frame_num=512", "logger=none", "hydra.run.dir=here", cwd=tmp_path).returncode == 0
    again = run("max_frame_num=512", "logger=none", "hydra.run.dir=here", cwd=tmp_path)
    assert again.returncode == 2 and "hydra.run.dir=here: holds a training run already" in again.stderr


def test_paths_with_any_characters(tmp_path) -> None:
    """The command that a stopped run prints works as it stands."""
    odd = tmp_path / "it's a=b, [c] é"
    process = start_and_wait("logger=none", f"hydra.run.dir={odd}", cwd=tmp_path, until="*/metrics.csv")
    os.killpg(process.pid, signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    hint = re.search(r"resume with: navrl (train .*)", out)
    assert hint, out
    at = newest_state(odd)[1]["frames"]
    shell = f"'{sys.executable}' -m navrl {hint[1]} max_frame_num={at + 512}"
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert newest_state(odd)[1]["frames"] == at + 512


# --- disks ----------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_filled_and_freed(tmp_path) -> None:
    """What could not be written is, once there is room: at the end everything is there."""
    with small_disk(tmp_path / "disk") as disk:
        arguments = ["save_interval=1", "logger=none", "eval_interval=0", f"hydra.run.dir={disk}/run"]
        process = start(*arguments, "max_frame_num=51200", cwd=tmp_path)
        log = disk / "run/metrics.csv"
        while process.poll() is None and not (disk / "run/checkpoints/state-00000003.pt.lz4").exists():
            time.sleep(0.005)
        with contextlib.suppress(OSError):
            (disk / "filler").write_bytes(bytes(9 << 20))
        size = log.stat().st_size
        time.sleep(0.5)
        (disk / "filler").unlink()
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 1 and "Traceback" not in errors, out + errors
        assert newest_state(disk / "run")[1]["iteration"] == 100 and log.stat().st_size > size
        frames = re.findall(r"^(\d+),", log.read_text(), re.MULTILINE)
        assert sorted({*map(int, frames)}) == [512 * k for k in range(1, 101)], "no row is missing"
        assert f"navrl eval policy={disk.relative_to(tmp_path)}/run/policy.pt" in out


PLAIN_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]  # root without root's powers


@pytest.mark.skipif(
    os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write anywhere; no setpriv here"
)
@pytest.mark.parametrize(
    "where, words",
    [("cache", "WARP_CACHE_PATH=<directory>"), ("runs", "hydra.run.dir=<directory>"), ("run", "resume=run: ")],
)
def test_a_directory_that_may_not_be_written(tmp_path, where: str, words: str) -> None:
    """The line names what really failed: kernel cache, directory of runs, a run to resume."""
    locked, command, cache = tmp_path / where, [*TRAIN, *QUICK], {}
    if where == "run":
        assert run("max_frame_num=512", "logger=none", "hydra.run.dir=run", cwd=tmp_path).returncode == 0
        command = [*TRAIN[:2], "resume=run", "max_frame_num=1024"]
    else:
        locked.mkdir()
        cache = {"WARP_CACHE_PATH": str(locked)} if where == "cache" else {}
    for path in (locked, *(path for path in locked.rglob("*") if path.is_dir())):
        path.chmod(0o500)
    powers = PLAIN_USER if os.geteuid() == 0 else []
    done = subprocess.run([*powers, *command], cwd=tmp_path, env=os.environ | cache, capture_output=True, text=True)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ") and where in lines[0] and words in lines[0] and "Permission" in lines[0]
    assert where == "runs" or not (tmp_path / "runs").exists()


# --- files of strangers -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Path:
    """A run with rollouts."""
    folder = tmp_path_factory.mktemp("stranger")
    switches = ["max_frame_num=1536", "rollout_save_interval=1", "return_same_td=false", "perf.trace=true"]
    done = run(*switches, cwd=folder, script="train")
    assert done.returncode == 0, done.stderr
    return the_run(folder)


@pytest.mark.parametrize(
    "name",
    [
        "config/.lock", "config/config.yaml", "eval.json", "curves.png", "manifest.jsonl", "metrics.csv", "log.txt",
        "metrics.csv.tmp", "policy.pt.tmp", "rollouts/data.bin", "rollouts/index.jsonl", "trace.json", "checkpoints",
        "rollouts", "config", "wandb", "checkpoints/state-00000004.pt.lz4.tmp", "tensorboard",
    ],
)  # fmt: skip
def test_links_in_a_run_are_refused(stranger, tmp_path, name: str) -> None:
    shutil.copytree(stranger, there := tmp_path / "there", symlinks=True)
    mine = tmp_path / "mine"
    if (there / name).is_dir():
        shutil.move(there / name, mine)
    else:
        mine.write_text("precious")
        (there / name).unlink(missing_ok=True)
    before = {path: path.read_bytes() for path in (mine, *mine.rglob("*")) if path.is_file()}
    (there / name).symlink_to(mine)
    done = run(f"resume={there}", "max_frame_num=2048", cwd=tmp_path, small=False)
    refused = f"holds a symbolic link, {name}; remove it" in done.stderr
    assert done.returncode == 2 and (refused or name == "checkpoints"), done.stderr
    assert {path: path.read_bytes() for path in (mine, *mine.rglob("*")) if path.is_file()} == before


@pytest.mark.parametrize("damage", ["empty", "short", "absent"])
def test_rollouts_survive_a_damaged_index(stranger, tmp_path, damage: str) -> None:
    """Resumed from iteration 2, a run drops the rollout of iteration 3 and no other."""
    shutil.copytree(stranger, there := tmp_path / "there", symlinks=True)
    index = there / "rollouts/index.jsonl"
    lines = index.read_text().splitlines(keepends=True)
    index.unlink() if damage == "absent" else index.write_text("".join(lines[: 0 if damage == "empty" else 1]))
    done = run(f"resume={there}", "max_frame_num=2048", cwd=tmp_path, small=False)
    assert done.returncode == 0, done.stderr
    assert [line["iteration"] for line in RolloutStorage(there / "rollouts").lines] == [1, 2, 3, 4]


def test_changed_files_load_or_cost_one_line(tmp_path) -> None:
    """A short storm of structural changes; scripts/bench/fuzz_files.py makes thousands."""
    command = [sys.executable, str(ROOT / "scripts/bench/fuzz_files.py"), "cases=200", "seed=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    count = json.loads(done.stdout.splitlines()[-1])
    assert count["cases"] == 200 and count["tracebacks"] == 0, done.stdout
    for kind in ("state", "config", "policy", "replay"):
        assert count["kinds"][kind]["loaded"] and count["kinds"][kind]["refused"], "some changes matter, some do not"


# --- a clock that jumps -------------------------------------------------------------------------------------------


def test_a_clock_that_jumps(tmp_path) -> None:
    """A month back, then years ahead, as when a battery is empty and the network comes later: nothing depends on it."""
    libraries = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
    if not libraries:
        pytest.skip("needs libfaketime: apt install faketime")
    clock = tmp_path / "clock"
    clock.write_text("+0")
    fake = {"LD_PRELOAD": str(libraries[0]), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    fake |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}  # that one never jumps
    given = "logger=tensorboard", "save_interval=5", "save_minutes=1", "max_frame_num=40960", "eval_interval=20"
    process = start(*given, "hydra.run.dir=run", cwd=tmp_path, small=True, **fake)
    for iteration, offset in ((5, "-30d"), (20, "+2000d"), (40, "-1d")):
        deadline = time.monotonic() + 120
        while not (saved := states_of(tmp_path / "run")) or iteration_of(saved[0]) < iteration:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.01)
        clock.write_text(offset)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and not err, err
    assert "done after" in out and newest_state(tmp_path / "run")[1]["iteration"] == 80
    rows = [row for row in read_rows(tmp_path / "run/metrics.csv") if "charts/minutes" in row]
    minutes = [row["charts/minutes"] for row in rows]
    assert len(rows) == 80 and minutes == sorted(minutes) and 0 < minutes[-1] < 10
    again = run("resume=run", "max_frame_num=41984", cwd=tmp_path, small=False, LD_PRELOAD="")
    assert again.returncode == 0 and newest_state(tmp_path / "run")[1]["iteration"] == 82
