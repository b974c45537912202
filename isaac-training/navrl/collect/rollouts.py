"""Rollouts on disk: appended during training, read back one drone at a time or all at once.

`data.bin` is a sequence of records, `index.jsonl` has one line per complete record (and can be rebuilt from the
records). A record is a header (JSON), a table of blocks and the blocks: one field of a few drones each, LZ4 with or
without byte shuffling, whichever is smaller. The observation a step leads to is nearly always the one the next step
starts from, so fields under "next" store only the exceptions.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import mmap
import os
import queue
import struct
import threading
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import LazyTensorStorage, ReplayBuffer

from navrl.io.contents import ListOf, MapOf, Number, OneOf, Plain, Text, Unfit, check
from navrl.io.files import LINE, DiskGuard, append_line, open_file, sync_directory, write_text
from navrl.settings import one_line

log = logging.getLogger("navrl")

DATA, INDEX, FOLDER = "data.bin", "index.jsonl", "rollouts"
MAGIC = b"NVRL"
BLOCK = 1 << 18  # target bytes per block: reading one drone reads few others, and there are not too many blocks
NEXT = "next/"
TABLE = np.dtype([("bytes", "<u4"), ("raw", "<u4"), ("crc", "<u4")])


MANY = 1 << 24
COUNT, SIZE = Number(1, MANY, whole=True), Number(0, 1 << 50, whole=True)
DTYPES = OneOf(("<f4", "<f8", "<f2", "|b1", "|i1", "|u1", "<i2", "<i4", "<i8"))
HEADER = {  # of a record
    "drones": COUNT, "steps": COUNT, "raw_bytes": SIZE, "about": MapOf(Plain(), 100), "episodes": ListOf(COUNT, MANY),
    "fields": ListOf([Text(200), DTYPES, ListOf(COUNT, 8), OneOf(("plain", "shuffle", "follows")), COUNT, SIZE], 200),
}  # fmt: skip
LINE_OF_INDEX = {
    "offset": SIZE, "bytes": SIZE, "crc": SIZE, "drones": COUNT, "steps": COUNT, "episodes": COUNT, "raw_bytes": SIZE,
    "iteration?": SIZE, "frames?": SIZE, "lidar_range?": Number(0.0, 1000.0),
}  # fmt: skip


class BadRollout(ValueError):
    """A rollout that cannot be read; the message is one line that names it."""


# --- packing ----------------------------------------------------------------------------------------------------


def _shuffle(data: bytes, size: int) -> bytes:
    return np.frombuffer(data, np.uint8).reshape(-1, size).T.tobytes()


def _unshuffle(data: bytes, size: int) -> bytes:
    return np.frombuffer(data, np.uint8).reshape(size, -1).T.tobytes()


def _pack(data: bytes) -> bytes:
    return lz4.block.compress(data, store_size=False)


def _exceptions(now: np.ndarray, then: np.ndarray) -> bytes:
    """Pack the steps whose result (`then`) is not what the following step starts from (`now`), with the results."""
    now, then = (np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape[:2], -1) for x in (now, then))
    differs = np.ones(then.shape[:2], bool)  # nothing follows the last step
    differs[:, :-1] = (now[:, 1:] != then[:, :-1]).any(-1)
    where = np.flatnonzero(differs).astype("<u4")
    return struct.pack("<I", len(where)) + where.tobytes() + then.reshape(-1, then.shape[-1])[where].tobytes()


def _follow(now: np.ndarray, data: bytes) -> np.ndarray:
    (count,) = struct.unpack_from("<I", data)
    where = np.frombuffer(data, "<u4", count, 4)
    then = np.empty_like(now)
    then[:, :-1] = now[:, 1:]  # nothing follows the last step: it is among the exceptions
    rows = np.frombuffer(data, now.dtype, -1, 4 + 4 * count).reshape(count, *now.shape[2:])
    then.reshape(-1, *now.shape[2:])[where] = rows
    return then


@dataclass(frozen=True)
class _Field:
    name: str
    dtype: str
    shape: tuple[int, ...]  # of one frame
    filter: str  # plain, shuffle or follows
    group: int  # drones per block
    first: int  # index of its first block

    @property
    def source(self) -> str:
        """The field this one follows."""
        return self.name[len(NEXT) :]


def pack_rollout(batch: TensorDictBase, about: dict) -> tuple[bytes, dict]:
    """Pack a batch (drones, steps) into a record; also return its index line without the offset."""
    arrays = {}
    for key in sorted(batch.keys(True, True), key=str):
        name = "/".join(key) if isinstance(key, tuple) else key
        arrays[name] = batch[key].detach().cpu().contiguous().numpy()
    drones, steps = batch.batch_size
    fields, blocks, table = [], [], []
    for name, array in arrays.items():
        twin = arrays.get(name[len(NEXT) :]) if name.startswith(NEXT) else None
        follows = twin is not None and twin.shape == array.shape and twin.dtype == array.dtype
        size, kind = array.dtype.itemsize, "follows" if follows else "plain"
        group, block = max(1, BLOCK * drones // max(1, array.nbytes)), len(blocks)
        for first in range(0, drones, group):
            part = np.ascontiguousarray(array[first : first + group])
            data = _exceptions(twin[first : first + group], part) if twin is not None and follows else part.tobytes()
            packed = _pack(data if kind != "shuffle" else _shuffle(data, size))
            if first == 0 and not follows and size > 1:  # the first block decides for the field
                other = _pack(_shuffle(data, size))
                kind, packed = ("shuffle", other) if len(other) < len(packed) else (kind, packed)
            blocks.append(packed)
            table.append((len(packed), len(data), zlib.crc32(packed)))
        fields.append([name, array.dtype.str, list(array.shape[2:]), kind, group, block])
    lengths = _episode_lengths(arrays["next/done"].reshape(drones, steps))
    raw = sum(array.nbytes for array in arrays.values())
    header = {"drones": drones, "steps": steps, "fields": fields, "episodes": lengths, "raw_bytes": raw, "about": about}
    body = json.dumps(header, separators=(",", ":")).encode() + b"\n" + np.array(table, TABLE).tobytes()
    head = MAGIC + struct.pack("<III", len(body), len(table), zlib.crc32(body))
    record = b"".join([head, body, *blocks])
    return record, _line(header, len(record))


def _line(header: dict, size: int) -> dict:
    """Build the index line of a record."""
    summary = {name: header[name] for name in ("raw_bytes", "drones", "steps")}
    return {"bytes": size, **summary, "episodes": len(header["episodes"]), **header["about"]}


def _episode_lengths(done: np.ndarray) -> list[int]:
    """Return lengths of the episodes, or parts of them, drone by drone."""
    ends = done.copy()
    ends[:, -1] = True
    places = np.flatnonzero(ends)
    return np.diff(places, prepend=-1).tolist()


# --- writing ----------------------------------------------------------------------------------------------------


class RolloutArchive:
    """Appends batches in the background. Keeps a reference to each until it is written: it must not change.

    When the disk is slower than training, batches that find `waiting` others are left out and counted. A run
    resumed from `iteration` repeats the later iterations, so their rollouts are dropped.
    """

    def __init__(
        self, folder: Path, disk: DiskGuard | None = None, waiting: int = 2, iteration: int | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.disk = folder, disk or DiskGuard()
        if iteration is not None and (folder / DATA).exists():
            remove_after(folder, iteration)
        self.stats = {"stored": 0, "left_out": 0, "failed": 0, "bytes": 0, "raw_bytes": 0}
        self._queue: queue.Queue[tuple[TensorDictBase, dict] | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._work, name="rollout archive", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)

    def append(self, batch: TensorDictBase, about: dict) -> None:
        """Store a batch; `about` holds plain values to find it by (iteration, frames, ...). Returns immediately."""
        try:
            self._queue.put_nowait((batch, about))
        except queue.Full:
            self.stats["left_out"] += 1

    def shutdown(self) -> None:
        """Wait for pending batches and stop."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        atexit.unregister(self.shutdown)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                record, line = pack_rollout(*item)
                line = append_record(self.folder, record, line)
            except Exception as error:  # whatever it is, training must not be affected
                self.stats["failed"] += 1
                self.disk.failed(f"storing a rollout in {self.folder}", error)
                continue
            self.stats["stored"] += 1
            for key in ("bytes", "raw_bytes"):
                self.stats[key] += line[key]


