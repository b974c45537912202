"""Checkpoint files: torch's own format, optionally in an LZ4 frame. Written atomically, verified when read.

`lz4 -d x.pt.lz4` and `torch.load(..., weights_only=True)` open them without this package.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import pickle
import re
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import lz4.frame
import psutil
import torch

from navrl.io.contents import Unfit, check_bounds

log = logging.getLogger("navrl")

PACKED = ".lz4"
TEMPORARY = ".tmp"
MANIFEST = "manifest.jsonl"
LZ4_MAGIC, ZIP_MAGIC = b"\x04\x22\x4d\x18", b"PK\x03\x04"
PIECE = 1 << 20
# What reading a packed file may take: this many bytes, or this many times its size. Real ones shrink by a sixth.
UNPACKED, RATIO = 64 << 20, 20
LINE = 1 << 16  # bytes of a line of JSON


class BadCheckpoint(ValueError):
    """A truncated, damaged, foreign or malicious file; the message is one line that names it."""


# --- writing ----------------------------------------------------------------------------------------------------


def open_file(path: Path, mode: str, **options: Any) -> IO:
    """Open a file of a run, but never through a symbolic link: what that points to is not the run's to change."""
    if "b" not in mode:
        options = {"encoding": "utf-8", **options}
    return open(path, mode, opener=_without_links, **options)


