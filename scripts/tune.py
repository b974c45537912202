"""Measure this machine for a minute or two, and write a hardware preset for it.

navrl tune                    tries numbers of threads, of drones, and sizes of minibatches
navrl tune name=my-box        writes the preset my-box, for: navrl train hardware=my-box

Only speed is measured. What is learned per frame was tuned with 1024 drones and minibatches of 2048 frames; a preset
close to that is the safer choice when speeds are alike.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import gc
import itertools
import math
import os
import re
import socket
import statistics
import time

import torch
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from navrl.cli import command, fail, options
from navrl.io.files import write_text
from navrl.settings import ConfigError
from navrl.train.build import make_training
from navrl.train.hardware import own_folder

STEPS = 32  # decisions of every drone in a batch, as cfg/train.yaml has it
ITERATIONS = 4  # the first is not counted
CLOSE = 0.9  # of the best speed: good enough, if it is closer to what was tuned
TUNED = 1024, 2048  # drones, frames in a minibatch


def measure(drones: int, rows: int, threads: int) -> float:
    """Frames/s of a training with so many drones, frames in a minibatch, and threads."""
    sizes = [f"env.num_envs={drones}", f"algo.num_minibatches={drones * STEPS // rows}", f"threads={threads}"]
    training = make_training(*sizes, "env.num_maps=32", "logger=none")
    try:
        seconds = []
        for _ in range(ITERATIONS):
            began = time.perf_counter()
            training.iterate()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return training.settings.frames_per_batch / statistics.median(seconds[1:])
    finally:
        training.batches.shutdown()
        training.env.close()
        del training
        gc.collect()


def distance(drones: int, rows: int) -> float:
    """How far from what was tuned, in halvings and doublings."""
    return sum(abs(math.log2(value / tuned)) for value, tuned in zip((drones, rows), TUNED, strict=True))


@command
def main() -> None:
    cores = len(os.sched_getaffinity(0))
    sizes = {"drones": [512, 1024, 2048], "rows": [1024, 2048, 4096], "threads": sorted({max(1, cores // 2), cores})}
    given = options(__doc__, name=None, **sizes)
    name = given.name or re.sub(r"[^\w-]", "-", socket.gethostname().partition(".")[0]) or "this-machine"
    if not re.fullmatch(r"[\w-]{1,60}", name):
        fail(f"name={name}: must be letters, digits and dashes")
    for drones, rows in itertools.product(given.drones, given.rows):
        if drones < 1 or rows < 2 or drones * STEPS % rows:
            fail(f"rows={rows}: must divide {STEPS} frames of each of drones={drones}")
    speeds: dict[tuple[int, int, int], float] = {}
    for threads in given.threads:
        try_out(speeds, threads, *TUNED)
    if not speeds:
        fail("nothing could be measured; the reasons are above")
    threads = max(speeds, key=lambda key: speeds[key])[0]
    for drones, rows in itertools.product(given.drones, given.rows):
        try_out(speeds, threads, drones, rows)
    good = [key for key in speeds if speeds[key] >= CLOSE * max(speeds.values())]
    choice = min(good, key=lambda key: (distance(*key[1:]), -speeds[key]))

    table = Table("threads", "drones", "minibatch", "frames/s", title=f"{name}, {cores} cores")
    for key in sorted(speeds, key=lambda key: -speeds[key]):
        table.add_row(*map(str, key), f"{speeds[key]:,.0f}{' ←' if key == choice else ''}")
    Console().print(table)
    threads, drones, rows = choice
    algo = {"num_minibatches": drones * STEPS // rows, "amp": torch.cuda.is_available()}
    preset = {"env": {"num_envs": drones}, "algo": algo, "threads": threads}
    measured = f"# Measured by navrl tune on {time.strftime('%Y-%m-%d')}: {speeds[choice]:,.0f} frames/s."
    file = own_folder() / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, f"# @package _global_\n{measured}\n{OmegaConf.to_yaml(preset)}")
    print(f"wrote {file}; use it with: navrl train hardware={name}")


def try_out(speeds: dict[tuple[int, int, int], float], threads: int, drones: int, rows: int) -> None:
    """Measure it, unless it was measured before."""
    what = f"{threads} threads, {drones} drones, minibatches of {rows}"
    if (threads, drones, rows) not in speeds:
        try:
            speeds[threads, drones, rows] = measure(drones, rows, threads)
            print(f"{what}: {speeds[threads, drones, rows]:,.0f} frames/s", flush=True)
        except ConfigError as error:  # more memory than there is, say
            print(f"{what}: {error}", flush=True)


if __name__ == "__main__":
    main()
