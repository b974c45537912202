"""What does saving cost the training loop on this machine? One run; JSON on the last line.

    python scripts/bench/checkpoint.py [iterations=60] [saves=1000]

Stall is the time the training thread spends in a save before it may go on: for us that includes gathering the state.
`torch.save` is followed by fsync, because a save that a power cut undoes is none; our background thread and
torch.distributed.checkpoint's do the rest of their work while training continues. Between saves the caches are swept,
as training would. Our percentiles are those of the best of five rounds, because other people's work on the machine only
ever adds time; those of all saves are beside them. Iterations that save and iterations that do not take turns, and
their medians are compared.
"""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from navrl.checkpoint.saver import AsyncCheckpointSaver
from navrl.cli import options
from navrl.io.files import DiskGuard, load_checkpoint
from navrl.io.snapshot import tensors_of
from navrl.monitor.flights import SHOWN, RecentFlights
from navrl.monitor.metrics import code_version
from navrl.monitor.performance import PerformanceMonitor
from navrl.train.build import Training, make_training
from navrl.train.directory import RunDirectory
from navrl.train.loggers import Loggers
from navrl.train.progress import Progress
from navrl.train.resume import seed_random_streams
from navrl.train.saving import Saving


def percentiles(seconds: list[float]) -> dict[str, float]:
    ms = 1e3 * np.array(seconds)
    return {"p50_ms": float(np.median(ms)), "p99_ms": float(np.percentile(ms, 99)), "max_ms": float(ms.max())}


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def idle(saver: AsyncCheckpointSaver) -> None:
    while saver.get_stats()["queued"]:
        time.sleep(0.001)


# --- three ways to save -----------------------------------------------------------------------------------------


