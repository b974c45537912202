"""Kill a training run at random moments with SIGKILL, resume it, and again: is anything ever lost or torn?

    python scripts/bench/kill_storm.py [kills=200] [seed=0]
    python scripts/bench/kill_storm.py ranks=2 kills=50

The run saves at every iteration. After every kill each file it left is read in full, and the next life must resume from
the newest of them. At the end the state is compared, bit for bit, with that of a run nobody disturbed. Lives are forks
of a process that has only imported things, so that 200 of them take minutes. With `ranks` the run is one of torchrun's:
a random rank is killed, and torchrun itself must start the run again, which must continue from the newest file. The
last line is JSON.
"""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
import torchrl.collectors  # noqa: F401 - imported once here, for all lives

import navrl.train.saving  # noqa: F401
from navrl.checkpoint.retention import FOLDER, iteration_of, states_of
from navrl.cli import options
from navrl.io.files import BadCheckpoint, load_checkpoint
from navrl.io.snapshot import tensors_of

TRAIN = Path(__file__).parents[1] / "train.py"
SETTINGS = [
    "env.num_envs=64", "algo.training_frame_num=8", "algo.num_minibatches=4", "env.num_maps=2", "env.num_obstacles=20",
    "env_dyn.num_obstacles=8", "env.max_episode_length=120", "eval_interval=0", "logger=none", "max_frame_num=1e9",
    "checkpoint.keep_every=0",
]  # fmt: skip
PATIENCE = 120.0  # s


class Life:
    """One process that trains, from its start to its death."""

    def __init__(self, folder: Path, number: int, *arguments: str) -> None:
        self.output = folder / f"life-{number:04d}.txt"
        self.began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            handle = os.open(self.output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(handle, 1), os.dup2(handle, 2)
            os.chdir(folder)
            sys.argv = [str(TRAIN), *arguments]
            try:
                runpy.run_path(str(TRAIN), run_name="__main__")
            finally:
                sys.stdout.flush()
                os._exit(1)  # a life that ends by itself is a mistake: there are a billion frames to go

    def alive(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG)[0] == 0

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def resumed_from(self) -> int | None:
        """The iteration it says it resumes from; None if it did not come that far."""
        found = re.search(r"resuming from .*state-(\d+)", self.output.read_text())
        return int(found[1]) if found else None


class Torchrun:
    """A run of several ranks that torchrun starts again whenever one dies."""

    def __init__(self, folder: Path, name: str, ranks: int, restarts: int, *arguments: str) -> None:
        self.output = folder / f"{name}.txt"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [*launcher, f"--max-restarts={restarts}", str(TRAIN), *arguments]
        with self.output.open("w") as file:
            kwargs = {"stdout": file, "stderr": subprocess.STDOUT, "start_new_session": True, "cwd": folder}
            self.agent = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **kwargs)

    def alive(self) -> bool:
        return self.agent.poll() is None

    def ranks(self) -> list[psutil.Process]:
        return psutil.Process(self.agent.pid).children()

    def starts(self) -> list[int]:
        """The iterations it says it resumed from."""
        return [int(number) for number in re.findall(r"resuming from .*state-(\d+)", self.output.read_text())]

    def end(self) -> None:
        """As a person ends it: it saves, and all ranks leave."""
        self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(PATIENCE)


def wait_for(condition, life: Life | Torchrun) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if not life.alive() or time.monotonic() > deadline:
            sys.exit(f"error: {life.output.read_text()[-2000:]}\nthis life ended or stood still without being killed")
        time.sleep(0.005)


def newest(run: Path) -> int:
    states = states_of(run)
    return iteration_of(states[0]) if states else 0


def storm(folder: Path, kills: int, seed: int) -> dict[str, int]:
    rng, run = random.Random(seed), folder / "run"
    count: dict[str, int] = dict.fromkeys(
        ("kills", "kills_while_starting", "kills_while_writing", "resumes", "files_read", "torn", "older"), 0
    )
    began = time.monotonic()
    for number in range(kills):
        have = newest(run)
        start = [f"resume={run}"] if have else [*SETTINGS, "save_interval=1", f"hydra.run.dir={run}"]
        life = Life(folder, number, *start)
        if have and rng.random() < 0.2:  # any moment of starting up
            time.sleep(rng.uniform(0.0, 3.0))
            count["kills_while_starting"] += 1
        else:  # any moment of training and saving
            wait_for(lambda have=have: newest(run) > have, life)
            time.sleep(rng.uniform(0.0, 0.5))
        life.kill()
        count["kills"] += 1
        count["kills_while_writing"] += any((run / FOLDER).glob("*.tmp"))
        for path in states_of(run):
            count["files_read"] += 1
            try:
                load_checkpoint(path)
            except BadCheckpoint as error:
                count["torn"] += 1
                print(f"torn: {error}")
        if (at := life.resumed_from()) is not None:
            count["resumes"] += 1
            count["older"] += at < have
        if (number + 1) % 10 == 0:
            print(f"{number + 1} kills, iteration {newest(run)}, {time.monotonic() - began:.0f} s", flush=True)
    return count