def append_record(folder: Path, record: bytes, line: dict) -> dict:
    """Append the record first, then its index line: a record left without a line by a crash is ignored."""
    with open_file(folder / DATA, "ab", buffering=0) as file:  # a full disk must leave nothing to write later
        begin = file.tell()
        try:
            rest = memoryview(record)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
            line = {"offset": begin, **line}
            append_line(folder / INDEX, _signed(line), sync=True)
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(begin)
            raise
    if begin == 0:
        sync_directory(folder)
    return line


# --- the index --------------------------------------------------------------------------------------------------


def _signed(line: dict) -> dict:
    return {**line, "crc": zlib.crc32(json.dumps(line, sort_keys=True).encode())}


def read_index(folder: Path) -> list[dict]:
    """Read the index, one line per rollout. A damaged or missing index is rebuilt in memory from the records."""
    lines, bad = [], not (folder / INDEX).exists()
    data = folder / DATA
    size = data.stat().st_size if data.exists() else 0
    with contextlib.nullcontext([]) if bad else (folder / INDEX).open("rb") as rows:
        for row in rows:
            try:
                line: Any = json.loads(row) if len(row) < LINE else None
                check(line, LINE_OF_INDEX, "line")
                crc = line.pop("crc")
                if _signed(line)["crc"] != crc:
                    raise ValueError
                lines.append(line)
            except (ValueError, RecursionError):
                bad = bad or bool(row.strip())
    known = max((line["offset"] + line["bytes"] for line in lines), default=0)
    bad = bad or known > size  # the data were cut, or the index is not theirs
    if bad or size > known:  # the index may be short without being damaged
        found = _scan(folder, 0 if bad else known)
        whole = {line["offset"]: line for line in found + lines}
        if len(whole) > len(lines):  # else a crash truncated a line whose rollout was never completed
            log.warning("%s: %d rollouts were missing in %s and were recovered", folder, len(whole) - len(lines), INDEX)
        lines = [whole[offset] for offset in sorted(whole)]
    return lines


