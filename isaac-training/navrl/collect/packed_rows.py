"""A batch held packed while it is learned from, for machines with less memory than frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import lz4.block
import numpy as np
import torch
from torch import Tensor

CHUNK = 512  # frames packed together: 16 drones' batches of 32, which resemble each other
THREADS = 2


class PackedRows:
    """The network's input, one row a frame, of which the first `columns` are LZ4 (None: all). What is lost is time:
    every minibatch unpacks every chunk, in threads. What comes out is bit for bit what went in.
    """

    def __init__(self, inputs: Sequence[Tensor], prepare: Callable[..., Tensor], columns: int | None = None) -> None:
        total = len(inputs[0])
        self._chunks: list[bytes] = []
        for first in range(0, total, CHUNK):  # the whole of it is never there unpacked
            rows = prepare(*(part[first : first + CHUNK] for part in inputs)).cpu()
            if first == 0:
                self.shape = torch.Size((total, rows.shape[1]))
                self._columns = rows.shape[1] if columns is None else columns
                self._rest = rows.new_empty(total, rows.shape[1] - self._columns)
            packed = rows[:, : self._columns].contiguous().numpy()
            self._chunks.append(lz4.block.compress(packed, store_size=False))
            self._rest[first : first + CHUNK] = rows[:, self._columns :]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory this takes."""
        return sum(map(len, self._chunks)) + self._rest.nbytes

    def select(self, index: Tensor, out: Tensor) -> None:
        """Rows of a minibatch into `out`."""
        wanted, place = index.cpu().sort()
        ends = torch.searchsorted(wanted, torch.arange(0, len(self) + CHUNK, CHUNK)).tolist()
        here = out if out.device.type == "cpu" else torch.empty_like(out, device="cpu")

        def unpack(number: int) -> None:
            mine = slice(ends[number], ends[number + 1])
            if mine.start == mine.stop:
                return
            size = min(CHUNK, len(self) - number * CHUNK)
            data = lz4.block.decompress(self._chunks[number], uncompressed_size=4 * size * self._columns)
            rows = torch.from_numpy(np.frombuffer(bytearray(data), np.float32)).view(size, self._columns)
            here[place[mine], : self._columns] = rows[wanted[mine] - number * CHUNK]

        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(unpack, range(len(self._chunks))):
                pass
        here[:, self._columns :] = self._rest[index.cpu()]
        if here is not out:
            out.copy_(here)
