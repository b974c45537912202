"""scripts/slurm/train.sbatch on a real Slurm: requeued in the middle, it ends as a job that was left alone."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from commands import ROOT, SMALL

from navrl.checkpoint.retention import iteration_of, newest_state, states_of
from navrl.io.snapshot import tensors_of

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
MISSING = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
pytestmark = [
    pytest.mark.skipif(
        bool(MISSING), reason=f"Slurm is not installed ({', '.join(MISSING)}: apt install slurm-wlm munge)"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="starting Slurm needs root"),
]
BATCH = 64 * 8  # frames of SMALL
ITERATIONS = 150
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={other_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.fixture
def slurm(tmp_path_factory) -> Iterator[Callable[..., str]]:
    """A cluster of this machine alone; call it with a command of Slurm's."""
    folder = tmp_path_factory.mktemp("slurm")
    munge, host = folder / "munge", socket.gethostname().partition(".")[0]
    for path in (munge, folder / "state", folder / "spool"):
        path.mkdir()
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o600)
    text = CONFIG.format(folder=folder, host=host, port=free_port(), other_port=free_port())
    (folder / "slurm.conf").write_text(text)
    search = f"{os.environ['PATH']}:/usr/sbin"
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": search, "PYTHON": sys.executable}

    def call(*command: str, cwd: Path = ROOT) -> str:
        done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    files = [f"--{name}={munge / name}" for name in ("pid-file", "log-file", "seed-file")]
    daemons = [
        ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key", *files],
        ["slurmctld", "-D", "-i"],
        ["slurmd", "-D", "-N", host],
    ]
    processes = []
    try:
        for daemon in daemons:
            with (folder / f"{daemon[0]}.txt").open("w") as out:
                kwargs = {"stdout": out, "stderr": subprocess.STDOUT}
                processes.append(subprocess.Popen(daemon, env=environment, **kwargs))
            if daemon[0] == "munged":
                wait_for((munge / "socket").exists, (folder / "munged.txt").read_text())
        wait_for(lambda: "idle" in _output(["sinfo", "-h", "-o", "%T"], environment), "no node is idle")
        yield call
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


def _output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30).stdout


def test_a_requeued_job_ends_as_an_undisturbed_one(slurm, tmp_path) -> None:
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")  # as a checkout, with a place for runs
    given = [*SMALL, "logger=none", "eval_interval=0", "perf.interval=0", "save_interval=20"]
    given += [f"max_frame_num={BATCH * ITERATIONS}"]

    def submit(name: str) -> tuple[str, Path]:
        script = ["sbatch", "--parsable", f"--export=ALL,RUN={name},RANKS=2", "scripts/slurm/train.sbatch"]
        return slurm(*script, *given, cwd=tmp_path).strip(), tmp_path / name

    def newest(run: Path) -> int:
        return iteration_of(states_of(run)[0]) if states_of(run) else 0

    def ended(job: str) -> bool:
        return "COMPLETED" in slurm("scontrol", "show", "job", job)

    job, disturbed = submit("disturbed")
    output = tmp_path / f"slurm-{job}.txt"
    wait_for(lambda: newest(disturbed) >= 20, "nothing was saved")
    slurm("scontrol", "requeue", job)
    wait_for(lambda: "Restarts=1" in slurm("scontrol", "show", "job", job), "it was not requeued")
    wait_for(lambda: ended(job), f"it did not end: {output.read_text()[-2000:]}", 240)
    said = output.read_text()
    assert "resuming from disturbed/checkpoints/state-" in said, said[-2000:]

    other, undisturbed = submit("undisturbed")
    wait_for(lambda: ended(other), "the undisturbed one did not end", 240)
    a, b = newest_state(disturbed)[1], newest_state(undisturbed)[1]
    assert a["iteration"] == b["iteration"] == ITERATIONS and a["machine"]["ranks"] == 2
    for part in ("ppo", "batches", "flights"):
        for x, y in zip(tensors_of(a[part]), tensors_of(b[part]), strict=True):
            assert torch.equal(x, y), part
