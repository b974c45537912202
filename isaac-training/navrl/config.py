"""Reads what the user wrote: checks every value before anything slow starts, and turns yaml into settings."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import itertools
import logging
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import psutil
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig
from omegaconf.errors import OmegaConfBaseException

from navrl.checkpoint.retention import Retention
from navrl.ppo.networks import ENCODERS
from navrl.ppo.ppo import SCHEDULES, PPOSettings
from navrl.sim.isaac_check import PHYSICS, IsaacMissing, check_isaac
from navrl.sim.lidar import LidarSpec
from navrl.sim.quadrotor import MODELS
from navrl.sim.scene import MAX_MOVING, MAX_STATIC, ROUTES
from navrl.sim.simulator import SimSettings
from navrl.task.env import TaskSettings
from navrl.task.evaluation import Scenario
from navrl.task.kernels import DIRECTION, NEAREST, OBSTACLE, STATE, TERMS

log = logging.getLogger("navrl")

ENGINES = ("warp", "isaac")
MAX_EPISODES = 16384
DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class ConfigError(ValueError):
    """One line for the user: the key, its value, and what to do."""

    def __init__(self, key: str, value: object, fix: str) -> None:
        if isinstance(value, ListConfig):
            value = list(value)
        super().__init__(f"{key}={value}: {fix}")


def user_errors(main: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Show a `ConfigError` as one line, exit with code 2 and leave no empty run directory behind."""

    @functools.wraps(main)
    def wrapped(cfg: DictConfig) -> None:
        try:
            main(cfg)
        except KeyboardInterrupt:
            print("\ninterrupted; what was finished is in the run directory", file=sys.stderr)
            sys.exit(130)
        except (ConfigError, OmegaConfBaseException, IsaacMissing) as error:
            remove_fresh_run()
            print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
            sys.exit(2)

    return wrapped


def launch(main: Callable[[], None], about: str, name: str) -> None:
    """Run a script's Hydra main. `--help` shows `about` and the configuration files; common mishaps are one line."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        _show_help(about, name)
        return
    sys.argv[1:] = [re.sub(r"^checkpoint=", "checkpoint.file=", a) if name == "train" else a for a in sys.argv[1:]]
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # let errors through to here
    try:
        main()
    except (HydraException, OmegaConfBaseException, IsaacMissing) as error:  # an unknown key, a value that is none, ...
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_TROUBLE:
            raise
        directory = next((a for a in sys.argv[1:] if a.startswith("hydra.run.dir=")), "hydra.run.dir")
        print(f"error: {directory}: {error}; choose a directory that can be written", file=sys.stderr)
        sys.exit(2)
    finally:
        if isaac := sys.modules.get("navrl.sim.isaac_engine"):  # Isaac Sim ends the process, so it is left last of all
            isaac.leave_runtime(*sys.exc_info())


def _show_help(about: str, name: str) -> None:
    folder = Path(__file__).parents[2] / "cfg"
    print(about.strip())
    for file in (folder / f"{name}.yaml", folder / "base.yaml", *sorted(folder.glob("sim/*.yaml"))):
        print(f"\n{'─' * 120}\n{file.relative_to(folder.parent)}\n")
        print(file.read_text().partition("\nhydra:")[0].strip())
    presets = ", ".join(file.stem for file in sorted(folder.glob("reward/*.yaml")))
    print(f"\n{'─' * 120}\nreward=<preset> chooses one of: {presets}")


def run_directory() -> Path:
    """Hydra's, as short as it can be written."""
    return shortest(Path(HydraConfig.get().runtime.output_dir))


def shortest(path: Path) -> Path:
    """The path from here, if it is below."""
    path = Path(os.path.abspath(path))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def remove_fresh_run() -> None:
    """Hydra makes the run directory before we see the configuration; take it away if it holds nothing else."""
    directory = Path(HydraConfig.get().runtime.output_dir)
    saved = directory / str(HydraConfig.get().output_subdir)
    if set(directory.rglob("*")) <= {saved, *(saved / f"{name}.yaml" for name in ("config", "hydra", "overrides"))}:
        shutil.rmtree(saved, ignore_errors=True)
        with contextlib.suppress(OSError):
            for empty in (directory, *directory.parents[:2]):  # and runs/<date> above it, if they were new too
                if empty != Path.cwd():
                    empty.rmdir()


