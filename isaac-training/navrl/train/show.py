"""Builds the live page from settings: which policies it can fly, and the run it follows."""

from __future__ import annotations

import contextlib
import os
import webbrowser
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from navrl.checkpoint.stop import on_signals
from navrl.io.contents import Unfit
from navrl.ppo.policy_file import NAMED
from navrl.settings import ConfigError, one_line
from navrl.task.evaluation import Policy
from navrl.train.build import SIMPLE_POLICIES, named_policy
from navrl.train.directory import SETTINGS
from navrl.train.settings import PlaySettings, flat, plain, stored_config
from navrl.view.address import check_view, has_no_screen, invitation
from navrl.view.play import DRAW, PlayPage
from navrl.view.watch import FollowedRun

OF_THE_RUN = (
    "sensor.", "drone.", "env.height_limits", "env.goal_radius", "env.max_episode_length", "env_dyn.vel_range",
    "env_dyn.local_range", "sim.dt", "sim.decimation", "sim.time_scale",
)  # fmt: skip
LARGEST = 1 << 20  # bytes of stored settings
WATCH_DRAW = 1 / 12  # s between pictures beside a training: the cores are its, not ours


def with_settings_of(run: str, cfg: DictConfig) -> DictConfig:
    """The configuration with sensor, drone and limits of a run, except for what was typed."""
    path = Path(run)
    stored = path / SETTINGS / "config.yaml"
    if not stored.is_file():
        raise ConfigError("run", run, "is not a run directory (it has no config/config.yaml)")
    try:
        if stored.stat().st_size > LARGEST:
            raise OSError(f"larger than {LARGEST >> 20} MB, which no run of ours writes")
        theirs = dict(flat(stored_config(stored.read_text("utf-8", errors="replace"))))
    except (Unfit, OSError) as error:
        raise ConfigError("run", run, f"{stored}: {error}") from None
    typed = {override.partition("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task}
    for key in dict(flat(plain(cfg))):
        of_the_run = key in theirs and key.startswith(OF_THE_RUN)
        if of_the_run and not any(key == word or key.startswith(f"{word}.") for word in typed):
            if "${" in str(theirs[key]):  # settings from a file are data: nothing in them is looked up
                raise ConfigError("run", run, f"its stored {key} is {one_line(str(theirs[key]), 80)}; give {key} anew")
            OmegaConf.update(cfg, key, theirs[key])
    if "policy" not in typed:
        cfg.policy = str(path / "policy.pt")
    return cfg


def serve(settings: PlaySettings) -> None:
    """Open the page, and fly until Ctrl-C."""
    view = settings.view
    check_view(view)
    torch.set_num_threads(1)  # a few drones: more threads would only wait for each other

    def load(name: str) -> Policy:
        return named_policy(name, settings.sim, settings.task, view.seed)

    companion = None
    if settings.run:
        with contextlib.suppress(OSError):
            os.nice(15)  # the training comes first
        _wait_for_policy(Path(settings.policy))
        companion = FollowedRun(Path(settings.run), settings.policy, load)
    names = [*NAMED, *SIMPLE_POLICIES]
    draw = WATCH_DRAW if settings.run else DRAW
    page = PlayPage(view, settings.sim, settings.task, settings.policy, load, names, companion, draw)
    on_signals(lambda *_: page.end())
    try:
        print(invitation(view), flush=True)
        if view.browser and not has_no_screen():
            webbrowser.open(f"http://127.0.0.1:{view.port}")
        page.run()
    finally:
        page.close()


def _wait_for_policy(path: Path) -> None:
    """A run that has just begun has not saved a policy yet."""
    if not path.exists():
        raise ConfigError(
            "run", path.parent, "has not saved a policy yet (save_interval, save_minutes); try again later"
        )
