"""A run in wandb and TensorBoard: what a real one has logged in the end, and what happens when logging fails."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from dummy import DummyEnv
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from navrl.checkpoint.retention import newest_state
from navrl.io.files import DiskGuard, load_checkpoint
from navrl.monitor.console import TrainingConsole
from navrl.monitor.metrics import GROUPS, TensorBoardLogger, WandbLogger, read_rows
from navrl.ppo.policy_file import load_policy
from navrl.scripts.train import train
from navrl.train import evaluation
from navrl.train.loggers import Loggers
from navrl.train.resume import Resumed
from navrl.train.settings import TrainSettings, compose_config, read_train
from navrl.view import replay, video
from wandb_server import WandbServer, history, of_kind, records, summary

SMALL = [
    "device=cpu", "env.num_envs=8", "algo.training_frame_num=4", "algo.num_minibatches=2", "env.num_maps=1",
    "max_frame_num=320", "eval_interval=4", "eval.scenarios=[crossing-0-8,borders-0-0]", "eval.episodes=4",
    "eval.final_episodes=4", "eval.maps=1", "env.max_episode_length=64", "save_interval=3", "perf.interval=2",
]  # fmt: skip
FRAMES = [128, 256, 320]  # of the evaluations


def read(*overrides: str) -> TrainSettings:
    return read_train(compose_config("train", [*SMALL, *overrides]), [*SMALL, *overrides])


def run_in(path: Path, *overrides: str) -> int:
    path.mkdir(exist_ok=True)
    return train(read(*overrides), path, make_env=DummyEnv)  # pyright: ignore[reportArgumentType]


def score(monkeypatch, *scores: float) -> None:
    """Let evaluations succeed as often as `scores` say, one after the other."""
    left, summarize = [score for score in scores for _ in range(2)], evaluation.summarize  # of two scenarios
    monkeypatch.setattr(evaluation, "summarize", lambda flights: summarize(flights) | {"success": left.pop(0)})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with three evaluations, of which the first was the best."""
    path = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        score(patch, 0.75, 0.25, 0.5)
        assert run_in(path) == 0
    return path


def policies(run: Path) -> list:
    return [artifact for artifact in of_kind(records(run), "artifact") if artifact.type == "model"]


def test_evaluated_policies_are_artifacts_that_can_be_flown(run: Path) -> None:
    logged = policies(run)
    assert [sorted(a.aliases) for a in logged] == [["best", "latest"], ["latest"], ["latest"]]
    for artifact, frames, success in zip(logged, FRAMES, (0.75, 0.25, 0.5), strict=True):
        metadata, (entry,) = json.loads(artifact.metadata), artifact.manifest.contents
        assert metadata["frames"] == frames and metadata["success"] == success and len(metadata["commit"]) >= 7
        scores = {"eval/crossing-0-8/success": success, "eval/borders-0-0/success": success}
        assert metadata["scores"] == scores | {"frames": frames, "episodes": 4}
        policy, known = load_policy(entry.local_path)
        assert metadata["network"] == json.loads(json.dumps(known["network"])) and known["about"]["frames"] == frames
        assert policy.settings.encoder == "fast"
    assert summary(records(run))["best"] == json.loads(logged[0].metadata)["scores"] | {"success": 0.75}


def test_every_evaluation_has_its_table_and_its_media(run: Path) -> None:
    rows = history(records(run))
    for name in ("media/table", "media/picture", "media/replay"):
        assert [row["frames"] for row in rows if name in row] == FRAMES, name
    (files,) = run.glob("wandb/offline-run-*/files")
    last = [row["media/replay"] for row in rows if "media/replay" in row][-1]
    assert (files / last["path"]).read_bytes() == (run / "flights-crossing-0-8.html").read_bytes()
    assert (files / "config/config.yaml").read_bytes() == (run / "config/config.yaml").read_bytes()


def test_every_metric_is_in_a_group(run: Path) -> None:
    names = {name for row in read_rows(run / "metrics.csv") for name in row} - {"frames"}
    assert {name.partition("/")[0] for name in names} == set(GROUPS)
    logged = [row for row in history(records(run)) if not any(name.startswith("media/") for name in row)]
    shown = {name for row in logged for name in row if not name.startswith("_")} - {"frames"}
    assert shown == names, "wandb has what metrics.csv has"
    assert {"perf/evaluate/picture_ms", "perf/evaluate/replay_ms"} <= names, "what looking costs is known"


