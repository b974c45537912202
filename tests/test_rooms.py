"""The table of rooms of docs/architecture.md: which part of the package may know which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import navrl

PACKAGE = Path(navrl.__file__).parent
ROOMS = {
    "io": set(),
    "native": set(),
    "sim": {"native", "io"},
    "task": {"sim", "native", "io"},
    "ppo": {"native", "io"},
    "collect": {"task", "ppo", "io"},
    "checkpoint": {"io"},
    "monitor": {"io"},
    "view": {"sim", "task", "ppo", "monitor", "io"},
    "train": {"io", "native", "sim", "task", "ppo", "collect", "checkpoint", "monitor", "view"},
}
VOCABULARY = {"schema", "settings", "ranks"}  # root modules every room may know
ENTRANCE = {"__init__", "__main__", "cli", "scripts"}  # may know every room


def imports(file: Path) -> set[str]:
    """Rooms and root modules of ours that a file imports, those for type checkers only left out."""
    tree, out = ast.parse(file.read_text()), set()
    hints = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(child) for node in hints for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "navrl" else [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        out |= {name.split(".")[1] for name in names if name.startswith("navrl.")}
    return out


def files(room: str) -> list[Path]:
    return sorted((PACKAGE / room).glob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_knows_only_what_it_may(room: str) -> None:
    for file in files(room):
        known = imports(file) - {room} - VOCABULARY
        assert known <= ROOMS[room], f"{file.relative_to(PACKAGE)} may not import {', '.join(known - ROOMS[room])}"


def test_the_vocabulary_knows_nothing() -> None:
    for name in VOCABULARY:
        assert imports(PACKAGE / f"{name}.py") <= VOCABULARY


def test_every_folder_is_a_room() -> None:
    links = {path.name for path in PACKAGE.iterdir() if path.is_symlink()}  # cfg, policies, scripts: for the wheel
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - links - {"__pycache__"}
    assert folders == set(ROOMS)
    assert {path.stem for path in PACKAGE.glob("*.py")} <= VOCABULARY | ENTRANCE


def test_the_documentation_has_the_same_table() -> None:
    text = (PACKAGE.parents[1] / "docs/architecture.md").read_text()
    rows = {cells[1].strip(" `").removeprefix("navrl/").rstrip("/"): cells for cells in _table(text)}
    for room, may in ROOMS.items():
        assert room in rows, f"docs/architecture.md has no row for {room}"
        told = set(rows[room][3].replace("`", " ").replace(",", " ").split())
        if room == "train":
            continue  # "the rooms above"
        assert {name for name in ROOMS if name in told} == may, f"docs/architecture.md: {room}"


def _table(text: str) -> list[list[str]]:
    return [line.split("|") for line in text.splitlines() if line.startswith("|") and line.count("|") == 4]
