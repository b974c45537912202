"""Files are complete or absent, damage is reported, and nothing in a file is ever executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import torch

from navrl.io import files
from navrl.io.files import BadCheckpoint, load_checkpoint, read_lines, write_checkpoint


def content(seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"layer{k}": torch.randn(40, 50, generator=generator) for k in range(8)}
    return {"weights": tensors, "state": {0: {"step": torch.tensor(3.0)}}, "list": [1, 2.5, "x", None, (True,)]}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("level", [None, 0, 9])
def test_round_trip(tmp_path, level: int | None) -> None:
    written = write_checkpoint(tmp_path / "x.pt", content(), level, tmp_path / "manifest.jsonl")
    name = "x.pt" if level is None else "x.pt.lz4"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.jsonl", name]
    assert same(load_checkpoint(tmp_path / "x.pt"), content()), "found by either name"
    assert same(load_checkpoint(tmp_path / "x.pt.lz4"), content())
    (line,) = read_lines(tmp_path / "manifest.jsonl")
    assert line["file"] == name and line["bytes"] == (tmp_path / name).stat().st_size == written.bytes
    assert line["raw_bytes"] >= 8 * 40 * 50 * 4


def test_other_tools_can_open_it(tmp_path) -> None:
    write_checkpoint(tmp_path / "x.pt", content(), 0)
    packed = (tmp_path / "x.pt.lz4").read_bytes()
    assert same(torch.load(io.BytesIO(lz4.frame.decompress(packed)), weights_only=True), content())
    try:
        subprocess.run(["lz4", "-dq", "x.pt.lz4", "y.pt"], cwd=tmp_path, check=True)
    except FileNotFoundError:
        pytest.skip("the lz4 command is not installed")
    assert same(torch.load(tmp_path / "y.pt", weights_only=True), content())


def test_saving_in_the_other_form_removes_the_old_file(tmp_path) -> None:
    write_checkpoint(tmp_path / "x.pt", content(1), 0)
    write_checkpoint(tmp_path / "x.pt", content(2))
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]
    assert same(load_checkpoint(tmp_path / "x.pt.lz4"), content(2))


@pytest.mark.parametrize("level", [None, 0])
def test_every_corruption_is_detected_or_harmless(tmp_path, level: int | None) -> None:
    """1000 single-byte changes and 250 truncations of each form."""
    write_checkpoint(tmp_path / "x.pt", content(), level)
    (path,) = tmp_path.iterdir()
    good, rng, harmless = path.read_bytes(), random.Random(level), 0
    for attempt in range(1250):
        if attempt < 1000:
            place = rng.randrange(len(good)) if attempt % 2 else rng.choice([*range(200), *range(-2000, 0)])
            bad = bytearray(good)
            bad[place] ^= rng.randrange(1, 256)
        else:
            bad = good[: rng.randrange(len(good))]
        path.write_bytes(bad)
        try:
            read = load_checkpoint(path)
        except BadCheckpoint as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert same(read, content()), f"attempt {attempt} went unnoticed"
            harmless += 1
    assert harmless < (400 if level is None else 1), harmless  # torch's files have padding, a frame has none


def test_appended_bytes_are_detected(tmp_path) -> None:
    write_checkpoint(tmp_path / "x.pt", content(), 0)
    with (tmp_path / "x.pt.lz4").open("ab") as file:
        file.write(b"more")
    with pytest.raises(BadCheckpoint, match="added"):
        load_checkpoint(tmp_path / "x.pt")


class Bomb:
    """Creates a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def hostile(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Foreign and malicious files, and part of the error message each must give."""
    path = {
        name: tmp_path / name for name in ("bomb.pt", "raw.pkl", "packed.pt.lz4", "zip.pt", "lz4.pt.lz4", "rows.pt")
    }
    torch.save({"weights": Bomb(tmp_path / "exploded")}, path["bomb.pt"])
    path["raw.pkl"].write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    path["packed.pt.lz4"].write_bytes(lz4.frame.compress(path["bomb.pt"].read_bytes()))
    with zipfile.ZipFile(path["zip.pt"], "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))
    path["lz4.pt.lz4"].write_bytes(lz4.frame.compress(bytes(64_000_000)))
    torch.save([1, 2, 3], path["rows.pt"])
    (tmp_path / "empty.pt").touch()
    (tmp_path / "loop.pt").symlink_to(tmp_path / "loop.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    return {
        "pickle bomb": (path["bomb.pt"], "asks to run posix.mkdir"),
        "raw pickle": (path["raw.pkl"], "not a checkpoint"),
        "packed pickle bomb": (path["packed.pt.lz4"], "asks to run posix.mkdir"),
        "zip bomb": (path["zip.pt"], "compressed or overlapping entries"),
        "lz4 bomb": (path["lz4.pt.lz4"], "unpacks to more than"),
        "a list": (path["rows.pt"], "holds a list"),
        "empty": (tmp_path / "empty.pt", "is empty"),
        "directory": (tmp_path, "is a directory"),
        "symlink loop": (tmp_path / "loop.pt", "symbolic links"),
        "pipe": (tmp_path / "pipe.pt", "not a regular file"),
        "nothing": (tmp_path / "nothing.pt", "does not exist"),
    }


def test_foreign_and_malicious_files_give_one_line_errors(tmp_path, monkeypatch) -> None:
    class Little:
        available = 100_000_000

    monkeypatch.setattr(files.psutil, "virtual_memory", Little)  # so that a small bomb is large enough
    for name, (path, words) in hostile(tmp_path).items():
        with pytest.raises(BadCheckpoint) as caught:
            load_checkpoint(path)
        line = str(caught.value)
        assert str(path) in line and words in line and "\n" not in line, (name, line)
    assert not (tmp_path / "exploded").exists()


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    write_checkpoint(tmp_path / "x.pt", content(1), 0)
    before = (tmp_path / "x.pt.lz4").read_bytes()

    def full(*_) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "write"):
        with monkeypatch.context() as patch:
            if step == "fsync":
                patch.setattr(files.os, "fsync", full)
            else:
                patch.setattr(files._Sink, "_put", full)
            with pytest.raises(OSError, match="No space left"):
                write_checkpoint(tmp_path / "x.pt", content(2), 0)
        assert [path.name for path in tmp_path.iterdir()] == ["x.pt.lz4"]
        assert (tmp_path / "x.pt.lz4").read_bytes() == before


def test_truncated_manifest_lines_are_skipped(tmp_path) -> None:
    manifest = tmp_path / "manifest.jsonl"
    files.append_line(manifest, {"file": "a"})
    with manifest.open("a") as file:
        file.write('{"file": "b", "by')  # a crash
    files.append_line(manifest, {"file": "c"})
    assert [line["file"] for line in read_lines(manifest)] == ["a", "c"]
    assert all(json.loads(line) for line in manifest.read_text().splitlines()[::2])
