"""The pieces of a run, built from settings: used by train.py, eval.py, the Python API, benchmarks and tests alike."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from tensordict import TensorDictBase

from navrl.collect.batches import Batches, make_batches
from navrl.io.files import BadCheckpoint
from navrl.ppo.networks import ActorCritic
from navrl.ppo.policy_file import NAMED, load_policy, policy_path
from navrl.ppo.ppo import PPO
from navrl.ranks import ALONE, Ranks
from navrl.settings import ConfigError
from navrl.sim.engine import make_simulator
from navrl.sim.scene import TRAINING, SceneSettings, generate_scene
from navrl.sim.simulator import SimSettings
from navrl.task.env import NavigationEnv, TaskSettings
from navrl.task.evaluation import Policy, hover, random_walk, straight
from navrl.train.settings import EvalSettings, TrainSettings, compose_config, read_train

log = logging.getLogger("navrl")


def share_of(sim: SimSettings, ranks: Ranks) -> SimSettings:
    """The drones of this rank."""
    first, count = ranks.share(sim.num_envs)
    return replace(sim, num_envs=count, first_env=first)


def make_env(scene: SceneSettings, sim: SimSettings, task: TaskSettings) -> NavigationEnv:
    """Draw the training maps, build the drones, give them their task."""
    maps = generate_scene(**asdict(scene), stream=TRAINING)
    return NavigationEnv(make_simulator(maps, sim), task)


def make_ppo(settings: TrainSettings, start_from: str | None = None, ranks: Ranks = ALONE) -> PPO:
    """A new learner, or one that starts from the weights in a file, with its value normalizer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # orthogonal matrices are rounded otherwise with every number of threads
    policy, value_norm = ActorCritic(settings.network).to(settings.learner_device), None
    torch.set_num_threads(threads)
    if start_from is not None:
        try:
            start, known = load_policy(start_from, settings.task.action_limit)
        except BadCheckpoint as error:
            raise ConfigError("checkpoint", start_from, str(error)) from error
        ours = settings.network.describe()
        for name, value in known["network"].items():
            if value != ours[name]:
                raise ConfigError("checkpoint", start_from, f"has {name}={value}, but this run has {ours[name]}")
        policy.load_state_dict(start.state_dict())
        # NavRL's normalizer belongs to NavRL's rewards, a hundred times as large as ours.
        value_norm = known["value_norm"] if "command" in known["about"] else None
    ppo = PPO(policy, settings.ppo, settings.seed, ranks, ranks.share(settings.sim.num_envs)[0])
    if value_norm:
        ppo.value_norm.load_state_dict(value_norm)
    return ppo


SIMPLE_POLICIES = ("straight", "hover", "random")


def make_policy(settings: EvalSettings) -> Policy:
    """What `policy` names."""
    return named_policy(settings.policy, settings.sim, settings.task, settings.evaluation.seed)


def named_policy(name: str, sim: SimSettings, task: TaskSettings, seed: int) -> Policy:
    """A built-in policy, one that comes with the package, or a file; ConfigError if it cannot fly with this sensor."""
    simple = dict(zip(SIMPLE_POLICIES, (straight, hover, random_walk(seed)), strict=True))
    if name in simple:
        return simple[name]
    if not policy_path(name).exists():
        raise ConfigError("policy", name, f"no such file, and not one of {', '.join((*NAMED, *simple))}")
    try:
        network, known = load_policy(name, task.action_limit, sim.device)
    except BadCheckpoint as error:
        raise ConfigError("policy", name, str(error)) from error
    about = known["network"] | known["about"]
    sensor = {"beams": list(sim.lidar.shape), "lidar_range": sim.lidar.range, "lidar_vfov": list(sim.lidar.vfov)}
    for key, value in sensor.items():
        if about.get(key, value) != value:
            raise ConfigError("policy", name, f"was trained with {key}={about[key]}, but sensor.* gives {value}")
    if about.get("decimation", sim.decimation) != sim.decimation:
        log.info(
            "trained with a decision every %d physics steps, flown with one every %d (sim.decimation)",
            about["decimation"], sim.decimation,
        )  # fmt: skip
    return network_policy(network)


def network_policy(network: ActorCritic) -> Policy:
    """A network as an evaluation wants it."""

    def act(observation: TensorDictBase) -> torch.Tensor:
        return network.act(**observation)

    return act


class Training(NamedTuple):
    """What an iteration needs, without anything that is written or shown: for benchmarks and tests."""

    settings: TrainSettings
    env: NavigationEnv
    ppo: PPO
    batches: Batches

    def iterate(self) -> dict[str, float]:
        """Collect a batch and learn from it; returns the metrics."""
        return self.ppo.update(next(self.batches))


def make_training(*overrides: str, ranks: Ranks = ALONE) -> Training:
    """Environment, learner and batches of cfg/train.yaml, with overrides as on the command line; this rank's share."""
    settings = read_train(compose_config("train", overrides), ranks=ranks)
    torch.manual_seed(settings.seed)
    ppo, env = make_ppo(settings, ranks=ranks), make_env(settings.scene, share_of(settings.sim, ranks), settings.task)
    return Training(settings, env, ppo, make_batches(env, ppo, settings.collect))