def ours(make: Callable[[], dict], folder: Path, saves: int, work: Callable[[], object]) -> dict[str, float]:
    """Each save finds the one before on disk, as in training. Percentiles of the best of five rounds, and of all."""
    saver, stalls = AsyncCheckpointSaver(), []
    for k in range(saves + 2):
        work()
        stall = timed(lambda k=k: saver.save_async(make(), folder / f"ours-{k % 2}.pt"))
        if k >= 2:  # the first ones get their memory
            stalls.append(stall)
        idle(saver)
    saver.shutdown()
    rounds = [percentiles(stalls[part * saves // 5 : (part + 1) * saves // 5]) for part in range(5)]
    best = {key: min(r[key] for r in rounds) for key in rounds[0]}
    best |= {f"all_{key}": value for key, value in percentiles(stalls).items()}
    stats = saver.get_stats()
    assert stats["failed"] == stats["dropped"] == 0, stats
    load_checkpoint(folder / "ours-1.pt")
    each = {"background_ms": 1e3 * stats["seconds"] / stats["saved"], "bytes": stats["bytes"] / stats["saved"]}
    return best | each | {"ratio": stats["ratio"]}


def torch_save(make: Callable[[], dict], folder: Path, saves: int) -> dict[str, float]:
    path = folder / "torch.pt"

    def save() -> None:
        with path.open("wb") as file:
            torch.save(make(), file)
            file.flush()
            os.fsync(file.fileno())

    return percentiles([timed(save) for _ in range(saves)]) | {"bytes": float(path.stat().st_size)}


def distributed(make: Callable[[], dict], folder: Path, saves: int) -> dict[str, float]:
    """torch.distributed.checkpoint.async_save of the tensors alone: plain values it would pickle one by one."""
    stalls, background = [], []
    for k in range(saves + 1):
        path = folder / "dcp"
        shutil.rmtree(path, ignore_errors=True)
        began = time.perf_counter()
        state = {str(i): tensor for i, tensor in enumerate(tensors_of(make()))}
        future = dcp.async_save(state, checkpoint_id=str(path))  # pyright: ignore[reportPrivateImportUsage]
        stall = time.perf_counter() - began
        future.result()  # pyright: ignore[reportAttributeAccessIssue]
        if k:
            stalls.append(stall)
            background.append(time.perf_counter() - began)
    size = sum(file.stat().st_size for file in path.rglob("*"))
    return percentiles(stalls) | {"background_ms": 1e3 * statistics.median(background), "bytes": float(size)}


# --- what packing gains -----------------------------------------------------------------------------------------


def shuffled(data: bytes) -> bytes:
    """Bytes of every four sorted by their place: exponents beside exponents."""
    whole = len(data) // 4 * 4
    return np.frombuffer(data[:whole], np.uint8).reshape(-1, 4).T.tobytes() + data[whole:]


def codecs() -> dict[str, Callable[[bytes], Any]]:
    out: dict[str, Callable[[bytes], Any]] = {}
    for level in (0, 3, 9):
        out[f"lz4 level {level}"] = lambda data, level=level: lz4.frame.compress(data, compression_level=level)
    out["shuffle, lz4 level 0"] = lambda data: lz4.frame.compress(shuffled(data))
    out["shuffle, lz4 level 9"] = lambda data: lz4.frame.compress(shuffled(data), compression_level=9)
    out["zlib level 1"] = lambda data: zlib.compress(data, 1)
    if find_spec("zstandard"):
        import zstandard

        for level in (1, 3):
            out[f"zstd level {level}"] = lambda data, level=level: zstandard.compress(data, level)
        out["shuffle, zstd level 3"] = lambda data: zstandard.compress(shuffled(data), 3)
    if find_spec("blosc2"):
        import blosc2

        for codec in (blosc2.Codec.LZ4, blosc2.Codec.ZSTD):
            options = {"typesize": 4, "codec": codec, "clevel": 5, "nthreads": 1, "filters": [blosc2.Filter.SHUFFLE]}
            out[f"blosc2 {codec.name.lower()}"] = lambda data, o=options: blosc2.compress2(data, **o)
    return out


def packing(state: dict) -> dict[str, dict[str, float]]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    raw, out = buffer.getvalue(), {}
    for name, compress in codecs().items():
        best = min(timed(lambda c=compress: c(raw)) for _ in range(5))
        out[name] = {"ratio": len(compress(raw)) / len(raw), "ms": 1e3 * best}
    return out


# --- training with and without ------------------------------------------------------------------------------------


def make_saving(training: Training, run: Path) -> Saving:
    """Saving as in scripts/train.py, with flights that have ended."""
    flights, disk, monitor = RecentFlights(), DiskGuard(), PerformanceMonitor()
    flights.extend({name: np.zeros(flights.window, np.float32) for name in SHOWN})
    settings, version = training.settings, code_version()
    progress, loggers = Progress(settings), Loggers(settings, run, disk, version)
    parts = settings, run, disk, progress, training.ppo, training.batches, flights, monitor, loggers, version
    return Saving(*parts)


def throughput(training: Training, saving: Saving, iterations: int) -> dict[str, float]:
    """Every second iteration begins with a save, which is on disk long before it ends."""
    seconds, stalls, saver = {True: [], False: []}, [], saving.saver
    assert saver
    for k in range(2 * iterations):
        save = k % 2 == 0
        saving.progress.advance()
        began = time.perf_counter()
        if save:
            stalls.append(timed(saving.save))
        training.iterate()
        seconds[save].append(time.perf_counter() - began)
        idle(saver)
    assert saver.get_stats()["saved"] == iterations
    median = {save: statistics.median(values) for save, values in seconds.items()}
    stall = percentiles(stalls[2:])
    return {
        "throughput_ratio": median[False] / median[True],
        "iteration_ms": 1e3 * median[False],
        "iteration_saving_ms": 1e3 * median[True],
        "training_stall_p50_ms": stall["p50_ms"],
        "training_stall_max_ms": stall["max_ms"],
    }


def default_run(training: Training, saving: Saving) -> dict[str, float]:
    """The saves a default run makes, with one iteration between them: how much smaller is what stays?"""
    progress, every, saver = saving.progress, training.settings.save.interval, saving.saver
    assert saver
    for iteration in sorted({*range(every, progress.last, every), progress.last}):
        training.iterate()
        progress.iteration = iteration
        saving.save(keep=True)
        saving.save_best(iteration / progress.last)
        idle(saver)
    now, otherwise = saving.folder.bytes_saved()
    return {"run_dir_bytes": now, "run_dir_bytes_all_kept": otherwise, "run_dir_saved_fraction": 1 - now / otherwise}


# --- all of it --------------------------------------------------------------------------------------------------


def main() -> None:
    args = options(__doc__, iterations=60, saves=1000)
    seed_random_streams(0)
    training = make_training("device=cpu", "logger=none")
    for _ in range(20):
        training.iterate()
    gc.collect()
    gc.freeze()  # as scripts/train.py does
    folder = Path(tempfile.mkdtemp(prefix="bench-checkpoint-"))
    for name in ("throughput", "run"):
        RunDirectory(folder / name)
    own = make_saving(training, folder / "throughput").state
    generator = torch.Generator().manual_seed(0)
    big = {"layers": [torch.randn(1 << 20, generator=generator) for _ in range(50)]}
    sweep = torch.zeros(1 << 24)  # 64 MB
    twin = [torch.zeros_like(tensor) for tensor in big["layers"]]

    def memcpy() -> None:
        for to, tensor in zip(twin, big["layers"], strict=True):
            to.copy_(tensor)

    try:
        results: dict[str, Any] = {}
        for name, make, saves, work in (
            ("own", own, args.saves, lambda: sweep.add_(1.0)),
            ("big", lambda: big, max(5, args.saves // 40), memcpy),
        ):
            size = sum(tensor.nbytes for tensor in tensors_of(make()))
            print(f"\n{name}: {size / 1e6:.1f} MB in {len(tensors_of(make()))} tensors; ms of stall, then of the rest")
            ways = {
                "ours": ours(make, folder, saves, work),
                "torch.save": torch_save(make, folder, max(5, saves // 20)),
                "dcp.async_save": distributed(make, folder, max(5, saves // 20)),
            }
            for way, measured in ways.items():
                stall = "  ".join(f"{key[:3]} {measured[key]:8.2f}" for key in ("p50_ms", "p99_ms", "max_ms"))
                rest = f"{measured.get('background_ms', 0.0):8.1f}  {measured['bytes'] / 1e6:7.2f} MB"
                print(f"  {way:16} {stall}  background {rest}")
            results[f"{name}_bytes"] = size
            results |= {f"{name}_{way}": measured for way, measured in ways.items()}
        copies = [timed(memcpy) for _ in range(20)]
        results["big_memcpy_ms"] = 1e3 * statistics.median(copies)
        results["big_stall_ms"] = results["big_ours"]["p50_ms"]
        results["big_stall_over_memcpy"] = results["big_stall_ms"] / results["big_memcpy_ms"]
        results |= {f"own_stall_{key}": results["own_ours"][key] for key in ("p50_ms", "p99_ms", "max_ms")}
        over = results["big_stall_over_memcpy"]
        print(f"\nmemory copy of 'big': {results['big_memcpy_ms']:.1f} ms; our stall is {over:.2f} of it")

        results["packing"] = packing(own())
        print("\npacking our state: size left, ms")
        for name, measured in results["packing"].items():
            print(f"  {name:24} {measured['ratio']:.3f}  {measured['ms']:8.1f}")

        with make_saving(training, folder / "throughput") as saving:
            results |= throughput(training, saving, args.iterations)
        print(
            f"\niteration {results['iteration_ms']:.0f} ms, saving each {results['iteration_saving_ms']:.0f} ms:"
            f" {100 * results['throughput_ratio']:.1f} % of the speed;"
            f" stall p50 {results['training_stall_p50_ms']:.2f}, max {results['training_stall_max_ms']:.2f} ms"
        )
        with make_saving(training, folder / "run") as saving:
            results |= default_run(training, saving)
        print(
            f"saves of a default run: {results['run_dir_bytes'] / 1e6:.1f} MB stay of"
            f" {results['run_dir_bytes_all_kept'] / 1e6:.1f} MB, {100 * results['run_dir_saved_fraction']:.0f} % less"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