def remove_after(folder: Path, iteration: int) -> None:
    """Remove the rollouts of later iterations, which a resumed run flies again. No other whole record is lost."""
    lines = read_index(folder)
    kept = [line for line in lines if line.get("iteration", 0) <= iteration]
    if len(kept) < len(lines):
        log.info("%s: %d rollouts after iteration %d removed", folder, len(lines) - len(kept), iteration)
    write_text(folder / INDEX, "".join(json.dumps(_signed(line)) + "\n" for line in kept))
    end = max((line["offset"] + line["bytes"] for line in kept), default=0)
    with open_file(folder / DATA, "rb+") as file:
        if all(line["offset"] >= end for line in lines if line not in kept):  # else they are left out by the index
            file.truncate(min(end, os.fstat(file.fileno()).st_size))


def _scan(folder: Path, place: int) -> list[dict]:
    """Find the complete records of data.bin from `place` on, by their magic bytes and checksums."""
    out = []
    if not (folder / DATA).exists() or not (folder / DATA).stat().st_size:
        return out
    with (folder / DATA).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while (place := data.find(MAGIC, place)) >= 0:
            line = _record_at(data, place)
            out += [line] if line else []
            place += line["bytes"] if line else 1
    return out


def _record_at(data: mmap.mmap, place: int) -> dict | None:
    try:
        _, size, blocks, crc = struct.unpack_from("<4sIII", data, place)
        body = data[place + 16 : place + 16 + size]
        if zlib.crc32(body) != crc:
            return None
        header = _Header(body, place + 16 + size, blocks)
    except (struct.error, ValueError, RecursionError):
        return None
    for entry, begin in zip(header.table, header.places.tolist(), strict=True):
        if zlib.crc32(data[begin : begin + int(entry["bytes"])]) != entry["crc"]:
            return None
    return {"offset": place, **_line(header.told, 16 + size + int(header.table["bytes"].sum()))}


# --- reading ----------------------------------------------------------------------------------------------------


