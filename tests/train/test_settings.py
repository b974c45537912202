"""Wrong values are refused in one line that names the key, the value and the fix, before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from conftest import TRAIN
from navrl import settings
from navrl.settings import ConfigError, declared, setting
from navrl.train.resume import ResumeSettings
from navrl.train.settings import (
    CONFIG,
    EvalSettings,
    TrainSettings,
    _IsaacSettings,
    compose_config,
    memory_needed,
    plain,
    read_eval,
    read_train,
)


def read(*overrides: str) -> EvalSettings:
    return read_eval(compose_config("eval", overrides))


def read_training(*overrides: str) -> TrainSettings:
    return read_train(compose_config("train", overrides))


def test_defaults_are_navrls() -> None:
    sim, task = read().sim, read().task
    assert (sim.num_envs, sim.dt, sim.decimation) == (1024, 0.016, 1)
    assert sim.lidar.shape == (36, 4) and sim.lidar.range == 4.0
    assert task.max_episode_length == 2200 and task.goal_radius == 0.5
    navrl = read("reward=navrl", "env.end_at_goal=false").task
    assert navrl.reward["velocity"] == navrl.reward["alive"] == 1.0 and navrl.reward["height"] == 8.0


BAD = {
    "env.num_envs=0": "between 1",
    "env.height_limits=[1,1]": "at least 0.1 apart",
    "env.height_limits=[nan,4]": "2 numbers",
    "+new.key=1": "no such key",
    "+env.num_env=3": "no such key; did you mean env.num_envs?",
    "+reward.velocty=1": "no such key; did you mean reward.velocity?",
    "eval.scenarios=[crossing-0-0,borders-0-0,crossing-0-0]": "is there twice",
    "env.num_envs=-5": "between 1",
    "env.num_envs=2.5": "whole number",
    "env.num_envs=many": "whole number",
    "env.num_obstacles=-1": "at least 0",
    "env.num_obstacles=100000": "3200",
    "env.num_obstacles=[]": "empty",
    "env_dyn.num_obstacles=-8": "at least 0",
    "env_dyn.num_obstacles=[80,5000]": "800",
    "env_dyn.vel_range=[2,1]": "low to high",
    "env_dyn.local_range=[5,5]": "3 numbers",
    "env.max_episode_length=0": "between 1",
    "env.num_maps=0": "between 1",
    "env.route=circle": "borders, crossing",
    "env.height_limits=[4,0.2]": "low to high",
    "env.end_at_goal=perhaps": "true or false",
    "sensor.lidar_hres=7": "divide 360",
    "sensor.lidar_hres=0": "between",
    "sensor.lidar_vfov=[10,10]": "empty",
    "sensor.lidar_vfov=[20,-10]": "low to high",
    "sensor.lidar_vfov=[]": "2 numbers",
    "sensor.lidar_vfov=[-95,10]": "89",
    "sensor.lidar_vbeams=0": "between 1",
    "sensor.lidar_range=-4": "between",
    "sensor.lidar_range=.nan": "between",
    "drone.action_limit=fast": "must be a number",
    "sim.dt=0": "between",
    "sim.decimation=0": "between 1",
    "sim.time_scale=9": "0.1 s",
    "drone.model_name=Firefly": "Hummingbird",
    "drone.collision_radius=-0.1": "between",
    "reward.goal=high": "number",
    "seed=-1": "between 0",
    "headless=maybe": "true or false",
    "device=tpu": "auto, cpu, cuda",
    "eval.scenarios=[crosing-350-80]": "crossing-350-80",
    "eval.scenarios=[crossing-350-9000]": "fit",
    "eval.scenarios=[]": "list",
}


@pytest.mark.parametrize("override", BAD)
def test_bad_values(override: str) -> None:
    key = override.partition("=")[0].lstrip("+")
    with pytest.raises(ConfigError, match=BAD[override]) as error:
        read(override)
    line = str(error.value)
    assert line.startswith(f"{key}=") and "\n" not in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match=r"device=cuda: .* device=cpu"):
        read("device=cuda")


def test_nearest_divisor_is_named() -> None:
    with pytest.raises(ConfigError, match=r"sensor.lidar_hres=7.1: .* the nearest that does is 7.05882$"):
        read("sensor.lidar_hres=7.1")


def test_time_scale_warns_of_its_cost(caplog) -> None:
    read("sim.time_scale=2")
    assert "0.06 m between" in caplog.text


def test_lists_are_cycled_over_maps() -> None:
    scene = read("env.num_obstacles=[350,0]", "env_dyn.num_obstacles=[80,120,4e1,0]").scene
    assert scene.num_static == [350, 0] and scene.num_moving == [80, 120, 40, 0]


BAD_TRAINING = {
    "algo.num_minibatches=7": "nearest that does is 8",
    "algo.num_minibatches=1000000": "nearest that does is 16384",
    "wandb.run_id=..": "letters, digits",
    "+algo.gama=0.9": "no such key; did you mean algo.gamma?",
    "algo.num_minibatches=32768": "fewer than 2 frames",
    "algo.training_frame_num=0": "between 1",
    "algo.training_epoch_num=2.5": "whole number",
    "algo.gamma=1.5": "between 0 and 1",
    "algo.gae_lambda=-0.1": "between 0 and 1",
    "algo.actor.learning_rate=fast": "a number",
    "algo.actor.clip_ratio=0": "between",
    "algo.critic.learning_rate=-1": "between 0",
    "algo.entropy_loss_coefficient=2": "between 0 and 1",
    "algo.max_grad_norm=0": "at least",
    "algo.schedule=cosine": "adaptive, constant",
    "algo.averaging=1": "between 0",
    "algo.amp=perhaps": "true or false",
    "max_frame_num=100": "less than one batch",
    "max_frame_num=many": "whole number",
    "eval_interval=-1": "between 0",
    "save_interval=often": "whole number",
    "encoder=resnet": "fast, navrl",
    "logger=mlflow": "wandb, tensorboard, none",
    "wandb.mode=cloud": "offline, online, disabled",
    "return_same_td=2": "true or false",
    "use_pipelined_collector=true": "set return_same_td=false",
    "rollout_save_interval=5": "set return_same_td=false",
    "compress_rollout=zip": "none, lidar, all",
    "prefetch_count=0": "between 1",
    "perf.trace=2": "true or false",
    "perf.interval=-1": "between 0",
    "eval.episodes=0": "between 1",
    "eval.scenarios=[sideways-1-1]": "crossing-350-80",
    "drone.action_limit=1.0": "algo.actor.action_limit",
    "algo.feature_extractor.dyn_obs_num=7": "leave it",
    "checkpoint.file=[a]": "word",
    "checkpoint.keep_last=0": "between 1",
    "checkpoint.keep_every=-1": "between 0",
    "checkpoint.keep_best=some": "whole number",
    "checkpoint=5": "section",
    "save_minutes=-1": "at least 0",
    "compress_checkpoint=lz4": "true or false",
    "save_compression_level=13": "between 0 and 12",
    "async_checkpoint_queue_size=0": "between 1",
    "wandb.name=true": "word",
    "wandb.run_id=a/b": "letters",
}


@pytest.mark.parametrize("override", BAD_TRAINING)
def test_bad_training_values(override: str) -> None:
    key = override.partition("=")[0].lstrip("+")
    with pytest.raises(ConfigError, match=BAD_TRAINING[override]) as error:
        read_training(override)
    line = str(error.value)
    assert line.startswith(f"{key}=") and "\n" not in line


def test_more_than_fits_into_memory() -> None:
    with pytest.raises(ConfigError, match=r"env.num_envs=1024: with algo.training_frame_num=100000 .* GB available"):
        read_training("algo.training_frame_num=100000", "max_frame_num=1e12")


def test_memory_is_counted_where_it_is_needed() -> None:
    """The drones' device holds what is flown, the learner's what is learned from."""
    together = memory_needed(TRAIN)
    apart = memory_needed(replace(TRAIN, learner="cuda:0"))
    assert set(together) == {"cpu"} and set(apart) == {"cpu", "cuda:0"}
    assert apart["cpu"] < together["cpu"]
    larger = memory_needed(replace(TRAIN, learner="cuda:0", collect=replace(TRAIN.collect, steps=64)))
    assert larger["cuda:0"] > apart["cuda:0"] and larger["cpu"] > apart["cpu"]


def test_whole_numbers_may_be_written_as_navrl_writes_them() -> None:
    given = read_training("max_frame_num=12e8", "env.num_maps=1e2", "seed=1e1")
    assert given.max_frames == 12 * 10**8 and given.scene.num_maps == 100
    for seed in (given.seed, given.sim.seed, given.task.seed, given.scene.seed):
        assert seed == 10 and isinstance(seed, int)


def test_amp_needs_cuda() -> None:
    with pytest.raises(ConfigError, match="CUDA"):
        read_training("algo.amp=true", "device=cpu")


def test_navrls_network_wants_navrls_beams() -> None:
    with pytest.raises(ConfigError, match="encoder=fast"):
        read_training("encoder=navrl", "sensor.lidar_hres=5")


def test_names_a_navrl_user_types() -> None:
    given = read_training(
        "headless=True", "device=cpu", "seed=3", "max_frame_num=1_000_000", "eval_interval=10", "save_interval=10",
        "env.num_envs=64", "env.max_episode_length=100", "env.num_obstacles=10", "env_dyn.num_obstacles=8",
        "env_dyn.vel_range=[0.1,1.0]", "env_dyn.local_range=[3,3,3]", "sensor.lidar_range=5", "sensor.lidar_vbeams=4",
        "drone.model_name=Hummingbird", "algo.training_frame_num=16", "algo.training_epoch_num=4",
        "algo.num_minibatches=8", "algo.actor.learning_rate=5e-4", "algo.actor.action_limit=1.0", "sim.dt=0.02",
        "wandb.project=p", "wandb.name=n", "wandb.entity=e", "wandb.mode=offline", "wandb.run_id=x",
        "return_same_td=false", "compress_checkpoint=true", "save_compression_level=1",
        "async_checkpoint_queue_size=2", "use_pipelined_collector=true", "prefetch_count=2",
        "rollout_save_interval=10",
    )  # fmt: skip
    assert given.max_frames == 1_000_000 and given.task.action_limit == 1.0


# --- declared once ------------------------------------------------------------------------------------------------


def written(node: dict, prefix: str = "") -> set[str]:
    """Keys of a composed configuration; `reward` is one."""
    keys = set()
    for key, value in node.items():
        section = isinstance(value, dict) and key != "reward"
        keys |= written(value, f"{prefix}{key}.") if section else {prefix + key}
    return keys


@pytest.mark.parametrize("name, kinds", [("train", (TrainSettings, ResumeSettings)), ("eval", (EvalSettings,))])
def test_every_yaml_line_has_its_field_and_every_field_its_line(name: str, kinds: tuple[type, ...]) -> None:
    keys = set().union(*map(declared, kinds))
    assert written(plain(compose_config(name))) == keys
    isaac = written(plain(compose_config(name, ["sim=isaac"])))
    assert isaac == keys | {*declared(_IsaacSettings)}


def test_every_yaml_line_says_why() -> None:
    """A key without a comment, on its line or above it, is one nobody can choose a value for."""
    for file in (CONFIG / "train.yaml", CONFIG / "base.yaml", CONFIG / "eval.yaml"):
        lines = file.read_text().partition("\nhydra:")[0].splitlines()
        keys = [line for line in lines if ":" in line and not line.lstrip().startswith(("#", "-"))]
        values = [line for line in keys if line.partition(":")[2].strip()]
        assert sum("#" in line for line in values) >= 0.75 * len(values), file.name


@dataclass(frozen=True)
class Small:
    number: float = setting("a.number", 0.0, 1.0)
    word: str = setting("a.word", options=("x", "y"))


def test_a_key_that_is_missing_or_no_section() -> None:
    assert settings.read(Small, {"a": {"number": 1, "word": "x"}}) == Small(1.0, "x")
    with pytest.raises(ConfigError, match=r"^a.number=nothing: is missing"):
        settings.read(Small, {"a": {"word": "x"}})
    with pytest.raises(ConfigError, match=r"^a=3: must be a section with the key number$"):
        settings.read(Small, {"a": 3})


def test_composing_inside_a_hydra_program_leaves_it_alone() -> None:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(CONFIG), version_base=None):
        compose_config("eval")
        assert compose("train").seed == 0
    assert isinstance(OmegaConf.to_container(compose_config("train")), dict) and Path(CONFIG).is_dir()