# --- checks -----------------------------------------------------------------------------------------------------


def number(cfg: DictConfig, key: str, low: float, high: float = math.inf, whole: bool = False) -> float:
    """The value at `key`, which must be a number from `low` to `high`."""
    value = _get(cfg, key)
    if whole and isinstance(value, float) and value.is_integer():
        value = int(value)  # 12e8, as NavRL's own configuration writes it
    kind = "a whole number" if whole else "a number"
    limits = f"of at least {low:.10g}" if high == math.inf else f"between {low:.10g} and {high:.10g}"
    right_type = isinstance(value, int if whole else Real) and not isinstance(value, bool)
    if not right_type or not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(key, value, f"must be {kind} {limits}")
    return value


def numbers(cfg: DictConfig, key: str, length: int, low: float = -math.inf, rising: bool = False) -> tuple[float, ...]:
    """The list at `key`: `length` numbers of at least `low`, each above the one before if `rising`."""
    value = _get(cfg, key)
    good = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == length
    good = good and all(isinstance(v, Real) and not isinstance(v, bool) and math.isfinite(v) for v in value)
    if not good or min(value) < low:
        at_least = f" of at least {low:g}" if low > -math.inf else ""
        raise ConfigError(key, value, f"must be a list of {length} numbers{at_least}")
    if rising and any(b < a for a, b in itertools.pairwise(value)):
        raise ConfigError(key, value, "must go from low to high")
    return tuple(float(v) for v in value)


def choice(cfg: DictConfig, key: str, options: Sequence[str]) -> str:
    """The value at `key`, which must be one of `options`."""
    value = _get(cfg, key)
    if value not in options:
        raise ConfigError(key, value, f"must be one of {', '.join(options)}")
    return value


def counts(cfg: DictConfig, key: str, most: int) -> int | list[int]:
    """A number of obstacles, or a list of them that maps take in turn."""
    value = _get(cfg, key)
    several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    for count in several:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigError(key, value, "must be a whole number of at least 0, or a list of them")
        if count > most:
            raise ConfigError(key, value, f"more than fit on a 40 × 40 m map; use at most {most}")
    if not several:
        raise ConfigError(key, value, "must not be an empty list")
    return several if isinstance(value, Sequence) else several[0]


def switch(cfg: DictConfig, key: str) -> bool:
    """The value at `key`, which must be true or false."""
    value = _get(cfg, key)
    if not isinstance(value, bool):
        raise ConfigError(key, value, "must be true or false")
    return value