class RolloutStorage:
    """Reads an archive: whole rollouts, some drones of one, single episodes. Any number of concurrent readers."""

    def __init__(self, folder: str | Path, threads: int = 2) -> None:
        self.folder, self.threads = Path(folder), threads
        if not (self.folder / DATA).is_file():
            raise BadRollout(f"{self.folder} holds no rollouts (no {DATA}); train with rollout_save_interval=…")
        self.lines = read_index(self.folder)
        self._headers: dict[int, _Header] = {}

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, rollout: int) -> TensorDict:
        return self.read(rollout)

    @cached_property
    def _episodes(self) -> np.ndarray:
        return np.cumsum([0, *(line["episodes"] for line in self.lines)])

    @property
    def num_frames(self) -> int:
        return sum(line["drones"] * line["steps"] for line in self.lines)

    @property
    def num_episodes(self) -> int:
        return int(self._episodes[-1])

    def find_episode(self, episode: int) -> tuple[int, int, int, int]:
        """Return rollout, drone, first step and length of an episode, or of the part of it in one rollout."""
        if not 0 <= episode < self.num_episodes:
            raise IndexError(f"episode {episode} of {self.num_episodes}")
        rollout = int(np.searchsorted(self._episodes, episode, side="right")) - 1
        header, local = self._header(rollout), episode - int(self._episodes[rollout])
        drone, step = divmod(int(header.ends[local]), self.lines[rollout]["steps"])
        return rollout, drone, step, int(header.ends[local + 1] - header.ends[local])

    def episode(self, episode: int, keys: Sequence[str] | None = None) -> TensorDict:
        """Read the frames of an episode."""
        rollout, drone, step, length = self.find_episode(episode)
        return self.read(rollout, [drone], keys)[0, step : step + length]

    def read(self, rollout: int, drones: Iterable[int] | None = None, keys: Sequence[str] | None = None) -> TensorDict:
        """Read a rollout (drones, steps), or only some drones and keys ("agents/observation/lidar") of it.

        Only the blocks needed are read from disk. Raises BadRollout if one of them is damaged.
        """
        rollout = range(len(self))[rollout]
        header = self._header(rollout)
        chosen = [*range(header.drones)] if drones is None else [range(header.drones)[d] for d in drones]
        names = [*header.fields] if keys is None else [*keys]
        if unknown := [name for name in names if name not in header.fields]:
            raise KeyError(f"rollout {rollout} has no {unknown[0]}; it has {', '.join(header.fields)}")
        arrays, tasks = {}, []
        for name in names:
            field = header.fields[name]
            arrays[name] = np.empty((len(chosen), header.steps, *field.shape), field.dtype)
            rows: dict[int, list[int]] = {}  # block to rows of `chosen` in it
            for row, drone in enumerate(chosen):
                rows.setdefault(drone // field.group, []).append(row)
            tasks += [(name, group, mine) for group, mine in rows.items()]

        def fill(task: tuple[str, int, list[int]]) -> None:
            name, group, mine = task
            block = self._block(file.fileno(), rollout, header, name, group)
            if drones is None:
                arrays[name][mine[0] : mine[-1] + 1] = block
            else:
                arrays[name][mine] = block[[chosen[row] - group * header.fields[name].group for row in mine]]

        with (self.folder / DATA).open("rb") as file, ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(fill, tasks))
        content = {tuple(name.split("/")): torch.from_numpy(array) for name, array in arrays.items()}
        return TensorDict(content, batch_size=[len(chosen), header.steps])

    def replay_buffer(self, keys: Sequence[str] | None = None, **options) -> ReplayBuffer:
        """Load every frame of the archive into a TorchRL replay buffer, for off-policy or imitation learning.

        Damaged rollouts are skipped with a warning.
        """
        buffer = ReplayBuffer(storage=LazyTensorStorage(self.num_frames), **options)
        for rollout in range(len(self)):
            try:
                buffer.extend(self.read(rollout, keys=keys).reshape(-1))
            except BadRollout as error:
                log.warning("%s; skipped", error)
        return buffer

    # --- internals ----------------------------------------------------------------------------------------------

    def _header(self, rollout: int) -> _Header:
        if rollout not in self._headers:
            line = self.lines[rollout]
            try:
                with (self.folder / DATA).open("rb") as file:
                    file.seek(line["offset"])
                    magic, size, blocks, crc = struct.unpack("<4sIII", file.read(16))
                    body = file.read(size) if magic == MAGIC and size < line["bytes"] else b""
                if zlib.crc32(body) != crc or not body:
                    raise BadRollout(f"rollout {rollout} in {self.folder} is damaged (header)")
                header = self._headers[rollout] = _Header(body, line["offset"] + 16 + size, blocks)
            except (OSError, struct.error, ValueError, RecursionError) as error:
                if isinstance(error, BadRollout):
                    raise
                raise BadRollout(f"rollout {rollout} in {self.folder} is damaged ({one_line(str(error))})") from None
            said = header.drones, header.steps, len(header.told["episodes"])
            if said != (line["drones"], line["steps"], line["episodes"]):
                raise BadRollout(f"rollout {rollout} in {self.folder} is not what {INDEX} says")
        return self._headers[rollout]

    def _block(self, file: int, rollout: int, header: _Header, name: str, group: int) -> np.ndarray:
        field = header.fields[name]
        index = field.first + group
        entry = header.table[index]
        packed = os.pread(file, int(entry["bytes"]), int(header.places[index]))
        if len(packed) != entry["bytes"] or zlib.crc32(packed) != entry["crc"]:
            raise BadRollout(
                f"rollout {rollout} in {self.folder} is damaged ({name}, drones from {group * field.group})"
            )
        try:
            data = lz4.block.decompress(packed, uncompressed_size=int(entry["raw"]), return_bytearray=True)
            if field.filter == "follows":
                return _follow(self._block(file, rollout, header, field.source, group), data)
            dtype = np.dtype(field.dtype)
            data = _unshuffle(data, dtype.itemsize) if field.filter == "shuffle" else data
            return np.frombuffer(data, dtype).reshape(-1, header.steps, *field.shape)
        except (lz4.block.LZ4BlockError, ValueError, IndexError, struct.error) as error:
            if isinstance(error, BadRollout):
                raise
            raise BadRollout(
                f"rollout {rollout} in {self.folder} is damaged ({name}: {one_line(str(error))})"
            ) from None


