"""The command `navrl`: one idiom for every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import navrl
from navrl.cli import COMMANDS, options

ROOT = Path(__file__).parents[1]


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "navrl", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_commands_and_version(tmp_path) -> None:
    shown = call(cwd=tmp_path)
    assert shown.returncode == 0 and all(f"navrl {name}" in shown.stdout for name in COMMANDS)
    assert call("--version", cwd=tmp_path).stdout.strip() == f"navrl {navrl.__version__}"
    wrong = call("fly", cwd=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: fly: no such command; choose one of train, eval")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_its_script_is_the_same(tmp_path, command: str) -> None:
    help_text = call(command, "--help", cwd=tmp_path)
    assert help_text.returncode == 0 and len(help_text.stdout) > 150 and not help_text.stderr
    if command in ("train", "watch", "report"):  # one of each kind: three programs per command take long
        script = [sys.executable, str(ROOT / f"scripts/{command}.py"), "--help"]
        assert subprocess.run(script, cwd=tmp_path, capture_output=True, text=True).stdout == help_text.stdout
    wrong = call(command, "no_such_key=1", cwd=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: ") and "no_such_key" in wrong.stderr
    assert "Traceback" not in wrong.stderr and list(tmp_path.iterdir()) == []


def parse(monkeypatch, *words: str, **defaults):
    monkeypatch.setattr(sys, "argv", ["navrl test", *words])
    return options(
        "About.", "run", **({"run": None, "draw": -1, "drones": [0], "speed": 1.0, "quick": False} | defaults)
    )


def test_both_spellings(monkeypatch) -> None:
    for words in (
        ["runs/a", "draw=3", "drones=[1,2]", "speed=2", "quick=true"],
        ["run=runs/a", "--draw", "3", "--drones", "1", "2", "--speed=2", "--quick"],
    ):
        given = parse(monkeypatch, *words)
        assert (given.run, given.draw, given.drones, given.speed, given.quick) == ("runs/a", 3, [1, 2], 2.0, True)


@pytest.mark.parametrize(
    "word, says",
    [
        ("draw=x", "whole number"),
        ("speed=fast", "number"),
        ("quick=2", "true or false"),
        ("dorw=3", "no such key; the keys are run, draw"),
    ],
)
def test_wrong_words_cost_one_line(monkeypatch, capsys, word: str, says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(monkeypatch, word)
    line = capsys.readouterr().err
    assert ended.value.code == 2 and line.startswith(f"error: {word}: ") and says in line and line.count("\n") == 1


def test_replay_and_report_refuse_what_they_cannot_read(tmp_path) -> None:
    (tmp_path / "foreign.pt").write_bytes(b"something else")
    for arguments, words in (
        (["replay"], "give the not_finite.pt"),
        (["replay", "foreign.pt"], "is not a checkpoint"),
        (["replay", str(ROOT / "policies/default.pt")], "is not a not_finite.pt"),
        (["report"], "give at least one run"),
        (["report", "nowhere"], "is not a run directory"),
        (["export"], "give the policy"),
        (["export", "checkpoint=default", "output=policy.txt"], "must end in .onnx"),
        (["rollouts", "nowhere"], "holds no rollouts"),
    ):
        done = call(*arguments, cwd=tmp_path)
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 2 and len(lines) == 1 and words in lines[0], (arguments, done.stderr)
