from __future__ import annotations

import pytest
from commands import run

from finished_runs import write_run

SCORES = {"crossing-350-80": 0.6, "crossing-350-0": 0.8}


def call(*arguments: str, cwd):
    return run(*arguments, cwd=cwd, script="report", small=False)


def test_a_report_of_a_real_run(browser, tmp_path) -> None:
    done = run("max_frame_num=2048", "logger=none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (directory,) = tmp_path.glob("runs/*/*")
    (directory / "report.html").unlink(missing_ok=True)  # the run wrote one itself
    done = call(str(directory), cwd=tmp_path)
    assert done.returncode == 0 and "frames/s" in done.stdout, done.stderr
    page = browser.open(directory / "report.html")
    text = page.inner_text("main")
    for word in ("crossing-20-8", "max_frame_num=2048", "env.num_envs", "collect", "policy.pt"):
        assert word in text or word in page.content(), word
    assert page.locator(".uplot").count() > 5 and "finished" in page.inner_text("h1")


def test_several_runs_and_where_it_is_written(tmp_path) -> None:
    write_run(tmp_path / "a", SCORES)
    write_run(tmp_path / "b", SCORES, seed=1)
    assert call("a", "a/", cwd=tmp_path).stdout.strip().endswith("written: a/report.html")  # one run, given twice
    assert call("a", "b", cwd=tmp_path).stdout.strip().endswith("written: report.html")
    assert "2 runs in 1 group" in (tmp_path / "report.html").read_text()
    done = call("a", "b", "output=both.png", cwd=tmp_path)
    assert done.stdout.strip().endswith("drawn: both.png") and (tmp_path / "both.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nowhere"], "runs=nowhere: is not a run directory"),
        (["a", "output=report.txt"], "output=report.txt: must be a file that ends in .html, .png"),
        (["a", "output=no/where.html"], "output=no/where.html: the directory does not exist"),
    ],
)
def test_mistakes_cost_one_line(tmp_path, arguments: list[str], words: str) -> None:
    write_run(tmp_path / "a", SCORES)
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr, done.stderr


def test_names_are_no_markup(tmp_path) -> None:
    write_run(tmp_path / "[red]a[", {"[/b]": 0.5})
    done = call("[red]a[", cwd=tmp_path)
    assert done.returncode == 0 and "[red]a[" in done.stdout and "[/b]" in done.stdout, done.stderr
