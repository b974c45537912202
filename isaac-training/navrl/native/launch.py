"""Warp launches that are packed once and replayed, alone or split across the cores of a CPU.

Warp runs a CPU launch on one core. To use all cores, drones are split into slices and every slice runs on a thread of
torch's own OpenMP team: those threads stay awake during training, so handing them work costs a few microseconds.
(Python threads cost a hundred: waking one takes 50 µs, reacquiring the GIL another 50 µs, and torch's team keeps the
cores busy waiting meanwhile.)
"""

from __future__ import annotations

import ctypes
import itertools
from functools import cache
from typing import Any

import numpy as np
import torch
import warp as wp

from navrl.native.runtime import FORWARD_ONLY

SLICE_FLOOR = 32  # drones; below this a second thread does not pay off


class Recorded:
    """A launch with packed arguments. On a CPU it is called directly, which takes 1 µs instead of 5 through Warp."""

    def __init__(self, kernel: Any, dim: int | tuple[int, ...], inputs: list, device: torch.device) -> None:
        inputs = [wp.from_torch(value) if isinstance(value, torch.Tensor) else value for value in inputs]
        self._inputs = inputs  # keeps the memory behind the addresses alive
        self._launch: Any = wp.launch(kernel, dim, inputs=inputs, device=str(device), record_cmd=True)
        self._on_cpu = device.type == "cpu"
        if self._on_cpu:
            names = [argument.label for argument in kernel.adj.args]
            values = self._launch.params[1:]
            fields = [(name, type(value)) for name, value in zip(names, values, strict=True)]
            self._arguments = type("Arguments", (ctypes.Structure,), {"_fields_": fields})(*values)
            self._bounds = self._launch.params[0]
            self._entry = self._launch.hooks.forward

    def set(self, name: str, value: int) -> None:
        """Change a numeric argument."""
        if self._on_cpu:
            setattr(self._arguments, name, value)
        else:
            self._launch.set_param_by_name(name, value)

    def resize(self, dim: int | tuple[int, ...]) -> None:
        """Change the launch dimensions."""
        self._launch.set_dim(dim)
        if self._on_cpu:
            self._bounds = self._launch.params[0]

    def run(self) -> None:
        if self._on_cpu:
            self._entry(ctypes.byref(self._bounds), ctypes.byref(self._arguments))
        else:
            self._launch.launch()

    def addresses(self) -> tuple[int | None, int, int]:
        """Return addresses of the compiled function, its bounds and its arguments, to call it from C. CPU only."""
        entry = ctypes.cast(self._entry, ctypes.c_void_p).value
        return entry, ctypes.addressof(self._bounds), ctypes.addressof(self._arguments)


@wp.func_native("return ((const int*)address)[index];")
def number_at(address: wp.uint64, index: int) -> int:
    """Read an element of an int32 array by address: an array that changes at every launch needs no packing."""
    ...


@wp.func_native("""
    // One parallel region; each of its threads takes every n-th slice and runs the slice's launches in order.
    typedef signed (*Query)(); // not `int`, which Warp defines as a macro int(x)
    struct Work { Query thread, threads; const unsigned long long* table; int slices, launches; };
    Work work{(Query)thread, (Query)threads, (const unsigned long long*)table.data, slices, launches};
    void (*body)(void*) = [](void* data) {
        const Work& work = *(const Work*)data;
        for (int s = work.thread(); s < work.slices; s += work.threads())
            for (int k = 0; k < work.launches; ++k) {
                const unsigned long long* call = work.table + 3 * (s * work.launches + k);
                ((void (*)(void*, void*))call[0])((void*)call[1], (void*)call[2]);
            }
    };
    ((void (*)(void (*)(void*), void*, unsigned, unsigned))parallel)(body, &work, (unsigned)slices, 0u);
""")
def share_out(
    parallel: wp.uint64,
    thread: wp.uint64,
    threads: wp.uint64,
    table: wp.array(dtype=wp.uint64),  # pyright: ignore[reportInvalidTypeForm]
    slices: int,
    launches: int,
): ...


@wp.kernel(module="unique", module_options=FORWARD_ONLY)
def run_slices(
    parallel: wp.uint64,
    thread: wp.uint64,
    threads: wp.uint64,
    table: wp.array(dtype=wp.uint64),  # pyright: ignore[reportInvalidTypeForm]
    slices: int,
    launches: int,
):
    share_out(parallel, thread, threads, table, slices, launches)


@cache
def openmp() -> tuple[int | None, ...] | None:
    """Return addresses of the OpenMP entry points torch uses; None if it uses another OpenMP library."""
    try:
        library = ctypes.CDLL("libgomp.so.1")  # already loaded by torch
        functions = library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads
    except (OSError, AttributeError):
        return None
    return tuple(ctypes.cast(function, ctypes.c_void_p).value for function in functions)


class Team:
    """Splits drones across threads. Slices touch different drones, so their number never changes a result."""

    def __init__(self, device: torch.device, threads: int = 0) -> None:
        self.device = device
        alone = device.type != "cpu" or openmp() is None
        self.size = 1 if alone else threads or torch.get_num_threads()

    def slices(self, total: int, least: int = SLICE_FLOOR) -> list[tuple[int, int]]:
        """Split `total` drones (or other items) into near-equal (first, size), one per thread, none below `least`."""
        parts = max(1, min(self.size, total // least))
        edges = [total * k // parts for k in range(parts + 1)]
        return [(a, b - a) for a, b in itertools.pairwise(edges)]

    def prepare(self, slices: list[list[Recorded]]) -> Recorded | None:
        """Build what `run` needs for these slices; call again when launches are added or resized."""
        if len(slices) == 1:
            return None
        table = np.array([[launch.addresses() for launch in launches] for launches in slices], np.uint64)
        inputs = [*(openmp() or ()), wp.array(table.ravel(), dtype=wp.uint64, device="cpu"), *table.shape[:2]]
        return Recorded(run_slices, 1, inputs, self.device)

    def run(self, slices: list[list[Recorded]], prepared: Recorded | None) -> None:
        """Run every slice; the launches of one slice run in order."""
        if prepared:
            prepared.run()
            return
        for launches in slices:
            for launch in launches:
                launch.run()
