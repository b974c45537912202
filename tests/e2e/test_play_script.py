"""`navrl play` and `navrl watch` as a person runs them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from commands import SMALL, run, start, start_and_wait

pytest.importorskip("viser", reason="viser is not installed (extra view)")


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def play(*overrides: str, cwd: Path, script: str = "play") -> subprocess.CompletedProcess:
    return run(*overrides, cwd=cwd, script=script, small=False)


def first_line(process: subprocess.Popen) -> str:
    assert process.stdout
    lines = iter(process.stdout.readline, "")
    return next((line for line in lines if line.startswith("watch at")), "")


def test_it_says_where_to_look_and_ends_with_ctrl_c(tmp_path: Path, port: int) -> None:
    process = start(f"view.port={port}", cwd=tmp_path, script="play", small=False, DISPLAY="", WAYLAND_DISPLAY="")
    assert first_line(process) == f"watch at http://127.0.0.1:{port} (Ctrl-C ends)\n"
    assert f"ssh -L {port}:127.0.0.1:{port}" in (process.stdout.readline() if process.stdout else "")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
    assert _refused_elsewhere(port)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err == "" and "Traceback" not in out
    assert not any(tmp_path.iterdir())  # nothing is written


def _refused_elsewhere(port: int) -> bool:
    """Whether this machine's other addresses do not answer."""
    try:
        other = socket.gethostbyname(socket.gethostname())
        if other.startswith("127.0.0.1"):
            return True
        socket.create_connection((other, port), 2).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["policy=missing.pt"], "policy=missing.pt: no such file"),
        (["sensor.lidar_hres=20"], "policy=default: was trained with beams=[36, 4], but sensor.* gives [18, 4]"),
    ],
)
def test_mistakes_cost_one_line(tmp_path: Path, port: int, overrides: list[str], words: str) -> None:
    done = play(f"view.port={port}", *overrides, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr + done.stdout


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = play(f"view.port={taken.getsockname()[1]}", cwd=tmp_path)
    assert done.returncode == 2 and "is used by another program" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [([], "run=null: name the run directory"), (["nowhere"], "run=nowhere: is not a run directory")],
)
def test_watching_nothing(tmp_path: Path, overrides: list[str], words: str) -> None:
    done = play(*overrides, cwd=tmp_path, script="watch")
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_settings_of_a_strangers_run_are_data(tmp_path: Path) -> None:
    (tmp_path / "run/config").mkdir(parents=True)
    (tmp_path / "run/policy.pt").write_bytes(b"")
    (tmp_path / "run/config/config.yaml").write_text("sensor: {lidar_range: '${oc.env:HOME}'}\n")
    done = play("run", cwd=tmp_path, script="watch")
    assert done.returncode == 2 and "its stored sensor.lidar_range is ${oc.env:HOME}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_training_is_watched(tmp_path: Path, port: int, browser) -> None:
    """Another sensor than the default's: the page takes it from the run. Every saved policy is picked up."""
    sensor = ["sensor.lidar_hres=20", "sensor.lidar_range=3.0"]
    saves = ["save_interval=5", "eval_interval=10"]
    training = start_and_wait(*sensor, *saves, "logger=none", cwd=tmp_path, until="runs/*/*/policy.pt")
    assert "env.num_envs=64" in SMALL
    directory = next(tmp_path.glob("runs/*/*"))
    words = [str(directory), f"view.port={port}", "view.drones=2", "view.scenario=crossing-20-8"]
    viewer = start(*words, cwd=tmp_path, script="watch", small=False)
    try:
        assert first_line(viewer)
        page = browser.open(f"http://127.0.0.1:{port}")
        page.get_by_text("M frames").first.wait_for()
        page.get_by_text("policy of").first.wait_for()  # a newer one than at the start
        page.get_by_text("crossing-20-8").first.wait_for()
    finally:
        for process in (training, viewer):
            os.kill(process.pid, signal.SIGINT)
        training.communicate(timeout=60)
        out, err = viewer.communicate(timeout=60)
    assert viewer.returncode == 0 and err == "" and "Traceback" not in out
