"""Everything a run is told, read and checked before anything is built: settings objects from a composed config."""

from __future__ import annotations

import difflib
import importlib
import logging
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, ListConfig, OmegaConf

from navrl.checkpoint.retention import SaveSettings
from navrl.collect.batches import CollectSettings
from navrl.io.contents import MapOf, Plain, Unfit, check, check_bounds
from navrl.ppo.networks import ENCODERS, NetworkSettings
from navrl.ppo.ppo import PPOSettings
from navrl.ranks import ALONE, Ranks, RanksSettings
from navrl.schema import NEAREST, TERMS, observation_shapes
from navrl.settings import SEED, ConfigError, declared, device, one_line, read, setting
from navrl.sim.isaac_check import PHYSICS, IsaacMissing, check_isaac
from navrl.sim.lidar import LidarSpec
from navrl.sim.scene import BORDER, SceneSettings
from navrl.sim.simulator import SimSettings
from navrl.task.env import TaskSettings
from navrl.task.evaluation import MAX_EPISODES, EvaluationSettings
from navrl.view.address import ViewSettings

log = logging.getLogger("navrl")

WANDB_WORD = r"[\w-][\w.-]{0,119}"  # a project or the id of a run
CONFIG = Path(__file__).parents[1] / "cfg"  # every key with its default and reason


# --- what a training run and an evaluation are told -----------------------------------------------------------------


def learner_device(value: Any, key: str) -> str | None:
    """Parse `learner_device`; None: where the drones are."""
    return None if value is None else device(value, key)


@dataclass(frozen=True, kw_only=True)
class PeriodicEvaluationSettings(EvaluationSettings):
    """Evaluations during training."""

    interval: int = setting("eval_interval", 0, 1e9)  # iterations; 0: only at the end
    final_episodes: int = setting("eval.final_episodes", 1, MAX_EPISODES)


@dataclass(frozen=True, kw_only=True)
class LoggingSettings:
    """Where metrics go besides metrics.csv, and how often the time is accounted for."""

    logger: str = setting("logger", options=("wandb", "tensorboard", "none"))
    mode: str = setting("wandb.mode", options=("offline", "online", "disabled"))
    project: str | None = setting("wandb.project")
    name: str | None = setting("wandb.name")
    entity: str | None = setting("wandb.entity")
    run_id: str | None = setting("wandb.run_id")
    perf_interval: int = setting("perf.interval", 0, 1e9)  # iterations
    trace: bool = setting("perf.trace")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Everything a training run is told."""

    seed: int = setting("seed", *SEED)
    max_frames: int = setting("max_frame_num", 1, 1e13)
    start_from: str | None = setting("checkpoint.file")  # a file with weights
    encoder: str = setting("encoder", options=tuple(ENCODERS))
    learner: str | None = setting("learner_device", parse=learner_device)
    observed_obstacles: int = setting("algo.feature_extractor.dyn_obs_num", 0)
    threads: int = setting("threads", 0, 1024)  # of torch; 0: the machine's cores, shared out over its ranks
    actor_action_limit: float = setting("algo.actor.action_limit", 0.01, 20.0)  # NavRL's place for drone.action_limit
    sim: SimSettings
    scene: SceneSettings
    task: TaskSettings
    ppo: PPOSettings
    collect: CollectSettings
    evaluation: PeriodicEvaluationSettings
    save: SaveSettings
    logging: LoggingSettings
    ranks: RanksSettings
    config: dict  # all of it as plain values, for files and loggers
    overrides: tuple[str, ...]  # what was typed

    @property
    def learner_device(self) -> str:
        return self.learner or self.sim.device

    @property
    def frames_per_batch(self) -> int:
        return self.sim.num_envs * self.collect.steps

    @property
    def network(self) -> NetworkSettings:
        """What the network must know of sensor, drone and field."""
        sim = self.sim
        numbers = sim.lidar.range, self.task.action_limit, sim.collision_radius, BORDER
        return NetworkSettings(self.encoder, sim.lidar.shape, *numbers)


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """Everything scripts/eval.py is told. `scene` is only checked: scenarios say what is flown."""

    policy: str = setting("policy")
    sim: SimSettings
    scene: SceneSettings
    task: TaskSettings
    evaluation: EvaluationSettings


@dataclass(frozen=True, kw_only=True)
class PlaySettings:
    """Everything scripts/play.py and watch.py are told. `scene` is only checked: view.scenario says what is flown."""

    policy: str = setting("policy")
    run: str | None = setting("run")
    sim: SimSettings
    scene: SceneSettings
    task: TaskSettings
    view: ViewSettings


# --- reading ---------------------------------------------------------------------------------------------------------


def compose_config(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration `name` (train or eval) with overrides as on the command line, outside of a Hydra program."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIG), version_base=None):
            return compose(name, overrides=list(overrides))
    finally:
        GlobalHydra.instance().hydra = running


def plain(cfg: DictConfig | ListConfig) -> dict:
    """A composed config as plain dicts, lists and values, with interpolations resolved."""
    values = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def stored_config(text: str) -> dict:
    """The settings of a stored run as plain values; raises Unfit."""
    try:
        config = yaml.load(text, _PlainLoader)
        check_bounds(config)
        check(config, MapOf(Plain()), "config")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Unfit("config", f"cannot be read: {one_line(str(error), 200)}") from None
    return config


class _PlainLoader(yaml.SafeLoader):
    """YAML without references: a few lines of them can stand for more than memory holds. Runs never have any."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has a reference to another part of itself")
        return super().compose_node(parent, index)


