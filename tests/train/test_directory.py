"""A run's directory belongs to one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from navrl.settings import ConfigError
from navrl.train import directory
from navrl.train.directory import RunDirectory, fresh_directory, remove_fresh_directory
from navrl.train.settings import CONFIG


@pytest.fixture
def hydra(tmp_path, monkeypatch) -> Iterator[Path]:
    """The directory Hydra made for a command."""
    with initialize_config_dir(str(CONFIG), version_base=None):
        cfg = compose("train", [], return_hydra_config=True)
    OmegaConf.set_readonly(cfg.hydra, False)
    cfg.hydra.runtime.output_dir = str(path := tmp_path / "runs/day/12-00-00")
    path.mkdir(parents=True)
    HydraConfig.instance().set_config(cfg)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(directory, "_fresh", None)
    yield path
    HydraConfig.instance().cfg = None


def test_runs_of_the_same_second(hydra) -> None:
    names = [fresh_directory() for _ in range(4)]
    assert [path.name for path in names] == ["12-00-00", "12-00-00-2", "12-00-00-3", "12-00-00-4"]


def test_a_directory_without_anything_of_value_is_removed(hydra, tmp_path) -> None:
    with RunDirectory(fresh_directory()) as run:
        run.take_over(0, {"seed": 1}, ["seed=1"])
        assert "from iteration 0: navrl train seed=1" in (hydra / "log.txt").read_text()
    assert remove_fresh_directory() is None and list(tmp_path.iterdir()) == []
    hydra.mkdir(parents=True)
    (fresh_directory() / "eval.json").touch()
    assert remove_fresh_directory() == hydra.relative_to(tmp_path) and (hydra / "eval.json").exists()


def test_what_wandb_links_is_left_alone(tmp_path) -> None:
    """wandb links its newest run, and logs in a cache outside; anything else is refused."""
    logs = tmp_path / "run/wandb/offline-run-1/logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to("/var/somewhere")
    (tmp_path / "run/wandb/latest-run").symlink_to("offline-run-1")
    with RunDirectory(tmp_path / "run"):
        pass
    (tmp_path / "run/wandb/debug.log").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match=r"symbolic link, wandb/debug\.log"):
        RunDirectory(tmp_path / "run")


def test_one_writer(tmp_path) -> None:
    with RunDirectory(tmp_path) as run:
        with pytest.raises(ConfigError, match="is being trained by process"):
            RunDirectory(tmp_path)
        (run.path / "checkpoints/state-00000009.pt.lz4.tmp").touch()  # a process was killed
    with RunDirectory(tmp_path):
        assert not list(tmp_path.rglob("*.tmp"))
