"""What a person finds in wandb: read back from the files of an offline run, and from a server it is uploaded to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import wandb
from PIL import Image

from navrl.monitor.metrics import GROUPS, MEDIA, WandbLogger, has_api_key
from wandb_server import KEY, WandbServer, history, of_kind, records, summary

ROOT = Path(__file__).parents[2]
PAGE = "<!doctype html><html><head><title>flights</title></head><body>" + "x" * 50_000 + "</body></html>"
CONFIG = "seed: 0\nenv:\n  num_envs: 64\n"
OUTCOMES = {"success": 0.75, "static_collision": 0.25, "dynamic_collision": 0.0, "out_of_bounds": 0.0, "timeout": 0.0}
FLOWN = {"speed": 1.8, "path_ratio": 1.1, "time_to_goal": 21.5}
RESULT = {**OUTCOMES, **FLOWN, **{f"{name}_ci95": [0.5, 1.0] for name in OUTCOMES | FLOWN}, "episodes": 4}
NOBODY_ARRIVED = RESULT | {"time_to_goal": None, "time_to_goal_ci95": None}


def about(frames: int, success: float) -> dict:
    scores = {"eval/crossing-20-8/success": success, "frames": frames, "episodes": 4}
    return {"frames": frames, "commit": "abc", "scores": scores, "success": success, "network": {"encoder": "fast"}}


def log_everything(logger: WandbLogger, folder: Path) -> None:
    """As a run with two evaluations does, of which the first was better."""
    logger.text("config/config.yaml", CONFIG)
    (folder / "flights.html").write_text(PAGE)
    (folder / "flights.mp4").write_bytes(b"as it comes from the encoder")
    noise = np.random.default_rng(0).integers(0, 255, (1200, 1600, 3), np.uint8)
    Image.fromarray(noise).save(folder / "flights.png")
    for frames, success in ((1000, 0.75), (2000, 0.5)):
        logger.log({"charts/SPS": 5.0, "losses/entropy": 1.0}, frames)
        for name, suffix in (("picture", "png"), ("replay", "html"), ("video", "mp4")):
            logger.media(f"media/{name}", folder / f"flights.{suffix}", frames)
        logger.log({"eval/crossing-20-8/success": success}, frames)
        logger.table({"crossing-20-8": RESULT, "borders-350-80": NOBODY_ARRIVED}, frames)
        logger.policy(f"weights at {frames}".encode(), about(frames, success), best=frames == 1000)
    logger.close()


@pytest.fixture(scope="module")
def offline(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("offline")
    log_everything(WandbLogger(run, {"seed": 0}, "offline", "drones", "a name"), run)
    return run


def stored(run: Path, path: str) -> Path:
    (folder,) = run.glob("wandb/offline-run-*/files")
    return folder / path


def test_every_group_has_frames_as_its_x_axis(offline: Path) -> None:
    metrics = {m.glob_name or m.name: m for m in of_kind(records(offline), "metric")}
    assert metrics.keys() == {"frames", *MEDIA, *(f"{group}/*" for group in GROUPS)}
    assert metrics["frames"].options.hidden
    assert all(metric.step_metric == "frames" for name, metric in metrics.items() if name != "frames")
    patterns = [metric.glob_name[:-1] for metric in metrics.values() if metric.glob_name]
    for name in (*MEDIA, "eval/x/success", "charts/SPS"):
        assert sum(name.startswith(pattern) for pattern in patterns) <= 1, "wandb takes any of several, at random"
    assert all("frames" in row for row in history(records(offline)))


def test_the_summary_has_the_last_and_the_best_scores(offline: Path) -> None:
    told = summary(records(offline))
    assert told["eval/crossing-20-8/success"] == {"last": 0.5, "max": 0.75}
    assert told["best"]["success"] == 0.75 and told["best"]["frames"] == 1000
    assert told["charts/SPS"] == 5.0


def test_one_table_per_evaluation_with_one_row_per_scenario(offline: Path) -> None:
    logged = [row for row in history(records(offline)) if "media/table" in row]
    assert [row["frames"] for row in logged] == [1000, 2000]
    table = json.loads(stored(offline, logged[1]["media/table"]["path"]).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["scenario"] for row in rows] == ["crossing-20-8", "borders-350-80"]
    assert OUTCOMES.items() <= rows[0].items() and FLOWN.items() <= rows[0].items()
    assert rows[0]["frames"] == 2000 and rows[0]["flights"] == 4 and rows[0]["success ±"] == 0.25
    assert rows[1]["time_to_goal"] is None and rows[1]["time_to_goal ±"] is None


def test_pictures_pages_and_videos(offline: Path) -> None:
    logged = history(records(offline))
    for name, kind in (("picture", "image-file"), ("replay", "html-file"), ("video", "video-file")):
        shown = [row[f"media/{name}"] for row in logged if f"media/{name}" in row]
        assert [media["_type"] for media in shown] == [kind, kind]
        assert all(stored(offline, media["path"]).is_file() for media in shown)
        if name == "replay":
            assert stored(offline, shown[0]["path"]).read_text() == PAGE, "nothing is put into it"
        if name == "picture":
            assert max(shown[0]["width"], shown[0]["height"]) == 1000
    files = {file.path for listed in of_kind(records(offline), "files") for file in listed.files}
    assert sum(path.startswith("media/") for path in files) == 4 * 2
    assert stored(offline, "config/config.yaml").read_text() == CONFIG and "config/config.yaml" in files


def test_policies_are_versions_of_one_artifact(offline: Path) -> None:
    first, second = [a for a in of_kind(records(offline), "artifact") if a.type == "model"]
    assert first.name == second.name == f"policy-{first.run_id}"
    assert sorted(first.aliases) == ["best", "latest"] and list(second.aliases) == ["latest"]
    metadata = json.loads(first.metadata)
    assert metadata == about(1000, 0.75)
    (entry,) = second.manifest.contents
    assert entry.path == "policy.pt" and Path(entry.local_path).read_bytes() == b"weights at 2000"
    (folder,) = offline.glob("wandb/offline-run-*")
    assert Path(entry.local_path).is_relative_to(folder), "what waits to be uploaded is removed with the run"
    assert "WANDB_DATA_DIR" not in os.environ, "the next run has a place of its own"


def wandb_sync(run: Path, server: WandbServer, home: Path) -> None:
    records(run)  # waits for its end
    (folder,) = run.glob("wandb/offline-run-*")
    done = subprocess.run(
        [Path(sys.executable).with_name("wandb"), "sync", folder],
        env={**os.environ, **server.environment, "HOME": str(home)},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def arrived(server: WandbServer) -> None:
    """Everything of `log_everything` is on the server."""
    artifacts = [asked["input"] for asked in server.variables("CreateArtifact")]
    policies = [artifact for artifact in artifacts if artifact["artifactTypeName"] == "model"]
    assert [sorted(alias["alias"] for alias in a["aliases"]) for a in policies] == [["best", "latest"], ["latest"]]
    assert json.loads(policies[0]["metadata"]) == about(1000, 0.75)
    weights = {content for path, content in server.files.items() if path.endswith("/policy.pt")}
    assert weights == {b"weights at 1000", b"weights at 2000"}
    assert len(server.variables("CommitArtifact")) == len(artifacts) == 4, "a policy and a table per evaluation"
    assert server.files["/files/config/config.yaml"].decode() == CONFIG
    for folder, suffix in (("html", ".html"), ("videos", ".mp4"), ("images", ".jpg"), ("table", ".table.json")):
        uploaded = [path for path in server.files if path.startswith(f"/files/media/{folder}/media/")]
        assert len(uploaded) == 2 and all(path.endswith(suffix) for path in uploaded)
    told = json.loads(server.files["/files/wandb-summary.json"])
    assert told["eval/crossing-20-8/success"] == {"last": 0.5, "max": 0.75} and told["best"]["success"] == 0.75


def test_it_all_arrives_with_wandb_sync(offline: Path, tmp_path) -> None:
    with WandbServer() as server:
        wandb_sync(offline, server, tmp_path)
    arrived(server)


@pytest.fixture
def fresh_wandb() -> Iterator[None]:
    """wandb reads the environment once per process."""
    wandb.teardown()
    yield
    wandb.teardown()


def test_it_all_arrives_online(tmp_path, monkeypatch, fresh_wandb) -> None:
    with WandbServer() as server:
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        log_everything(WandbLogger(tmp_path, {"seed": 0}, "online", "drones", entity="us"), tmp_path)
    arrived(server)
    assert not list(tmp_path.glob("wandb/offline-run-*"))


def test_two_threads_may_log_at_once(tmp_path) -> None:
    """The loop logs metrics while tables and policies are logged beside it."""
    logger = WandbLogger(tmp_path, {}, "offline", "drones")

    def others() -> None:
        for k in range(20):
            logger.table({"crossing-20-8": RESULT}, k)
            logger.policy(b"weights", about(k, 0.5), best=True)

    thread = threading.Thread(target=others)
    thread.start()
    for k in range(400):
        logger.log({"charts/SPS": float(k), "losses/entropy": float(-k)}, 1000 + k)
    thread.join()
    logger.close()
    rows = history(records(tmp_path))
    numbers = [(row["frames"], row["charts/SPS"], row["losses/entropy"]) for row in rows if "charts/SPS" in row]
    assert sorted(numbers) == [(1000 + k, k, -k) for k in range(400)], "no row lost, none mixed with another"
    assert sorted(row["frames"] for row in rows if "media/table" in row) == list(range(20))


def test_what_waits_for_upload_stays_where_the_user_wants_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "mine"))
    logger = WandbLogger(tmp_path / "run", {}, "offline", "drones")
    logger.policy(b"weights", about(1, 0.5), best=False)
    logger.close()
    assert os.environ["WANDB_DATA_DIR"] == str(tmp_path / "mine")
    assert any((tmp_path / "mine").rglob("*")) and not list((tmp_path / "run").rglob("staging"))


def test_keys(tmp_path, monkeypatch, capfd, fresh_wandb) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    assert not has_api_key()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert has_api_key()
    assert "deprecated" not in "".join(capfd.readouterr())


WITHOUT = "import sys; sys.modules['wandb_workspaces'] = None; from navrl.scripts.workspace import main; main()"


def workspace(*words: str, script: Sequence[str] = (str(ROOT / "scripts/workspace.py"),), **environment: str):
    command = [sys.executable, *script, *words]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100)


def test_the_layout_is_saved(tmp_path) -> None:
    pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed")
    with WandbServer() as server:
        done = workspace("entity=us", "project=drones", HOME=str(tmp_path), **server.environment)
    assert done.returncode == 0 and done.stdout.startswith(f"saved: {server.address}/us/drones"), done.stderr
    (view,) = server.variables("UpsertView2")
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("us", "drones", "navrl runs")
    sections = json.loads(view["spec"])["section"]["panelBankConfig"]["sections"]
    assert sections[0]["name"] == "scores on unseen maps" and len(sections) == 5


def test_mistakes_with_the_layout_cost_one_line(tmp_path) -> None:
    nobody = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none")}
    for done, words in (
        (workspace(), "entity=null: give the user or team"),
        (workspace("entity=us", **nobody), "entity=us project=navrl: could not be saved: no API key"),
        (workspace("entity=us", script=("-c", WITHOUT)), "which is not installed: pip install 'wandb-workspaces"),
    ):
        assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and words in done.stderr