def read_train(cfg: DictConfig, overrides: Sequence[str] = (), ranks: Ranks = ALONE) -> TrainSettings:
    """Settings of a training run, checked for this machine. Says what device, memory and physics it will use."""
    settings = parse_train(cfg, overrides)
    check_ranks(settings, ranks)
    if ranks.size > 1 and torch.cuda.is_available():  # one GPU each
        sim = settings.sim
        sim = replace(sim, device=_gpu(sim.device, ranks.local))
        settings = replace(settings, sim=sim, learner=_gpu(settings.learner, ranks.local))
    if settings.learner_device.startswith("cuda"):
        torch.cuda.set_device(settings.learner_device)  # events and memory figures are of the current device
    if settings.threads or ranks.local_size > 1:
        torch.set_num_threads(settings.threads or max(1, len(os.sched_getaffinity(0)) // ranks.local_size))
    check_memory(settings, ranks)
    return settings


def parse_train(cfg: DictConfig, overrides: Sequence[str] = ()) -> TrainSettings:
    """Settings of a training run, checked. Touches no GPU and no threads: the run may be another process's."""
    config = plain(cfg)
    check_keys(config, TrainSettings, "resume")
    settings = read(TrainSettings, config, sim=read_sim(config), config=config, overrides=tuple(overrides))
    check_train(settings)
    return settings


def _gpu(device: str | None, number: int) -> Any:
    return f"cuda:{number}" if device and device.startswith("cuda") else device


def read_eval(cfg: DictConfig) -> EvalSettings:
    """Settings of an evaluation, checked."""
    config = plain(cfg)
    check_keys(config, EvalSettings)
    settings = read(EvalSettings, config, sim=read_sim(config))
    check_recording(settings.evaluation)
    return settings


def read_play(cfg: DictConfig) -> PlaySettings:
    """Settings of the live page, checked."""
    config = plain(cfg)
    check_keys(config, PlaySettings)
    settings = read(PlaySettings, config, sim=read_sim(config))
    if settings.sim.engine != "warp":
        raise ConfigError("sim", settings.sim.engine, "the page flies on the warp engine; leave it out")
    return settings


def read_sim(config: dict) -> SimSettings:
    """Settings of an engine, checked, with Isaac's physics chosen."""
    sim = read(SimSettings, config)
    check_lidar(sim.lidar)
    if sim.collision_radius > sim.lidar.range:
        raise ConfigError("drone.collision_radius", sim.collision_radius, "must not exceed sensor.lidar_range")
    if sim.step_seconds > 0.1:
        raise ConfigError("sim.time_scale", sim.time_scale, "makes steps longer than 0.1 s; lower it or sim.dt")
    if sim.time_scale != 1.0:
        log.warning(
            "sim.time_scale=%g: physics runs in steps of %.0f ms instead of %.0f. A drone at 2 m/s moves %.2f m between"
            " collision checks, rotors and controller react more coarsely; do not compare scores with time_scale=1.",
            sim.time_scale, 1e3 * sim.step_seconds, 1e3 * sim.dt, 2.0 * sim.step_seconds,
        )  # fmt: skip
    physics = _choose_physics(config) if sim.engine == "isaac" else "none"
    return replace(sim, physics=physics, window=_has_window(sim, physics))


@dataclass(frozen=True)
class _IsaacSettings:
    physics: str = setting("sim.physics", options=PHYSICS)


def _choose_physics(config: dict) -> str:
    wanted = read(_IsaacSettings, config).physics
    try:
        physics, why = check_isaac(wanted)
        importlib.import_module("navrl.sim.isaac_engine")  # takes seconds; a broken installation shows here
    except IsaacMissing as error:
        key, value = ("sim", "isaac") if "Isaac Lab" in str(error) else ("sim.physics", wanted)
        raise ConfigError(key, value, str(error)) from None
    log.info("physics: %s (%s)", physics, why)
    return physics


def _has_window(sim: SimSettings, physics: str) -> bool:
    screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not sim.headless and not (physics == "physx" and screen):
        reason = "the warp engine has no window" if sim.engine == "warp" else f"Isaac Lab with {physics} has no window"
        reason = "there is no screen (DISPLAY is not set)" if physics == "physx" else reason
        log.warning("headless=false: %s; pictures are drawn into the run directory", reason)
    return not sim.headless and screen and physics == "physx"


def shell_word(key: str, path: str | Path) -> str:
    """`key=path` as a person can paste it into a shell, whatever characters the path has."""
    return shlex.quote(f"{key}={path}")


# --- checks that concern several settings -----------------------------------------------------------------------------


def check_keys(config: dict, kind: type, *others: str) -> None:
    """Refuse keys that nothing reads: Hydra lets +key=value through, and a misspelt setting would have no effect."""
    known = {*declared(kind), *declared(_IsaacSettings), *others, *(f"reward.{term}" for term in TERMS)}
    sections = {key.rpartition(".")[0] for key in known}
    for key, value in flat(config):
        if key not in known and key not in sections:  # a section that is no section is refused where it is read
            near = difflib.get_close_matches(key, known, 1)
            raise ConfigError(key, value, "no such key" + (f"; did you mean {near[0]}?" if near else ""))


def flat(node: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a config by its whole key."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check_lidar(lidar: LidarSpec) -> None:
    turns = 360.0 / lidar.hres
    if abs(turns - round(turns)) > 1e-6:
        fix = f"must divide 360 degrees; the nearest that does is {360.0 / round(turns):g}"
        raise ConfigError("sensor.lidar_hres", f"{lidar.hres:g}", fix)
    if lidar.vfov[0] < -89 or lidar.vfov[1] > 89:
        raise ConfigError("sensor.lidar_vfov", list(lidar.vfov), "must lie within -89 and 89 degrees")
    if lidar.vbeams > 1 and lidar.vfov[0] == lidar.vfov[1]:
        fix = "is empty; give two different angles, or lidar_vbeams=1"
        raise ConfigError("sensor.lidar_vfov", list(lidar.vfov), fix)


def check_recording(evaluation: EvaluationSettings) -> None:
    if evaluation.video:
        from navrl.view.video import check_video  # here: nobody else waits for Pillow and the encoder

        check_video()


def check_train(s: TrainSettings) -> None:
    frames, minibatches, collect = s.frames_per_batch, s.ppo.num_minibatches, s.collect
    if frames % minibatches:
        fix = f"must divide env.num_envs * algo.training_frame_num = {s.sim.num_envs} * {collect.steps} = {frames}"
        nearest = f"; the nearest that does is {_nearest_divisor(frames, minibatches)}" if frames > 1 else ""
        raise ConfigError("algo.num_minibatches", minibatches, fix + nearest)
    if frames // minibatches < 2:
        raise ConfigError("algo.num_minibatches", minibatches, "leaves fewer than 2 frames per minibatch; use fewer")
    if s.max_frames < frames:
        raise ConfigError("max_frame_num", s.max_frames, f"is less than one batch of {frames} frames")
    if s.observed_obstacles != NEAREST:
        fix = f"a drone observes {NEAREST}; leave it there"
        raise ConfigError("algo.feature_extractor.dyn_obs_num", s.observed_obstacles, fix)
    if s.encoder == "navrl" and s.sim.lidar.shape != (36, 4):
        fix = f"sees 36 × 4 beams, but sensor.* gives {s.sim.lidar.shape}; use encoder=fast"
        raise ConfigError("encoder", s.encoder, fix)
    if s.actor_action_limit != s.task.action_limit:
        raise ConfigError("drone.action_limit", s.task.action_limit, "set algo.actor.action_limit instead")
    if s.ppo.amp and not s.learner_device.startswith("cuda"):
        fix = f"needs a CUDA device, this is {s.learner_device}; a CPU is slower with bfloat16"
        raise ConfigError("algo.amp", s.ppo.amp, fix)
    if collect.pipelined and collect.return_same_td:
        fix = "would write the next batch over the one being learned from; set return_same_td=false with it"
        raise ConfigError("use_pipelined_collector", True, fix)
    if collect.pipelined and s.sim.engine == "isaac":
        fix = "collects in a thread, but Isaac is stepped by the one that built it; leave it false with sim=isaac"
        raise ConfigError("use_pipelined_collector", True, fix)
    if collect.rollout_interval and collect.return_same_td:
        fix = "stores batches in the background, while return_same_td=true writes over them; set return_same_td=false"
        raise ConfigError("rollout_save_interval", collect.rollout_interval, fix)
    if collect.rollout_interval and collect.compress != "none":
        fix = "stores whole batches, of which compress_rollout keeps only a part; set compress_rollout=none"
        raise ConfigError("rollout_save_interval", collect.rollout_interval, fix)
    check_recording(s.evaluation)
    for key, word in (("wandb.project", s.logging.project), ("wandb.run_id", s.logging.run_id)):
        if word is not None and not re.fullmatch(WANDB_WORD, word):
            raise ConfigError(key, word, "must be letters, digits, dots and dashes")
    if s.logging.name is not None and not 0 < len(s.logging.name) <= 120:
        raise ConfigError("wandb.name", s.logging.name, "must have 1 to 120 characters")


def check_same(config: dict, ranks: Ranks) -> None:
    """Refuse ranks that were started with different settings."""
    theirs = dict(flat(ranks.from_first(config)))
    with ranks.together():
        for key, value in flat(config):
            if theirs.get(key) != value:
                raise ConfigError(key, value, f"rank 0 has {theirs.get(key)}; start every rank with the same settings")


def check_ranks(s: TrainSettings, ranks: Ranks) -> None:
    """Settings are of the whole run; refuse what cannot be shared out."""
    drones, size = s.sim.num_envs, ranks.size
    if drones % size:
        nearest = max(1, round(drones / size)) * size
        fix = f"cannot be shared out evenly over {size} ranks; the nearest that can is {nearest}"
        raise ConfigError("env.num_envs", drones, fix)
    frames, least = s.frames_per_batch // s.ppo.num_minibatches, 32 * size
    if size > 1 and frames < least:  # drawn at random, a rank would sooner or later have none of them
        fix = f"leaves {frames} frames per minibatch for {size} ranks, which need at least {least}; use fewer"
        raise ConfigError("algo.num_minibatches", s.ppo.num_minibatches, fix)
    if size > 1 and s.learner_device.startswith("cuda") and ranks.local_size > torch.cuda.device_count():
        fix = f"{ranks.local_size} ranks on this machine, but {torch.cuda.device_count()} GPUs; start one rank per GPU"
        raise ConfigError("device", s.learner_device, fix)


def _nearest_divisor(number: int, wanted: int) -> int:
    """Of the divisors that leave at least two."""
    divisors = {d for k in range(1, math.isqrt(number) + 1) if number % k == 0 for d in (k, number // k)}
    return min(divisors - {number}, key=lambda d: abs(d - wanted))


def memory_needed(s: TrainSettings) -> dict[str, float]:
    """Bytes a run takes, by device: estimated from the size of a batch."""
    observation = 4 * sum(math.prod(shape) for shape in observation_shapes(s.sim.lidar.shape).values())
    collect, program = s.collect, {"cpu": 600e6}
    # Where it flies: an observation is stored as seen and as seen next, all that twice while the collector stacks it.
    # Where it learns: once more as network input, with as much again for temporaries, and what is held or on its way.
    flying, learning = 4, 4 if collect.return_same_td else 7
    learning += 3 * collect.prefetch + 3 * bool(collect.rollout_interval)
    if collect.compress != "none":
        flying, learning = 1, 1 + collect.prefetch  # a piece at a time, and the compressed rest
    need = {name: program.get(name, 1000e6) for name in {s.sim.device, s.learner_device}}
    need[s.sim.device] += s.frames_per_batch * observation * flying + s.sim.num_envs * 5 * 1024
    need[s.learner_device] += s.frames_per_batch * observation * learning
    return need


def check_memory(s: TrainSettings, ranks: Ranks) -> None:
    """Say what a run will take on this machine, and refuse what does not fit."""
    share = replace(s, sim=replace(s.sim, num_envs=s.sim.num_envs // ranks.size))
    for name, need in memory_needed(share).items():
        need *= ranks.local_size if name == "cpu" else 1
        have = psutil.virtual_memory().available if name == "cpu" else torch.cuda.mem_get_info(name)[0]
        where = f" on {name}" if s.sim.device != s.learner_device else ""
        log.info("memory: about %.1f GB needed%s, %.1f GB available", need / 1e9, where, have / 1e9)
        if need > have:
            fix = f"with algo.training_frame_num={s.collect.steps} a batch needs about {need / 1e9:.1f} GB{where}"
            fix += f" of {have / 1e9:.1f} GB available; lower one of them"
            raise ConfigError("env.num_envs", s.sim.num_envs, fix)