def text(cfg: DictConfig, key: str) -> str | None:
    """The value at `key`, which must be a word, or null for none."""
    value = _get(cfg, key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise ConfigError(key, value, "must be a word, or null")
    return None if value is None else str(value)


def _get(cfg: DictConfig, key: str) -> object:
    node: object = cfg
    for part in key.split("."):
        if not isinstance(node, DictConfig):
            section = key.rpartition(f".{part}")[0]
            raise ConfigError(section, node, f"must be a section with the key {part}")
        node = node[part]
    return node


# --- settings ---------------------------------------------------------------------------------------------------


def pick_device(cfg: DictConfig, key: str = "device") -> str:
    """The device at `key` with `auto` resolved; says which and why."""
    device = str(cfg[key])
    available = torch.cuda.is_available()
    if device == "auto":
        device = "cuda:0" if available else "cpu"
        log.info("device: %s (%s)", device, torch.cuda.get_device_name(0) if available else "no CUDA device found")
        return device
    if device == "cpu":
        return device
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise ConfigError(key, device, "must be auto, cpu, cuda or cuda:<number>")
    if not available:
        raise ConfigError(key, device, f"this machine has no CUDA device that torch can use; set {key}=cpu")
    if int(index or 0) >= torch.cuda.device_count():
        raise ConfigError(key, device, f"there are only {torch.cuda.device_count()} CUDA devices, counted from 0")
    return f"cuda:{int(index or 0)}"


def lidar_spec(cfg: DictConfig) -> LidarSpec:
    """The beam layout under `sensor`."""
    hres = number(cfg, "sensor.lidar_hres", 0.5, 90.0)
    if abs(360.0 / hres - round(360.0 / hres)) > 1e-6:
        nearest = 360.0 / round(360.0 / hres)
        raise ConfigError("sensor.lidar_hres", hres, f"must divide 360 degrees; the nearest that does is {nearest:g}")
    vbeams = int(number(cfg, "sensor.lidar_vbeams", 1, 64, whole=True))
    vfov = numbers(cfg, "sensor.lidar_vfov", 2, rising=True)
    if vfov[0] < -89 or vfov[1] > 89:
        raise ConfigError("sensor.lidar_vfov", list(vfov), "must lie within -89 and 89 degrees")
    if vbeams > 1 and vfov[0] == vfov[1]:
        raise ConfigError("sensor.lidar_vfov", list(vfov), "is empty; give two different angles, or lidar_vbeams=1")
    return LidarSpec(number(cfg, "sensor.lidar_range", 0.5, 40.0), vfov, vbeams, hres)


def seed_at(cfg: DictConfig, key: str) -> int:
    """The seed at `key`."""
    return int(number(cfg, key, 0, 2**31 - 1, whole=True))


def sim_settings(cfg: DictConfig) -> SimSettings:
    """Everything an engine is told besides the scene."""
    engine = choice(cfg, "sim.engine", ENGINES)
    physics = _isaac_physics(cfg) if engine == "isaac" else "none"
    window = not switch(cfg, "headless")
    screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if window and (physics != "physx" or not screen):
        what = "the warp engine has no window" if engine == "warp" else f"Isaac Lab with {physics} has no window"
        what = "there is no screen (DISPLAY is not set)" if physics == "physx" else what
        log.warning("headless=false: %s; pictures are drawn into the run directory", what)
    settings = SimSettings(
        num_envs=int(number(cfg, "env.num_envs", 1, 1 << 20, whole=True)),
        engine=engine,
        physics=physics,
        window=window and screen and physics == "physx",
        device=pick_device(cfg),
        seed=seed_at(cfg, "seed"),
        dt=number(cfg, "sim.dt", 1e-4, 0.05),
        decimation=int(number(cfg, "sim.decimation", 1, 100, whole=True)),
        time_scale=number(cfg, "sim.time_scale", 0.1, 10.0),
        threads=int(number(cfg, "sim.threads", 0, 256, whole=True)),
        drone=choice(cfg, "drone.model_name", tuple(MODELS)),
        collision_radius=number(cfg, "drone.collision_radius", 0.0, 2.0),
        moving_speed=numbers(cfg, "env_dyn.vel_range", 2, low=0.0, rising=True),
        moving_range=numbers(cfg, "env_dyn.local_range", 3, low=0.0),
        lidar=lidar_spec(cfg),
    )
    if settings.collision_radius > settings.lidar.range:
        raise ConfigError("drone.collision_radius", settings.collision_radius, "must not exceed sensor.lidar_range")
    if settings.step_seconds > 0.1:
        raise ConfigError("sim.time_scale", settings.time_scale, "makes steps longer than 0.1 s; lower it or sim.dt")
    if settings.time_scale != 1.0:
        log.warning(
            "sim.time_scale=%g: physics runs in steps of %.0f ms instead of %.0f. A drone at 2 m/s moves %.2f m between"
            " collision checks, rotors and controller react more coarsely; do not compare scores with time_scale=1.",
            settings.time_scale, 1e3 * settings.step_seconds, 1e3 * settings.dt, 2.0 * settings.step_seconds,
        )  # fmt: skip
    return settings


def _isaac_physics(cfg: DictConfig) -> str:
    wanted = choice(cfg, "sim.physics", PHYSICS)
    try:
        physics, why = check_isaac(wanted)
        importlib.import_module("navrl.sim.isaac_engine")  # takes seconds, and is where a broken installation shows
    except IsaacMissing as error:
        key, value = ("sim", "isaac") if "Isaac Lab" in str(error) else ("sim.physics", wanted)
        raise ConfigError(key, value, str(error)) from None
    log.info("physics: %s (%s)", physics, why)
    return physics


def task_settings(cfg: DictConfig) -> TaskSettings:
    """What the drone is asked to do."""
    limits = numbers(cfg, "env.height_limits", 2, rising=True)
    reward = {}
    for term in TERMS:
        value = cfg.reward.get(term)
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ConfigError(f"reward.{term}", value, "must be a number")
        reward[term] = float(value)
    return TaskSettings(
        max_episode_length=int(number(cfg, "env.max_episode_length", 1, 1e7, whole=True)),
        goal_radius=number(cfg, "env.goal_radius", 0.01, 10.0),
        height_limits=limits,
        end_at_goal=switch(cfg, "env.end_at_goal"),
        action_limit=number(cfg, "drone.action_limit", 0.01, 20.0),
        seed=seed_at(cfg, "seed"),
        reward=reward,
    )


def check_obstacles(cfg: DictConfig) -> None:
    """Numbers of obstacles and maps, and where flights go."""
    counts(cfg, "env.num_obstacles", MAX_STATIC)
    counts(cfg, "env_dyn.num_obstacles", MAX_MOVING)
    number(cfg, "env.num_maps", 1, 4096, whole=True)
    choice(cfg, "env.route", ROUTES)


def scenarios(cfg: DictConfig) -> list[Scenario]:
    """The list under eval.scenarios."""
    value = cfg.eval.scenarios
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or len(names) == 0:
        raise ConfigError("eval.scenarios", value, "must be a list such as [crossing-350-80,borders-350-0]")
    out = []
    for name in names:
        try:
            out.append(Scenario.parse(str(name)))
        except ValueError as error:
            raise ConfigError("eval.scenarios", name, str(error)) from error
    return out


# --- training ---------------------------------------------------------------------------------------------------

COMPRESSED = ("none", "lidar", "all")
LOGGERS = ("wandb", "tensorboard", "none")
WANDB_MODES = ("offline", "online", "disabled")


@dataclass(frozen=True)
class TrainSettings:
    """How long to train, and what to do on the way."""

    encoder: str
    learner_device: str
    start_from: str | None  # a file with weights
    batch_steps: int  # decisions of every drone in a batch
    total_frames: int
    frames_per_batch: int
    eval_interval: int
    save_interval: int
    save_minutes: float
    compress: bool
    compression_level: int
    queue_size: int
    keep: Retention
    return_same_td: bool
    compress_rollout: str
    rollout_interval: int  # iterations between stored rollouts; 0: none
    prefetch: int  # batches flown ahead in a thread; 0: none
    eval_episodes: int
    final_episodes: int
    eval_maps: int
    eval_seed: int
    picture: bool
    trace: bool
    perf_interval: int
    logger: str
    wandb: dict[str, str | None]


def learner_device(cfg: DictConfig, engine: str) -> str:
    """Where the networks are: where the drones are, unless said otherwise."""
    device = engine if cfg.learner_device is None else pick_device(cfg, "learner_device")
    if device.startswith("cuda"):
        torch.cuda.set_device(device)  # events and memory figures are of the current device
    return device


def ppo_settings(cfg: DictConfig, device: str) -> PPOSettings:
    """The section `algo`, for a learner on `device`."""
    amp = switch(cfg, "algo.amp")
    if amp and not device.startswith("cuda"):
        raise ConfigError("algo.amp", amp, f"needs a CUDA device, this is {device}; a CPU is slower with bfloat16")
    if number(cfg, "algo.feature_extractor.dyn_obs_num", 0, whole=True) != NEAREST:
        seen = cfg.algo.feature_extractor.dyn_obs_num
        raise ConfigError("algo.feature_extractor.dyn_obs_num", seen, f"the task tells of {NEAREST}; leave it there")
    parts = ("feature_extractor", "actor", "critic")
    return PPOSettings(
        epochs=int(number(cfg, "algo.training_epoch_num", 1, 100, whole=True)),
        minibatches=int(number(cfg, "algo.num_minibatches", 1, 1 << 20, whole=True)),
        gamma=number(cfg, "algo.gamma", 0.0, 1.0),
        gae_lambda=number(cfg, "algo.gae_lambda", 0.0, 1.0),
        clip=number(cfg, "algo.actor.clip_ratio", 1e-3, 1.0),
        value_clip=number(cfg, "algo.critic.clip_ratio", 1e-3, 100.0),
        value_weight=number(cfg, "algo.value_loss_coefficient", 0.0, 100.0),
        entropy_weight=number(cfg, "algo.entropy_loss_coefficient", 0.0, 1.0),
        max_grad_norm=number(cfg, "algo.max_grad_norm", 1e-6),
        learning_rates=tuple(number(cfg, f"algo.{part}.learning_rate", 0.0, 1.0) for part in parts),
        schedule=choice(cfg, "algo.schedule", SCHEDULES),
        target_kl=number(cfg, "algo.target_kl", 1e-6, 10.0),
        anneal=number(cfg, "algo.anneal", 0.0, 1.0),
        averaging=number(cfg, "algo.averaging", 0.0, 0.99999),
        amp=amp,
    )


def train_settings(cfg: DictConfig, sim: SimSettings) -> TrainSettings:
    """Everything about a run that is not drone, task or algorithm; also checks that the pieces fit together."""
    drones = int(number(cfg, "env.num_envs", 1, 1 << 20, whole=True))
    steps = int(number(cfg, "algo.training_frame_num", 1, 100_000, whole=True))
    frames = drones * steps
    device = learner_device(cfg, sim.device)
    minibatches = ppo_settings(cfg, device).minibatches
    if frames % minibatches:
        raise ConfigError(
            "algo.num_minibatches", minibatches,
            f"must divide env.num_envs * algo.training_frame_num = {drones} * {steps} = {frames}"
            f"; the nearest that does is {_nearest_divisor(frames, minibatches)}",
        )  # fmt: skip
    if frames // minibatches < 2:
        raise ConfigError("algo.num_minibatches", minibatches, "leaves fewer than 2 frames a minibatch; use fewer")
    encoder = choice(cfg, "encoder", tuple(ENCODERS))
    shape = sim.lidar.shape
    if encoder == "navrl" and shape != (36, 4):
        raise ConfigError("encoder", encoder, f"sees 36 × 4 beams, but sensor.* gives {shape}; use encoder=fast")
    if number(cfg, "algo.actor.action_limit", 0.01, 20.0) != number(cfg, "drone.action_limit", 0.01, 20.0):
        raise ConfigError("drone.action_limit", cfg.drone.action_limit, "set algo.actor.action_limit instead")
    total = int(number(cfg, "max_frame_num", 1, 1e13, whole=True))
    if total < frames:
        raise ConfigError("max_frame_num", total, f"is less than one batch of {frames} frames")
    wandb = {key: text(cfg, f"wandb.{key}") for key in ("project", "name", "entity", "run_id")}
    wandb["mode"] = choice(cfg, "wandb.mode", WANDB_MODES)
    for key in ("project", "run_id"):
        if wandb[key] is not None and not re.fullmatch(r"[\w.-]{1,120}", wandb[key]):
            raise ConfigError(f"wandb.{key}", wandb[key], "must be letters, digits, dots and dashes")
    logger = choice(cfg, "logger", LOGGERS)
    settings = TrainSettings(
        encoder=encoder,
        learner_device=device,
        start_from=text(cfg, "checkpoint.file"),
        batch_steps=steps,
        total_frames=total,
        frames_per_batch=frames,
        eval_interval=int(number(cfg, "eval_interval", 0, 1e9, whole=True)),
        save_interval=int(number(cfg, "save_interval", 0, 1e9, whole=True)),
        save_minutes=number(cfg, "save_minutes", 0.0),
        compress=switch(cfg, "compress_checkpoint"),
        compression_level=int(number(cfg, "save_compression_level", 0, 12, whole=True)),
        queue_size=int(number(cfg, "async_checkpoint_queue_size", 1, 1000, whole=True)),
        keep=Retention(
            last=int(number(cfg, "checkpoint.keep_last", 1, 1e9, whole=True)),
            every=int(number(cfg, "checkpoint.keep_every", 0, 1e9, whole=True)),
            best=int(number(cfg, "checkpoint.keep_best", 0, 1e9, whole=True)),
        ),
        return_same_td=switch(cfg, "return_same_td"),
        compress_rollout=choice(cfg, "compress_rollout", COMPRESSED),
        rollout_interval=_rollout_interval(cfg),
        prefetch=_prefetch(cfg),
        eval_episodes=int(number(cfg, "eval.episodes", 1, MAX_EPISODES, whole=True)),
        final_episodes=int(number(cfg, "eval.final_episodes", 1, MAX_EPISODES, whole=True)),
        eval_maps=int(number(cfg, "eval.maps", 1, MAX_EPISODES, whole=True)),
        eval_seed=seed_at(cfg, "eval.seed"),
        picture=switch(cfg, "eval.picture"),
        trace=switch(cfg, "perf.trace"),
        perf_interval=int(number(cfg, "perf.interval", 0, 1e9, whole=True)),
        logger="none" if (logger, wandb["mode"]) == ("wandb", "disabled") else logger,
        wandb=wandb,
    )
    scenarios(cfg)
    _check_memory(settings, sim)
    _look_for_neighbours(sim)
    return settings


def _prefetch(cfg: DictConfig) -> int:
    count = int(number(cfg, "prefetch_count", 1, 64, whole=True))
    if not switch(cfg, "use_pipelined_collector"):
        return 0
    if switch(cfg, "return_same_td"):
        fix = "would write the next batch over the one being learned from; set return_same_td=false with it"
        raise ConfigError("use_pipelined_collector", True, fix)
    if choice(cfg, "sim.engine", ENGINES) == "isaac":
        fix = "flies in a thread, but Isaac is stepped by the one that built it; leave it false with sim=isaac"
        raise ConfigError("use_pipelined_collector", True, fix)
    return count


def _rollout_interval(cfg: DictConfig) -> int:
    every = int(number(cfg, "rollout_save_interval", 0, 1e9, whole=True))
    if every and switch(cfg, "return_same_td"):
        fix = "stores batches in the background, while return_same_td=true writes over them; set return_same_td=false"
        raise ConfigError("rollout_save_interval", every, fix)
    if every and choice(cfg, "compress_rollout", COMPRESSED) != "none":
        fix = (
            "stores whole batches, of which compress_rollout keeps only what is learned from; set compress_rollout=none"
        )
        raise ConfigError("rollout_save_interval", every, fix)
    return every


def _nearest_divisor(number_: int, wanted: int) -> int:
    divisors = {d for k in range(1, math.isqrt(number_) + 1) if number_ % k == 0 for d in (k, number_ // k)}
    return min(divisors, key=lambda d: abs(d - wanted))


def _look_for_neighbours(sim: SimSettings) -> None:
    """torch's threads wait for each other awake, which costs dearly where another program wants the same cores."""
    if sim.device == "cpu" and "GOMP_SPINCOUNT" not in os.environ and psutil.cpu_percent(interval=0.2) > 50.0:
        log.info(
            "other programs keep this machine busy; GOMP_SPINCOUNT=5000 in the environment shares better with them"
        )


def _check_memory(settings: TrainSettings, sim: SimSettings) -> None:
    """Say what a run will take, and refuse what does not fit."""
    observation = math.prod(sim.lidar.shape) + STATE + DIRECTION + NEAREST * OBSTACLE
    # A frame's observation is stored as seen and as seen next, all that twice while the collector stacks it, then once
    # more as network input with as much again for temporaries; the rest is the drone itself and the program.
    copies = 8 if settings.return_same_td else 11 + 3 * settings.prefetch + 3 * bool(settings.rollout_interval)
    if settings.compress_rollout != "none":
        copies = 2 + settings.prefetch  # a piece at a time, and the packed rest
    a_frame = 4 * observation * copies
    cuda = sim.device.startswith("cuda")
    need = settings.frames_per_batch * a_frame + sim.num_envs * 5 * 1024 + (1000e6 if cuda else 600e6)
    have = torch.cuda.mem_get_info(sim.device)[0] if cuda else psutil.virtual_memory().available
    log.info("memory: about %.1f GB needed, %.1f GB available", need / 1e9, have / 1e9)
    if need > have:
        raise ConfigError(
            "env.num_envs", sim.num_envs,
            f"with algo.training_frame_num={settings.batch_steps} a batch needs about {need / 1e9:.1f} GB"
            f" of {have / 1e9:.1f} GB available; lower one of them",
        )  # fmt: skip
