"""Reports in a real browser."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from finished_runs import write_run
from navrl.io.files import write_text
from navrl.train.report import read_run, report
from navrl.view.document import as_json, element
from navrl.view.replay import write_replay
from navrl.view.report import write_report

SCORES = {"crossing-350-80": 0.60, "crossing-350-0": 0.80, "borders-350-80": 0.64, "crossing-20-8": 0.5}
PIXELS = """(place) => {
  const canvas = place.querySelector("canvas");
  const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = {};
  for (let k = 0; k < bytes.length; k += 4) if (bytes[k + 3] > 250) {
    const name = [bytes[k], bytes[k + 1], bytes[k + 2]].join();
    colours[name] = (colours[name] || 0) + 1;
  }
  return colours;
}"""

EDGE = """(place, colour) => {
  const canvas = place.querySelector("canvas"), { width, height } = canvas;
  const bytes = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  for (let x = 0; x < width; x++) for (let y = 0; y < height; y++) {
    const k = 4 * (y * width + x);
    const same = [0, 1, 2].every((c) => Math.abs(bytes[k + c] - colour[c]) < 12);
    if (same && bytes[k + 3] > 250) return [x / width, y / height];
  }
}"""  # where the curve of a colour begins, from the left and from above, as shares of the chart


def rgb(colour: str) -> str:
    return ",".join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))


@pytest.fixture
def one(tmp_path) -> Path:
    return write_run(tmp_path / "runs" / "first", SCORES, "algo.gamma=0.9")


def plot(page, title: str):
    return page.locator("figure", has_text=title).locator(".plot")


def test_a_run(browser, one) -> None:
    page = browser.open(report(one))
    assert page.title() == "runs/first · navrl"
    assert page.locator("h1").inner_text().split() == ["runs/first", "finished"]
    rows = [row.inner_text().split() for row in page.locator(".scores tbody tr").all()]
    assert [row[0] for row in rows] == [*SCORES]
    assert rows[0][1:5] == ["60.0", "54.1", "–", "66.0"]
    assert ["better" in row for row in rows] == [True, False, False, False]  # NavRL: 38.5, 94.1, 63.5, none
    assert ["worse" in row for row in rows] == [False, True, False, False]
    assert "within noise" in page.locator(".scores tbody tr").nth(2).inner_text()
    assert page.locator(".settings tbody tr", has_text="algo.gamma").inner_text().split() == [
        "algo.gamma",
        "0.98",
        "0.9",
    ]
    assert page.locator(".phases tbody tr").first.inner_text().split() == ["collect", "32.8", "%", "20.3", "s"]
    text = page.inner_text("main")
    for word in ("A processor of tests", "0123456789abcdef", "navrl train seed=0", "of 2.0 M", "not recorded"):
        assert word in text + page.inner_text("header"), word


def test_curves_are_drawn_and_can_be_zoomed(browser, one) -> None:
    page = browser.open(report(one))
    colours = plot(page, "success on unseen maps").evaluate(PIXELS)
    for colour in ("#3b82f6", "#f59e0b", "#10b981", "#a855f7"):  # of the four scenarios
        assert colours.get(rgb(colour), 0) > 100, colour
    assert all(sum(place.evaluate(PIXELS).values()) > 100 for place in page.locator(".plot").all())

    unseen, loss = plot(page, "success on unseen maps"), plot(page, "value loss")
    curves = ((unseen, [168, 85, 247]), (loss, [59, 130, 246]))  # of a scenario without a dotted line; smoothed
    before = [place.evaluate(EDGE, colour) for place, colour in curves]
    assert before[0][0] == pytest.approx(0.25, abs=0.05)  # the first evaluation was after a quarter of the run
    assert page.locator("#reset").is_hidden()
    unseen.scroll_into_view_if_needed()
    box = unseen.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()
    page.wait_for_selector("#reset", state="visible")
    zoomed = [place.evaluate(EDGE, colour) for place, colour in curves]
    assert zoomed[0][0] == pytest.approx(0.6, abs=0.15)
    assert abs(zoomed[1][1] - before[1][1]) > 0.1  # zoomed together: heights are fitted to what is seen
    page.locator("#reset").click()
    page.wait_for_selector("#reset", state="hidden")
    again = [place.evaluate(EDGE, colour) for place, colour in curves]
    assert all(now == pytest.approx(then, abs=0.01) for now, then in zip(again, before, strict=True))
    unseen.locator(".u-over").hover()
    assert unseen.locator(".u-legend .u-value").nth(1).inner_text() == "29.51"  # of evaluations the last one before

    page.locator("[data-axis=minutes]").click()
    assert "minutes" in plot(page, "success on unseen maps").locator(".u-legend").inner_text()
    assert sum(plot(page, "value loss").evaluate(PIXELS).values()) > 100


def test_a_finger_zooms_too(browser, one) -> None:
    page = browser.open(report(one), width=390, height=800, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # nothing sticks out of a phone
    over = plot(page, "success on unseen maps").locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    client = page.context.new_cdp_session(page)
    for kind, share in (("touchStart", 0.2), ("touchMove", 0.4), ("touchMove", 0.7), ("touchEnd", None)):
        at = [] if share is None else [{"x": box["x"] + share * box["width"], "y": box["y"] + 40}]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})
    page.wait_for_selector("#reset", state="visible")


def test_the_replay_opens_when_asked(browser, one, flights) -> None:
    write_replay(one / "flights-crossing-200-80.html", "title", flights)
    page = browser.open(report(one))
    assert page.locator("iframe").count() == 0
    page.locator("#play").click()
    frame = page.frame_locator("iframe")
    frame.locator("canvas").first.wait_for()
    assert "crossing-200-80" in frame.locator("h1").inner_text()
    assert page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    page.wait_for_timeout(500)
    assert frame.locator("#flights li").count() > 3  # its script runs


# --- several runs -----------------------------------------------------------------------------------------------------


def comparison(tmp_path, *more: str) -> list[Path]:
    """Two groups of two seeds: far apart in one scenario, near in the other."""
    far, near = "crossing-350-80", "crossing-350-0"
    return [
        write_run(tmp_path / "a0", {far: 0.50, near: 0.70}, seed=0),
        write_run(tmp_path / "a1", {far: 0.51, near: 0.80}, seed=1),
        write_run(tmp_path / "b0", {far: 0.20, near: 0.74}, "algo.gamma=0.9", *more, seed=0),
        write_run(tmp_path / "b1", {far: 0.21, near: 0.79}, "algo.gamma=0.9", *more, seed=1),
    ]


def test_groups_of_seeds_are_compared(browser, tmp_path) -> None:
    runs = comparison(tmp_path, "logger=none", "wandb.name=other")  # these two are not what is learned
    write_report(tmp_path / "report.html", [read_run(run) for run in runs])
    page = browser.open(tmp_path / "report.html")
    assert "4 runs in 2 groups" in page.inner_text("h1")
    groups = [row.inner_text().split("\t") for row in page.locator(".groups tbody tr").all()]
    assert [row[0].strip() for row in groups] == ["A", "B", ""]
    assert "algo.gamma=0.98" in groups[0][1] and "algo.gamma=0.9" in groups[1][1]
    assert "logger" not in page.inner_text("main")
    assert groups[0][3].split() == ["50.5", "±", "0.7", "(n", "=", "2)"] and groups[2][3].strip() == "38.5"
    far, near = (row.inner_text() for row in page.locator(".noise tbody tr").all())
    assert "B is worse, by more than noise" in far and "Welch's t-test over 2 and 2 seeds" in far and "▼ worse" in far
    assert "the difference is within noise" in near and "Welch" in near and "≈ within noise" in near
    assert [cell.inner_text() for cell in page.locator(".settings tbody td").all()] == ["algo.gamma", "0.98", "0.9"]
    assert page.locator(".runs tbody tr").count() == 4
    colours = plot(page, "crossing-350-80").evaluate(PIXELS)
    assert colours.get(rgb("#3b82f6"), 0) > 100 and colours.get(rgb("#f59e0b"), 0) > 100
    page.locator("[data-axis=minutes]").click()
    again = plot(page, "crossing-350-80").evaluate(PIXELS)
    assert again.get(rgb("#3b82f6"), 0) > 100


def test_single_runs_are_compared_by_their_flights(browser, tmp_path) -> None:
    runs = comparison(tmp_path)
    write_report(tmp_path / "report.html", [read_run(runs[0]), read_run(runs[2])])
    page = browser.open(tmp_path / "report.html")
    far, near = (row.inner_text() for row in page.locator(".noise tbody tr").all())
    assert "by more than noise" in far and "binomial interval of 256 and 256 flights" in far
    assert "within noise" in near and "train more seeds" in page.inner_text("main")


def test_seeds_alone_are_one_group(browser, tmp_path) -> None:
    runs = comparison(tmp_path)[:2]
    write_report(tmp_path / "report.html", [read_run(run) for run in runs])
    page = browser.open(tmp_path / "report.html")
    assert "2 runs in 1 group" in page.inner_text("h1") and "differ only in their seeds" in page.inner_text("main")


# --- runs of strangers ------------------------------------------------------------------------------------------------

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "'><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "<!--<script>window.hacked=1",
    "</title></style></textarea></pre><iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "{{constructor.constructor('window.hacked=1')()}}${window.hacked=1}",
    "\u2028window.hacked=1//\ud800",
)


@pytest.mark.parametrize("words", HOSTILE)
def test_a_run_of_a_stranger_cannot_run_script(browser, tmp_path, flights, words: str) -> None:
    name = words.replace("/", "∕").encode("utf-8", "replace").decode()  # a file's name cannot have a slash
    run = write_run(
        tmp_path / name, {words: 0.5, "crossing-350-80": 0.4}, machine={words: words}, command=words, commit=words
    )
    (run / "metrics.csv").unlink()
    rows = f"frames,charts/minutes,flights/success,eval/{words}/success,{words}\n" + "".join(
        f"{k}000,{k},0.5,0.5,{words}\n{k}001,{k},0.5,0.5,1\n" for k in range(1, 40)
    )
    (run / "metrics.csv").write_text(rows, errors="replace")
    (run / "log.txt").write_text(words, errors="replace")
    (run / name[:200]).write_text("a file")
    text = json.dumps({words: words, "seed": words, "max_frame_num": words, "env": {words: {words: words}}})
    write_text(run / "config/config.yaml", text)  # JSON is YAML
    write_replay(run / "flights-x.html", "title", flights)
    page = (run / "flights-x.html").read_text().replace("<body>", f"<body>{words.encode('utf-8', 'replace').decode()}")
    (run / f"flights-{name[:150]}.html").write_text(page)
    os.utime(run / f"flights-{name[:150]}.html", (2e9, 2e9))  # the newest
    (run / "flights-x.html").unlink()
    other = write_run(tmp_path / "other", {words: 0.9}, "algo.gamma=0.9")

    data = read_run(run)
    assert data.replay and data.rows and data.differs and "hacked" in data.name + (data.command or "") + data.log[0]
    write_report(run / "report.html", [data])
    write_report(tmp_path / "report.html", [data, read_run(other), read_run(run)])
    for file in (run / "report.html", tmp_path / "report.html"):
        dialogs: list[str] = []
        page = browser.open("about:blank")
        page.on("dialog", lambda dialog, noted=dialogs: (noted.append(dialog.message), dialog.dismiss()))
        requests: list[str] = []
        page.on("request", lambda request, noted=requests: noted.append(request.url))
        page.goto(file.absolute().as_uri())
        if page.locator("#play").count():
            page.locator("#play").click()
            page.frame_locator("iframe").locator("#flights li").first.wait_for()
        for details in page.locator("details").all():
            details.evaluate("(one) => { one.open = true; }")
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert [frame.evaluate("window.hacked") for frame in page.frames] == [None] * len(page.frames)
        assert dialogs == [] and len(page.frames) <= 2
        assert [url for url in requests if not url.startswith("about:")] == [file.absolute().as_uri()]
        for link in page.locator("a").all():
            assert link.evaluate("(one) => one.protocol") == "file:"


def test_the_policy_forbids_what_is_not_ours(browser, one, tmp_path) -> None:
    """Were something to slip in after all, it would not run."""
    file = report(one)
    text = file.read_text().replace(
        "</header>", "<script>window.hacked=1</script><img src=x onerror=window.hacked=1></header>"
    )
    (tmp_path / "changed.html").write_text(text)
    page = browser.open(tmp_path / "changed.html")
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None and page.locator(".uplot").count() > 3
    assert any("Content Security Policy" in error for error in browser.errors)
    browser.errors.clear()


def test_texts_are_escaped_where_they_are_put_together() -> None:
    assert element("a", "<b>", element("i", "&"), href='"x') == '<a href="&quot;x">&lt;b&gt;<i>&amp;</i></a>'
    assert "<" not in as_json(["</script>", "<!--"]) and json.loads(as_json(["</script>&"])) == ["</script>&"]


# --- directories that lack something ----------------------------------------------------------------------------------


def test_every_part_may_be_missing(browser, tmp_path) -> None:
    for name in ("metrics.csv", "eval.json", "config", "checkpoints", "log.txt", None):
        run = write_run(tmp_path / f"without {name}", SCORES)
        for gone in [run / name] if name else [*run.iterdir()]:
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        page = browser.open(report(run))
        assert "not recorded" in page.inner_text("main") and page.locator("section").count() == 8
    other = write_run(tmp_path / "whole", SCORES)
    write_report(tmp_path / "report.html", [read_run(path) for path in tmp_path.iterdir() if path.is_dir()])
    page = browser.open(tmp_path / "report.html")
    assert page.locator(".runs tbody tr").count() == 7 and other.name in page.inner_text("main")


def test_no_evaluation_yet(browser, tmp_path) -> None:
    run = write_run(tmp_path / "young", {}, iterations=2)
    (run / "eval.json").unlink()
    page = browser.open(report(run))
    assert "no evaluation yet" in page.inner_text("main") and "not finished" in page.inner_text("h1")
    write_report(tmp_path / "report.html", [read_run(run)] * 2)
    assert "no evaluation yet" in browser.open(tmp_path / "report.html").inner_text("main")
