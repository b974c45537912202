"""How small, how fast and how much in the way is the rollout archive on this machine? JSON on the last line.

    python scripts/bench/rollouts.py [rollouts=8]

Real default rollouts (1024 drones × 32 steps) flown with the policy that comes with the repository, beside the same
data through `torch.save`, `lz4.frame` of the whole, and blosc2 field by field.
"""

from __future__ import annotations

import io
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import lz4.frame
import numpy as np
import torch
from tensordict import TensorDictBase

from navrl.cli import options
from navrl.collect.rollouts import RolloutArchive, RolloutStorage
from navrl.ppo.policy_file import load_policy
from navrl.train.build import Training, make_training


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def fly(count: int) -> tuple[Training, list[TensorDictBase]]:
    training = make_training("device=cpu", "return_same_td=false", "env.num_maps=64")
    training.ppo.policy.load_state_dict(load_policy("default")[0].state_dict())
    for _ in range(8):  # until drones are on their way
        next(training.batches)
    return training, [next(training.batches).frames for _ in range(count)]


def others(batch: TensorDictBase) -> dict[str, dict[str, float]]:
    """The whole batch, by other means: share of its size left, ms to write and to read."""
    plain = {str(key): batch.get(key) for key in batch.keys(True, True)}
    raw = sum(tensor.nbytes for tensor in plain.values())
    buffer = io.BytesIO()
    out = {"torch.save": {"write_ms": 1e3 * timed(lambda: torch.save(plain, buffer))}}
    data = buffer.getvalue()
    read = timed(lambda: torch.load(io.BytesIO(data), weights_only=True))
    out["torch.save"] |= {"left": len(data) / raw, "read_ms": 1e3 * read}
    packed = lz4.frame.compress(data)
    out["lz4.frame of the whole"] = {
        "left": len(packed) / raw,
        "write_ms": out["torch.save"]["write_ms"] + 1e3 * timed(lambda: lz4.frame.compress(data)),
        "read_ms": 1e3 * (read + timed(lambda: lz4.frame.decompress(packed))),
    }
    if not find_spec("blosc2"):
        print("blosc2 is not installed, so it is not compared; make setup installs it")
    else:
        import blosc2

        arrays = [tensor.contiguous().numpy() for tensor in plain.values()]
        options: dict = {"codec": blosc2.Codec.LZ4, "clevel": 5, "nthreads": 1, "filters": [blosc2.Filter.SHUFFLE]}

        def pack() -> list:
            return [blosc2.compress2(a.reshape(-1), typesize=a.dtype.itemsize, **options) for a in arrays]

        parts = pack()
        out["blosc2 by field"] = {
            "left": sum(map(len, parts)) / raw,
            "write_ms": 1e3 * timed(pack),
            "read_ms": 1e3 * timed(lambda: [blosc2.decompress2(part) for part in parts]),
        }
    return out


def main() -> None:
    training, batches = fly(options(__doc__, rollouts=8).rollouts)
    folder = Path(tempfile.mkdtemp(prefix="bench-rollouts-"))
    try:
        archive, stalls = RolloutArchive(folder, waiting=2), []
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number, batch in enumerate(batches):
            for storing in (True, False):  # an iteration while the last rollout is being stored, one while nothing is
                if storing:
                    stalls.append(timed(lambda b=batch, n=number: archive.append(b, {"iteration": n, "frames": 0})))
                seconds[storing].append(timed(training.iterate))
                while archive._queue.qsize() or archive.stats["stored"] + archive.stats["failed"] <= number:
                    time.sleep(0.01)
        stored = dict(archive.stats)
        for _ in range(300):  # and the call itself, while the thread is busy, often enough for a percentile
            stalls.append(timed(lambda: archive.append(batches[0], {"iteration": -1, "frames": 0})))
            time.sleep(0.004)
        archive.shutdown()
        assert stored["stored"] == len(batches), stored
        storage = RolloutStorage(folder)
        lines = storage.lines
        saved = 1 - sum(line["bytes"] for line in lines) / sum(line["raw_bytes"] for line in lines)
        rng = np.random.default_rng(0)
        picks = [(int(rng.integers(len(storage))), int(rng.integers(1024))) for _ in range(60)]
        keys = ["agents/observation/lidar", "agents/action", "next/agents/reward"]
        random_read = statistics.median(timed(lambda p=p: storage.read(p[0], [p[1]], keys)) for p in picks)
        raw = lines[0]["raw_bytes"]
        decode = {}
        for threads in (1, 2):
            reader = RolloutStorage(folder, threads)
            decode[threads] = raw / 1e6 / min(timed(lambda r=reader: r.read(0)) for _ in range(3))
        header, fields = storage._header(0), {}
        for name, field in header.fields.items():
            table = header.table[field.first :][: -(-header.drones // field.group)]
            frame = int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize
            fields[name] = {"raw": frame * header.drones * header.steps, "stored": int(table["bytes"].sum())}
            fields[name]["filter"] = field.filter
        print("field (those above 1 % of the rollout)             raw kB  stored kB  left  filter")
        for name, f in sorted(fields.items(), key=lambda item: -item[1]["raw"]):
            if f["raw"] > raw / 100:
                left = f["stored"] / f["raw"]
                print(f"  {name:44} {f['raw'] / 1e3:9.0f} {f['stored'] / 1e3:10.0f}  {left:.2f}  {f['filter']}")
        peers = others(batches[0])
        print(f"\nours: {100 * saved:.1f} % saved, a rollout of {raw / 1e6:.1f} MB is {lines[0]['bytes'] / 1e6:.1f} MB")
        slower = statistics.median(seconds[True]) / statistics.median(seconds[False]) - 1
        print(f"  an iteration that shares the two cores with storing takes {100 * slower:.0f} % longer")
        print(f"  stall p99 {1e3 * np.percentile(stalls, 99):.3f} ms; one drone read in {1e3 * random_read:.2f} ms")
        print(f"  decoding {decode[1]:,.0f} MB/s with one thread, {decode[2]:,.0f} with two")
        for name, peer in peers.items():
            saving = 100 * (1 - peer["left"])
            print(f"{name}: {saving:.1f} % saved, write {peer['write_ms']:.0f} ms, read {peer['read_ms']:.0f} ms")
        result = {
            "saved_fraction": saved, "write_stall_p99_ms": 1e3 * float(np.percentile(stalls, 99)),
            "random_read_ms": 1e3 * random_read, "decode_mb_s_1": decode[1], "decode_mb_s_2": decode[2],
            "iteration_ms": 1e3 * statistics.median(seconds[False]),
            "iteration_storing_ms": 1e3 * statistics.median(seconds[True]),
            "raw_bytes": raw, "fields": fields, "others": peers,
        }  # fmt: skip
        print(json.dumps(result))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
