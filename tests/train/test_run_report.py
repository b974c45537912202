from __future__ import annotations

import os
import platform
import time

import pytest
import torch

from finished_runs import MACHINE, write_run
from navrl.io.files import write_checkpoint
from navrl.train.machine import describe_machine
from navrl.train.report import is_run, read_run, report

SCORES = {"crossing-350-80": 0.60, "crossing-350-0": 0.80}


def test_what_a_run_tells(tmp_path) -> None:
    run = read_run(write_run(tmp_path / "runs" / "first", SCORES, "algo.gamma=0.9", "logger=none", "eval.episodes=8"))
    assert run.name == "runs/first" and run.finished and run.problems == []
    assert (run.frames, run.planned, run.seed) == (62 * 32768, 2_000_000, "0")
    assert run.seconds == pytest.approx(62) and run.speed == pytest.approx(32768)
    assert {name: score.success for name, score in run.scores.items()} == SCORES
    assert run.scores["crossing-350-80"].episodes == 256 and run.scored_at == 61 * 32768
    assert run.differs and run.differs["algo.gamma"] == ("0.98", "0.9") and run.differs["logger"] == ("wandb", "none")
    assert run.learning and run.learning.keys() == {"algo.gamma", "max_frame_num"}  # not the logger, not evaluations
    assert run.phases == pytest.approx({"collect": 20 / 61, "collect/policy": 12 / 61, "update": 30 / 61})
    assert run.machine == MACHINE and run.command == "navrl train seed=0"
    names = [name for name, _ in run.files]
    assert {"metrics.csv", "config/config.yaml", "checkpoints/state-00000061.pt.lz4"} <= {*names}


def test_what_is_missing_is_taken_from_elsewhere(tmp_path) -> None:
    path = write_run(tmp_path / "run", SCORES)
    (path / "eval.json").unlink()
    state = next((path / "checkpoints").iterdir())
    content = {"format": "navrl-policy-1", "about": {"commit": "abc", "seconds": 5.0}}
    write_checkpoint(path / "policy.pt", content)
    state.write_bytes(state.read_bytes()[:100])
    with (path / "metrics.csv").open() as file:
        lines = file.read().splitlines()
    lines[0] += ",perf/collect_share,perf/collect_ms"
    (path / "metrics.csv").write_text("\n".join([lines[0], *(line + ",0.25,3.0" for line in lines[1:])]) + "\n")
    run = read_run(path)
    assert {name: score.success for name, score in run.scores.items()} == SCORES  # of metrics.csv, without flights
    assert run.scores["crossing-350-80"].interval is None and run.scored_at == 61 * 32768
    assert run.commit == "abc" and run.phases == {"collect": 0.25} and run.problems == []


def test_a_run_that_was_stopped(tmp_path) -> None:
    run = read_run(write_run(tmp_path / "run", SCORES, iterations=20))
    assert run.finished is False and run.frames == 21 * 32768


def test_what_is_a_run(tmp_path) -> None:
    run = write_run(tmp_path / "run", SCORES)
    assert is_run(run) and not is_run(tmp_path) and not is_run(tmp_path / "nowhere")
    (run / "metrics.csv").unlink()
    assert is_run(run)


def test_the_machine_is_described_without_names() -> None:
    machine = describe_machine()
    assert machine.keys() == {"CPU", "cores", "memory", "GPU", "system", "Python", "navrl"} and all(machine.values())
    assert machine["Python"] == platform.python_version() and machine["memory"].endswith(" GB")


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_never_raise(tmp_path, seed: int) -> None:
    """Every file of a run with bytes changed, removed, or cut off."""
    generator = torch.Generator().manual_seed(seed)
    run = write_run(tmp_path / "run", SCORES)
    (run / "flights-x.html").write_text('<script id="data" type="text/plain">AAAA</script>')
    for file in [path for path in run.rglob("*") if path.is_file()]:
        content = bytearray(file.read_bytes())
        for _ in range(int(torch.randint(1, 40, (), generator=generator))):
            place = int(torch.randint(len(content), (), generator=generator))
            content[place] = int(torch.randint(256, (), generator=generator))
        cut = int(torch.randint(len(content), (), generator=generator)) if seed % 3 == 0 else len(content)
        file.write_bytes(content[:cut])
    assert report(run).stat().st_size > 50_000


@pytest.mark.parametrize(
    "file, content",
    [
        ("eval.json", '{"frames": 1e400, "scenarios": {"a": {"success": NaN}}}'),
        ("eval.json", '{"frames": 5, "scenarios": {"a": {"success": 2, "episodes": 3}}}'),
        ("eval.json", "[" * 100_000),
        ("eval.json", "9" * 10_000),
        ("config/config.yaml", "a: &a [1]\nb: *a"),
        ("config/config.yaml", "a: 0x" + "f" * 9000),
        ("config/config.yaml", "[1, 2]"),
        ("config/config.yaml", "seed: {a: 1}\nenv: 3\nmax_frame_num: .nan\nalgo: {training_frame_num: true}"),
        ("metrics.csv", "frames\n"),
        ("metrics.csv", "nothing,here\n1,2\n"),
        ("metrics.csv", "frames,flights/success\n1e400,1\n5,\n-3,4\n7,0.5\r7,1e17\n"),
        ("log.txt", "\x1b[31m\x00\x07\n" * 9),
    ],
)
def test_strange_contents_never_raise(tmp_path, file: str, content: str) -> None:
    run = write_run(tmp_path / "run", SCORES)
    (run / file).write_text(content)
    assert report(run).stat().st_size > 50_000


def test_links_and_pipes_are_not_followed(tmp_path) -> None:
    """A run must not have other files of the user copied into a page that is made to be shared."""
    secret = tmp_path / "secret"
    secret.write_text("frames,eval/secret/success\n1,0.5\n")
    run = write_run(tmp_path / "run", SCORES)
    for name in ("log.txt", "metrics.csv", "eval.json", "config/config.yaml"):
        (run / name).unlink()
        (run / name).symlink_to(secret)
    os.mkfifo(run / "flights-x.html")
    (run / "report.html").symlink_to(secret)
    text = report(run).read_text()
    assert "secret/success" not in text and "is not a regular file" in text
    assert secret.read_text().startswith("frames")  # the link was replaced, not followed
    (run / "metrics.csv").unlink()
    os.mkfifo(run / "metrics.csv")
    report(run)


def test_it_takes_less_than_a_second(tmp_path) -> None:
    """A usual run has 1,200 iterations and a state of 3 MB."""
    run = write_run(tmp_path / "run", SCORES, iterations=1200)
    write_checkpoint(run / "checkpoints/state-00001200.pt", {"about": {}, "weights": torch.rand(1_000_000)}, level=0)
    report(run)
    began = time.perf_counter()
    size = report(run).stat().st_size
    assert time.perf_counter() - began < 1 and size < 1_500_000


def test_a_long_run_is_thinned(tmp_path) -> None:
    run = write_run(tmp_path / "run", SCORES, iterations=6000)
    assert len(read_run(run).rows) < 1600 and report(run).stat().st_size < 1_500_000
