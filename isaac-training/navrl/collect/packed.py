"""Batches kept compressed from collection to use, for machines with little memory.

A batch is flown in pieces of a few steps; each is turned into network input, compressed with LZ4 and dropped, so the
observations of a whole batch are never in memory. A block holds a few drones' steps of one piece, which resemble each
other. What is learned is, bit for bit, what would be learned from the plain batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import lz4.block
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from navrl.ppo.batch import Batch, needs_bootstrap
from navrl.schema import STATS

UNIT = 256  # frames a block aims at
THREADS = 2
PIECES = 8  # a batch is flown in so many pieces at most
KEPT = (
    "value", "log_prob", "raw_action", ("next", "agents", "reward"), ("next", "done"), ("next", "terminated"),
    *(("next", "stats", name) for name in STATS),
)  # fmt: skip


class PackedRows:
    """Network input of a batch (N, T), one row per frame, drone after drone, with the first `columns` compressed."""

    ahead = 16  # minibatches decompressed together: each of them needs nearly every block

    def __init__(self, drones: int, steps: int, columns: int | None) -> None:
        self.drones, self.steps, self._wanted = drones, steps, columns
        self._blocks: list[bytes] = []  # piece after piece, in each drone after drone
        self._rest: Tensor | None = None

    def add(self, first: int, rows: Tensor) -> None:
        """Add the rows (N · t, columns) of the steps from `first` on; all pieces but the last have one size."""
        rows = rows.cpu()
        if self._rest is None:
            self.piece = len(rows) // self.drones
            self.group = max(1, UNIT // self.piece)  # drones per block
            self.columns = rows.shape[1] if self._wanted is None else self._wanted
            self.shape = torch.Size((self.drones * self.steps, rows.shape[1]))
            self._rest = torch.empty(self.drones, self.steps, rows.shape[1] - self.columns)
        by_drone = rows.view(self.drones, -1, rows.shape[1])
        self._rest[:, first : first + by_drone.shape[1]] = by_drone[..., self.columns :]
        for drone in range(0, self.drones, self.group):
            part = by_drone[drone : drone + self.group, :, : self.columns].contiguous()
            self._blocks.append(lz4.block.compress(part.numpy(), store_size=False))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory this takes."""
        return sum(map(len, self._blocks)) + (self._rest.nbytes if self._rest is not None else 0)

    def tensor(self) -> Tensor:
        """All rows, decompressed."""
        out = torch.empty(self.shape)
        self.select(torch.arange(len(self)), out)
        return out

    def select(self, index: Tensor, out: Tensor) -> None:
        """Copy rows by number into `out`; blocks are decompressed in threads, outside of the interpreter lock."""
        assert self._rest is not None, "a batch without rows"
        index = index.cpu()
        here = out if out.device.type == "cpu" else torch.empty_like(out, device="cpu")
        drone, step = index // self.steps, index % self.steps
        a_piece = -(-self.drones // self.group)
        block = step // self.piece * a_piece + drone // self.group
        block, place = block.sort()
        drone, step = drone[place], step[place]
        ends = torch.searchsorted(block, torch.arange(len(self._blocks) + 1)).tolist()

        def unpack(number: int) -> None:
            mine = slice(ends[number], ends[number + 1])
            first, group = number // a_piece * self.piece, number % a_piece * self.group
            steps, drones = min(self.piece, self.steps - first), min(self.group, self.drones - group)
            size = 4 * drones * steps * self.columns
            data = lz4.block.decompress(self._blocks[number], uncompressed_size=size)
            rows = torch.from_numpy(np.frombuffer(bytearray(data), np.float32)).view(-1, self.columns)
            here[place[mine], : self.columns] = rows[(drone[mine] - group) * steps + step[mine] - first]

        wanted = [number for number in range(len(self._blocks)) if ends[number] < ends[number + 1]]
        if self.columns:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(unpack, wanted))
        here[:, self.columns :] = self._rest.view(len(self), -1)[index]
        if here is not out:
            out.copy_(here)


class Packer:
    """Gathers the pieces of a batch from a collector into one that is kept compressed."""

    def __init__(self, prepare: Callable[..., Tensor], steps: int, columns: int | None) -> None:
        """`prepare` turns observations into network input; its first `columns` are compressed (None: all)."""
        self.prepare, self.steps, self.columns = prepare, steps, columns
        self.pieces = max(p for p in range(1, min(PIECES, steps) + 1) if steps % p == 0)

    def gather(self, batches: Iterator[TensorDictBase]) -> Batch:
        """The next `pieces` pieces (N, steps / pieces) as one batch (N, steps)."""
        kept, last_rows, places = [], [], []
        rows: PackedRows | None = None
        for number in range(self.pieces):
            plain = Batch.prepared(piece := next(batches), self.prepare, last=number == self.pieces - 1)
            drones, steps = piece.batch_size
            rows = rows or PackedRows(drones, self.steps, self.columns)
            rows.add(number * steps, plain.rows.tensor())
            last_rows.append(plain.last_rows)
            drone, step = needs_bootstrap(piece, last=number == self.pieces - 1).nonzero(as_tuple=True)
            places.append(drone * self.steps + number * steps + step)
            # Cloned, because the collector writes the next piece over this one.
            kept.append(TensorDict({key: piece[key].clone() for key in KEPT}, batch_size=piece.batch_size))
        assert rows is not None, "a batch has at least one piece"
        order = torch.cat(places).argsort()  # drone after drone, as in a plain batch
        return Batch(torch.cat(kept, dim=1), rows, torch.cat(last_rows)[order])