def _without_links(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def whole_file(path: Path, mode: str = "w", **options: Any) -> Iterator[IO]:
    """A file to write that appears under its name when it is complete, and not at all if writing fails."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        temporary.unlink(missing_ok=True)  # a link, or left by a process that was killed
        with open_file(temporary, mode, **options) as file:
            yield file
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    with whole_file(path) as file:
        file.write(text)


@dataclass(frozen=True)
class Written:
    """A save as recorded in its manifest line."""

    file: str
    bytes: int  # on disk
    raw_bytes: int  # before packing
    crc32: str  # of the bytes on disk
    seconds: float


def write_checkpoint(path: Path, content: dict, level: int | None = None, manifest: Path | None = None) -> Written:
    """Write tensors and plain values to `path`, packed with LZ4 and named `.lz4` if a `level` is given.

    A reader, or a crash at any moment, finds the old file or the new one, never a partial one. Appends to `manifest`.
    """
    began = time.perf_counter()
    path = path if level is None or path.suffix == PACKED else path.with_name(path.name + PACKED)
    with whole_file(path, "wb") as file:
        sink = _Sink(file, level)
        try:
            with io.BufferedWriter(sink, PIECE) as buffer:  # torch writes in hundreds of small pieces  # pyright: ignore[reportArgumentType]
                torch.save(content, buffer)
        except (RuntimeError, ValueError) as error:  # how torch and the buffer wrap write errors
            raise sink.error or error from None
        file.flush()
        os.fsync(file.fileno())
        name = os.path.relpath(path, manifest.parent) if manifest else path.name
        written = Written(name, sink.bytes, sink.raw, f"{sink.crc:08x}", time.perf_counter() - began)
        if manifest:  # before the rename: a line without a file can be detected, a file without a line cannot
            with contextlib.suppress(OSError):  # the file matters more than its manifest line
                append_line(manifest, {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **asdict(written)})
    with contextlib.suppress(OSError):  # some network file systems do not support it; the file is in place
        sync_directory(path.parent)
    with contextlib.suppress(OSError):
        _sibling(path).unlink()  # an earlier save in the other form is now stale
    return written


class _Sink(io.RawIOBase):
    """Stream for torch.save: bytes are packed and written as they arrive, without a second copy in memory.

    Packing, checksum and disk writes all release the GIL.
    """

    def __init__(self, file: IO, level: int | None) -> None:
        self.file, self.error = file, None
        self.raw = self.bytes = self.crc = 0
        self.packer = None
        if level is not None:
            self.packer = lz4.frame.LZ4FrameCompressor(
                compression_level=level,
                content_checksum=True,
                block_linked=False,
                block_size=lz4.frame.BLOCKSIZE_MAX1MB,
            )
            self._put(self.packer.begin())

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:
        try:
            self._put(self.packer.compress(data) if self.packer else data)
        except OSError as error:
            self.error = error
            raise
        self.raw += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed and self.packer and not self.error:
            self._put(self.packer.flush())
        super().close()

    def _put(self, data: memoryview | bytes) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self.bytes += len(data)
        self.file.write(data)


def append_line(path: Path, record: dict, sync: bool = False) -> None:
    """Append a line of JSON, on disk on return if `sync`; a line truncated by an earlier crash stays separate."""
    line = json.dumps(record).encode() + b"\n"
    with open_file(path, "ab+") as file:
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            line = b"\n" + line
        file.write(line)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict]:
    """Read lines of JSON, skipping those truncated by a crash or longer than LINE bytes."""
    out = []
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while row := file.readline(LINE):
            with contextlib.suppress(ValueError, RecursionError):
                line = json.loads(row)
                out += [line] if isinstance(line, dict) else []
    return out


def sync_directory(path: Path) -> None:
    """Flush a directory to disk; without this a rename may not survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading ----------------------------------------------------------------------------------------------------


def load_checkpoint(path: str | Path, device: str | torch.device = "cpu") -> dict:
    """Load the checkpoint at `path`, with or without `.lz4`; nothing in the file is ever executed.

    Raises BadCheckpoint with a one-line message if it is missing, incomplete, modified or not a checkpoint.
    """
    path = checkpoint_path(path)
    with _one_line(path), _open(path) as file:
        magic = file.read(4)
        file.seek(0)
        if magic == LZ4_MAGIC:
            file = io.BytesIO(_unpack(file, path))
        elif magic != ZIP_MAGIC:
            raise BadCheckpoint(f"{path} is not a checkpoint (neither torch's format nor LZ4)")
        _check_zip(file, path)
        file.seek(0)
        content = torch.load(file, map_location=device, weights_only=True)
        if not isinstance(content, dict):
            raise BadCheckpoint(f"{path} is not a checkpoint of this project (it holds a {type(content).__name__})")
        with fits(path):
            check_bounds(content)
    return content


@contextlib.contextmanager
def fits(path: str | Path) -> Iterator[None]:
    """Turn Unfit into BadCheckpoint that names the file."""
    try:
        yield
    except Unfit as error:
        raise BadCheckpoint(f"{path} is not what it says it is: {error}") from None


def checkpoint_path(path: str | Path) -> Path:
    """Return the existing file of a checkpoint given by either name, with or without `.lz4`."""
    path = Path(path)
    return _sibling(path) if not os.path.lexists(path) and os.path.lexists(_sibling(path)) else path


def _sibling(path: Path) -> Path:
    """Return the path of the same checkpoint in its other form: x.pt or x.pt.lz4."""
    return path.with_suffix("") if path.suffix == PACKED else path.with_name(path.name + PACKED)


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except BadCheckpoint:
        raise
    except FileNotFoundError:
        raise BadCheckpoint(f"{path} does not exist") from None
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read ({error.strerror or error})") from None
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)|(?:global|function|class) ['`\"]?([\w.]+\.[\w.]+)", str(error))
        name = next((group for group in wanted.groups() if group), "code") if wanted else "code"
        raise BadCheckpoint(f"{path} asks to run {name}; refused, because a checkpoint is only data") from None
    except Exception as error:  # corrupt bytes can fail in any way in torch, zipfile and lz4
        raise BadCheckpoint(f"{path} is damaged ({type(error).__name__})") from None


def _open(path: Path) -> BinaryIO:
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise BadCheckpoint(f"{path} is a directory, not a checkpoint file")
    if not stat.S_ISREG(found.st_mode):
        raise BadCheckpoint(f"{path} is not a regular file")
    if not found.st_size:
        raise BadCheckpoint(f"{path} is empty")
    return path.open("rb")


def _unpack(file: BinaryIO, path: Path) -> bytearray:
    """Decompress an LZ4 frame in two passes, one to check and count, one to keep, so that a bomb costs no memory."""
    packed = os.fstat(file.fileno()).st_size
    limit = min(psutil.virtual_memory().available // 2, max(UNPACKED, RATIO * packed))
    size = 0
    for piece in _pieces(file, path):
        size += len(piece)
        if size > limit:
            raise BadCheckpoint(
                f"{path} unpacks to more than {limit / 1e6:.0f} MB, which no checkpoint of its size does"
            )
    out, end = bytearray(size), 0
    file.seek(0)
    for piece in _pieces(file, path):
        out[end : end + len(piece)] = piece
        end += len(piece)
    return out


def _pieces(file: BinaryIO, path: Path) -> Iterator[bytes]:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        while not unpacker.eof:
            data = file.read(PIECE) if unpacker.needs_input else b""
            if unpacker.needs_input and not data:
                raise BadCheckpoint(f"{path} is cut off")
            yield unpacker.decompress(data, max_length=8 * PIECE)
    except RuntimeError as error:  # what lz4 raises, checksums included
        raise BadCheckpoint(f"{path} is damaged ({str(error).split(': ')[-1]})") from None
    if unpacker.unused_data or file.read(1):
        raise BadCheckpoint(f"{path} is damaged (bytes were added at its end)")


def _check_zip(file: BinaryIO, path: Path) -> None:
    """Verify checksums, which torch does not; reject compressed or overlapping entries, which torch never writes."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    stored = all(e.compress_type == zipfile.ZIP_STORED and e.file_size == e.compress_size for e in entries)
    if not stored or sum(e.file_size for e in entries) > file.seek(0, os.SEEK_END):
        raise BadCheckpoint(f"{path} has compressed or overlapping entries; torch never writes such files")
    file.seek(0)
    reader = torch._C.PyTorchFileReader(file)  # as torch will read it: zipfile and torch do not trust the same fields
    for entry in entries:
        name = entry.filename.partition("/")[2]
        if zlib.crc32(reader.get_record(name)) != entry.CRC:
            raise BadCheckpoint(f"{path} is damaged (checksum of {name})")


# --- disk failures ----------------------------------------------------------------------------------------------


class DiskGuard:
    """Lets training survive disk failures: a failed write is counted, the first is reported, and the run continues."""

    def __init__(self) -> None:
        self.failures = 0

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failed(what, error)

    def failed(self, what: str, error: object) -> None:
        self.failures += 1
        if self.failures == 1:
            full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            remedy = "free some space" if full else "fix this"
            log.warning("%s failed: %s; training continues, %s or it will not be saved", what, error, remedy)