class _Header:
    """What is known of a record. Everything it claims is checked here, before any of it is believed."""

    def __init__(self, body: bytes, begin: int, blocks: int) -> None:
        split = len(body) - blocks * TABLE.itemsize
        self.told = header = json.loads(body[: max(0, split)])
        check(header, HEADER, "header")
        self.drones, self.steps = header["drones"], header["steps"]
        described = [_Field(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in header["fields"]]
        self.fields = {field.name: field for field in described}
        self.table = np.frombuffer(body, TABLE, blocks, split)
        self.places = begin + np.cumsum(self.table["bytes"], dtype=np.int64) - self.table["bytes"]
        self.ends = np.cumsum([0, *header["episodes"]])
        if self.drones > len(header["episodes"]):  # before anything as large as it claims is made
            raise Unfit("drones", "are more than there are episodes")
        if not np.isin(np.arange(self.drones + 1) * self.steps, self.ends).all() or self.ends[-1] != len(self):
            raise Unfit("episodes", "do not add up to the drones' steps")
        for field in described:
            self._check_field(field)

    def __len__(self) -> int:
        return self.drones * self.steps

    def _check_field(self, field: _Field) -> None:
        """Raise Unfit for a field whose blocks are not there, or do not hold what it says."""
        parts = field.name.split("/")
        if "" in parts or any("/".join(parts[:k]) in self.fields for k in range(1, len(parts))):
            raise Unfit(field.name, "is no name of a field")
        count = -(-self.drones // field.group)
        mine = self.table[field.first : field.first + count]
        if len(mine) < count:
            raise Unfit(field.name, "has blocks that are not there")
        groups = [min(field.group, self.drones - first) for first in range(0, self.drones, field.group)]
        frame = np.dtype(field.dtype).itemsize * math.prod(field.shape)
        frames = np.array(groups, np.int64) * self.steps
        raw, limit = mine["raw"].astype(np.int64), mine["bytes"].astype(np.int64) * 255 + 64  # LZ4 packs no tighter
        if field.filter == "follows":
            source = self.fields.get(field.source) if field.name.startswith(NEXT) else None
            same = source and (source.dtype, source.shape, source.group) == (field.dtype, field.shape, field.group)
            if not source or not same or source.filter == "follows":
                raise Unfit(field.name, "follows a field that is not there")
            fits = raw <= 4 + frames * (4 + frame)
        else:
            fits = raw == frames * frame
        if not (fits & (raw <= limit)).all():
            raise Unfit(field.name, "is not of the size it should be")
