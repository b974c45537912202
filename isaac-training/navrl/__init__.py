"""Train drones to fly safely among static and moving obstacles.

env = navrl.make_env("env.num_envs=64")     a TorchRL environment; overrides as on the command line
policy = navrl.load_policy("default")       the policy that comes with the package, NavRL's ("navrl"), or a file
navrl.evaluate(policy, ["crossing-350-80"]) how its flights end on unseen maps
navrl.RolloutStorage("runs/…/rollouts")     reads what a run has stored
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from navrl.collect.rollouts import RolloutStorage
    from navrl.ppo.networks import ActorCritic
    from navrl.task.env import NavigationEnv
    from navrl.task.evaluation import Policy

try:
    __version__ = version("navrl")
except PackageNotFoundError:  # used from a checkout through PYTHONPATH
    __version__ = "0.2.0"

__all__ = ["RolloutStorage", "__version__", "evaluate", "load_policy", "make_env"]


def __getattr__(name: str) -> object:
    if name == "RolloutStorage":  # imported when asked for: `import navrl` stays quick
        from navrl.collect.rollouts import RolloutStorage

        return RolloutStorage
    raise AttributeError(f"module 'navrl' has no attribute {name!r}")


def make_env(*overrides: str) -> NavigationEnv:
    """The navigation task as a TorchRL environment; `overrides` as for `navrl eval` ("env.num_envs=64", ...).

    Without overrides it is NavRL's task: a decision at every physics step, 350 boxes, 80 moving obstacles.
    """
    from navrl.train.build import make_env
    from navrl.train.settings import compose_config, read_eval

    settings = read_eval(compose_config("eval", overrides))
    return make_env(settings.scene, settings.sim, settings.task)


def load_policy(path: str | Path, device: str = "cpu") -> ActorCritic:
    """A trained policy: a file of ours or of NavRL's, or "default" or "navrl", which come with the package.

    `policy.act(**observation)` gives the velocities (B, 3) to fly, in m/s in the world frame.
    """
    from navrl.ppo.policy_file import load_policy

    return load_policy(path, device=device)[0]


def evaluate(
    policy: ActorCritic | Policy, scenarios: Sequence[str] = ("crossing-350-80",), *overrides: str, episodes: int = 256
) -> dict[str, dict]:
    """Fly a policy, or any function of observations to velocities, over unseen maps: results by scenario.

    Each has the fraction of every outcome ("success", "static_collision", ...), means ("speed", "path_ratio",
    "time_to_goal"), and their 95 % intervals ("success_ci95", ...). `overrides` as for `navrl eval`.
    """
    from navrl.ppo.networks import ActorCritic
    from navrl.task.evaluation import Evaluator, summarize
    from navrl.train.build import network_policy
    from navrl.train.settings import compose_config, read_eval

    flown = [f"eval.scenarios=[{','.join(scenarios)}]", f"eval.episodes={episodes}"]
    settings = read_eval(compose_config("eval", [*flown, *overrides]))
    evaluator = Evaluator(settings.evaluation, settings.sim, settings.task)
    act: Callable = network_policy(policy) if isinstance(policy, ActorCritic) else policy
    return {str(s): summarize(evaluator.fly(s, act)) for s in settings.evaluation.scenarios}  # pyright: ignore