def test_the_layout_shows_what_runs_log(run: Path) -> None:
    pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed")
    from navrl.scripts.workspace import build_workspace

    names = {name for row in read_rows(run / "metrics.csv") for name in row}
    workspace = build_workspace("us", "drones")
    assert (workspace.entity, workspace.project, workspace.settings.x_axis) == ("us", "drones", "frames")
    sections = {section.name: section.panels for section in workspace.sections}
    assert list(sections) == [
        "scores on unseen maps", "how training flights end", "learner", "speed and memory", "media",
    ]  # fmt: skip
    spec = json.loads(workspace._to_model().model_dump_json(by_alias=True))["spec"]  # what is sent to the server
    panels = [panel for section in spec["section"]["panelBankConfig"]["sections"] for panel in section["panels"]]
    plots = [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert len(plots) >= 20 and {plot["xAxis"] for plot in plots} == {"frames", "_runtime"}
    for plot in plots:
        pattern = plot["metricRegex"]
        shown = [name for name in names if re.search(pattern, name)] if pattern else plot["metrics"]
        assert shown and set(shown) <= names, plot["chartTitle"]
        assert (plot["xAxis"] == "_runtime") == (plot["chartTitle"] == "success by time")
    scores = [plot for plot in plots if "eval" in (plot["metricRegex"] or "")]
    assert [(plot["yAxisMin"], plot["yAxisMax"]) for plot in scores] == [(0, 1), (0, 1)]
    media = {key for panel in panels if panel["viewType"] == "Media Browser" for key in panel["config"]["mediaKeys"]}
    assert media == {"media/picture", "media/replay", "media/video"}
    assert any('"media/table"' in json.dumps(panel) for panel in panels if panel["viewType"] == "Weave")


def test_a_stopped_run_logs_its_newest_policy(tmp_path, monkeypatch) -> None:
    update = TrainingConsole.update

    def stop_at_six(self, frames: int, *rest) -> None:
        update(self, frames, *rest)
        if frames == 6 * 32:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        score(patched, 0.75)
        patched.setattr(TrainingConsole, "update", stop_at_six)
        assert run_in(tmp_path, "eval.picture=false", "eval.replay=false") == 143
    evaluated, last = policies(tmp_path)
    assert json.loads(evaluated.metadata)["frames"] == 128 and sorted(evaluated.aliases) == ["best", "latest"]
    assert json.loads(last.metadata)["frames"] == 192 and list(last.aliases) == ["latest"]
    assert Path(last.manifest.contents[0].local_path).read_bytes() == (tmp_path / "policy.pt").read_bytes()

    # Resumed: it remembers how good the best was.
    (part,) = tmp_path.glob("wandb/offline-run-*")
    shutil.rmtree(part)
    score(monkeypatch, 0.5, 0.8)
    settings = read("eval.picture=false", "eval.replay=false")
    resumed = Resumed(compose_config("train"), newest_state(tmp_path)[1], tmp_path, tmp_path, True)
    assert train(settings, tmp_path, resumed, DummyEnv) == 0  # pyright: ignore[reportArgumentType]
    assert [sorted(a.aliases) for a in policies(tmp_path)] == [["latest"], ["best", "latest"]]
    assert {a.name for a in policies(tmp_path)} == {last.name}, "versions of the same artifact"


def test_tensorboard_has_the_video_as_a_gif(tmp_path) -> None:
    assert run_in(tmp_path, "logger=tensorboard", "eval.video=true", "eval_interval=0") == 0
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Images("media/picture")] == [320]
    (shown,) = events.Images("media/video")
    (tmp_path / "shown.gif").write_bytes(shown.encoded_image_string)
    with Image.open(tmp_path / "shown.gif") as animation:
        assert animation.format == "GIF" and getattr(animation, "n_frames", 1) > 5
        assert animation.size == (shown.width, shown.height)
    assert "media/table/text_summary" in events.Tags()["tensors"]
    names = {path.name for path in tmp_path.glob("flights-*")}
    assert names == {f"flights-crossing-0-8.{suffix}" for suffix in ("png", "html", "mp4")}