def storm_of_ranks(folder: Path, ranks: int, kills: int, seed: int) -> dict[str, int]:
    rng, run, began = random.Random(seed), folder / "run", time.monotonic()
    names = "kills", "kills_while_starting", "restarts", "older", "files_read", "torn"
    count: dict[str, int] = dict.fromkeys(names, 0)
    given = *SETTINGS, "save_interval=1", f"hydra.run.dir={run}"
    torchrun = Torchrun(folder, "storm", ranks, kills + 1, *given)
    wait_for(lambda: newest(run) > 0, torchrun)
    for number in range(kills):
        have, starts = newest(run), len(torchrun.starts())
        victim = rng.choice(torchrun.ranks())
        starting = rng.random() < 0.2
        victim.kill()
        count["kills"] += 1
        count["kills_while_starting"] += starting
        for path in states_of(run):
            count["files_read"] += 1
            try:
                load_checkpoint(path)
            except BadCheckpoint as error:
                if path.exists():  # else rank 0, which may still live, has just removed it for newer ones
                    count["torn"] += 1
                    print(f"torn: {error}")
        if starting:  # the next one as soon as the ranks are there again
            wait_for(lambda gone=victim: len(p := torchrun.ranks()) == ranks and gone not in p, torchrun)
            time.sleep(rng.uniform(0.0, 4.0))
        else:
            wait_for(lambda before=starts: len(torchrun.starts()) > before, torchrun)
            count["restarts"] += 1
            count["older"] += torchrun.starts()[-1] < have
            wait_for(lambda: newest(run) > torchrun.starts()[-1], torchrun)
            time.sleep(rng.uniform(0.0, 0.5))
        if (number + 1) % 10 == 0:
            print(f"{number + 1} kills, iteration {newest(run)}, {time.monotonic() - began:.0f} s", flush=True)
    have = newest(run)
    wait_for(lambda: newest(run) > have, torchrun)
    torchrun.end()
    return count


def undisturbed(folder: Path, iteration: int, ranks: int) -> dict:
    """The state after so many iterations of a run that nobody kills."""
    run = folder / "undisturbed"
    given = *SETTINGS, f"save_interval={iteration}", f"hydra.run.dir={run}"
    life = Life(folder, 9999, *given) if ranks == 1 else Torchrun(folder, "undisturbed", ranks, 0, *given)
    global PATIENCE
    PATIENCE = 3600.0
    wait_for(lambda: newest(run) == iteration, life)
    life.kill() if isinstance(life, Life) else life.end()
    return load_checkpoint(next(path for path in states_of(run) if iteration_of(path) == iteration))


def main() -> None:
    args = options(__doc__, kills=200, seed=0, ranks=1)
    folder = Path(tempfile.mkdtemp(prefix="kill-storm-"))
    try:
        if args.ranks == 1:
            count = storm(folder, args.kills, args.seed)
        else:
            count = storm_of_ranks(folder, args.ranks, args.kills, args.seed)
        state = load_checkpoint(states_of(folder / "run")[0])
        count["iterations"] = state["iteration"]
        print(f"comparing with a run of {state['iteration']} iterations that nobody disturbed")
        other = undisturbed(folder, state["iteration"], args.ranks)
        pairs = [
            zip(tensors_of(state[part]), tensors_of(other[part]), strict=True) for part in ("ppo", "batches", "flights")
        ]
        count["tensors_that_differ"] = sum(not torch.equal(a, b) for part in pairs for a, b in part)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, value in count.items():
        print(f"{name.replace('_', ' '):24} {value}")
    print(json.dumps(count))
    sys.exit(1 if count["torn"] or count["older"] or count["tensors_that_differ"] else 0)


if __name__ == "__main__":
    main()