def test_wandb_has_the_video(tmp_path) -> None:
    assert run_in(tmp_path, "eval.video=true", "eval_interval=0", "eval.picture=false") == 0
    (row,) = [row for row in history(records(tmp_path)) if "media/video" in row]
    (files,) = tmp_path.glob("wandb/offline-run-*/files")
    assert (files / row["media/video"]["path"]).read_bytes() == (tmp_path / "flights-crossing-0-8.mp4").read_bytes()


def full_disk(*_, **__) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("owner, name", [(replay, "write_replay"), (video, "write_video"), (video, "write_gif")])
def test_a_page_or_video_that_cannot_be_written_ends_nothing(tmp_path, monkeypatch, caplog, owner, name) -> None:
    monkeypatch.setattr(owner, name, full_disk)
    assert run_in(tmp_path, "logger=tensorboard", "eval.video=true", "eval_interval=0", "save_interval=0") == 1
    assert caplog.text.count("training continues, free some space") == 1
    assert newest_state(tmp_path)[1]["iteration"] == 10 and newest_state(tmp_path)[1]["scored"]["frames"] == 320
    images = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tags()["images"]
    assert images == ["media/picture"] + (["media/video"] if owner is replay else [])
    assert not list(tmp_path.glob("*.gif"))


@pytest.mark.parametrize("method", ["table", "policy"])
def test_whatever_wandbs_server_answers_training_continues(tmp_path, monkeypatch, caplog, method: str) -> None:
    def refuse(*_, **__) -> None:
        raise ValueError("artifact exists with another type")

    monkeypatch.setattr(WandbLogger, method, refuse)
    assert run_in(tmp_path, "eval.picture=false", "eval.replay=false") == 1
    assert caplog.text.count("artifact exists with another type; training continues") == 1
    assert newest_state(tmp_path)[1]["iteration"] == 10
    assert len(policies(tmp_path)) == (3 if method == "table" else 0)


def test_a_network_that_has_gone_is_not_waited_for(tmp_path, monkeypatch) -> None:
    import wandb

    wandb.teardown()  # it reads the environment once per process
    settings = read("wandb.mode=online", "wandb.entity=us")
    (tmp_path / "policy.pt").write_bytes(b"weights")
    with WandbServer() as server:
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        with Loggers(settings, tmp_path, DiskGuard(), "abc") as loggers:
            server.answering.clear()
            began = time.perf_counter()
            for frames in range(20):
                loggers.table({}, frames)
                loggers.policy(tmp_path / "policy.pt", {"frames": frames, "scores": {}, "success": 0.5}, best=True)
                loggers.log({"charts/SPS": 1.0}, frames)
            waited = time.perf_counter() - began
            (tmp_path / "policy.pt").unlink()
            server.answering.set()
        assert waited < 1.0
        assert len([a for a in server.variables("CreateArtifact") if a["input"]["artifactTypeName"] == "model"]) == 20
        weights = [content for path, content in server.files.items() if path.endswith("/policy.pt")]
        assert weights and set(weights) == {b"weights"}, "as the file was"
    assert loggers.disk.failures == 0
    wandb.teardown()


def test_only_what_a_logger_takes_is_handed_to_it(tmp_path) -> None:
    assert WandbLogger.takes == {".png", ".html", ".mp4"} and TensorBoardLogger.takes == {".png", ".gif"}
    with Loggers(read("logger=tensorboard"), tmp_path, DiskGuard(), "abc") as loggers:
        assert loggers.takes(".gif") and not loggers.takes(".mp4")
        loggers.media("media/replay", tmp_path / "none.html", 0)
        assert not loggers.disk.failures
        loggers.media("media/picture", tmp_path / "none.png", 0)
        assert loggers.disk.failures == 1
    with Loggers(read("logger=none"), tmp_path / "other", DiskGuard(), "abc") as loggers:
        assert not loggers.takes(".png")


def test_a_policy_in_the_run_is_the_one_that_was_evaluated(run: Path) -> None:
    """The run's last evaluation and its policy.pt are of the same weights: no second version is logged."""
    import torch

    entry = policies(run)[-1].manifest.contents[0]
    weights = [load_checkpoint(path)["weights"] for path in (entry.local_path, run / "policy.pt")]
    assert all(torch.equal(a, b) for a, b in zip(*(w.values() for w in weights), strict=True))
