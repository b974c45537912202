"""Fly a policy over maps it has never seen: a table, eval.json and a picture of every flight.

python scripts/eval.py policy=straight eval.scenarios=[crossing-350-80] eval.episodes=256
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from navrl import config
from navrl.config import ConfigError
from navrl.monitor.flights import draw_flights, results_table
from navrl.ppo.policy_file import load_policy
from navrl.sim.simulator import SimSettings
from navrl.task.evaluation import Evaluator, Policy, hover, random_walk, straight, summarize

log = logging.getLogger("navrl")


@hydra.main(config_path="../cfg", config_name="eval", version_base=None)
@config.user_errors
def main(cfg: DictConfig) -> None:
    # Everything the user wrote is read, and may be refused, before anything is built.
    scenarios = config.scenarios(cfg)
    episodes = int(config.number(cfg, "eval.episodes", 1, config.MAX_EPISODES, whole=True))
    maps = int(config.number(cfg, "eval.maps", 1, config.MAX_EPISODES, whole=True))
    seed = config.seed_at(cfg, "eval.seed")
    picture = config.switch(cfg, "eval.picture")
    config.check_obstacles(cfg)
    sim_settings = config.sim_settings(cfg)
    policy = make_policy(cfg, sim_settings)
    evaluator = Evaluator(maps, seed, sim_settings, config.task_settings(cfg))

    run = config.run_directory()
    console = Console()
    if not console.is_terminal:
        console.width = 120  # nobody resizes a log file
    results: dict[str, dict] = {}
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        for scenario in scenarios:
            bar = progress.add_task(f"{scenario}", total=episodes)

            def report(done: int, total: int, bar=bar, scenario=scenario, what: str = "") -> None:
                progress.update(bar, description=f"{scenario}{what}", completed=done, total=total)

            flights = evaluator.fly(scenario, episodes, policy, report)
            result = results[str(scenario)] = summarize(flights)
            if not console.is_terminal:  # a bar that cannot move says nothing until the end
                console.print(f"{scenario}: {100 * result['success']:.1f} % success")
            (run / "eval.json").write_text(json.dumps(results, indent=2) + "\n")
            if picture:
                title = f"{Path(str(cfg.policy)).name}   {scenario}   {episodes} flights"
                file = run / f"flights-{scenario}.png"
                draw_flights(file, title, flights)

    console.print(results_table(results, f"policy={cfg.policy}, {episodes} flights a scenario, seed {seed}"))
    console.print(f"numbers and pictures: {run}")


def make_policy(cfg: DictConfig, settings: SimSettings) -> Policy:
    """One of the built-in policies, or a network read from a checkpoint file."""
    name = str(cfg.policy)
    simple = {"straight": straight, "hover": hover, "random": random_walk(int(cfg.eval.seed))}
    if name in simple:
        return simple[name]
    if not Path(name).exists():
        raise ConfigError("policy", name, f"no such file, and not one of {', '.join(simple)}")
    try:
        network, known = load_policy(name, float(cfg.drone.action_limit), settings.device)
    except ValueError as error:
        raise ConfigError("policy", name, str(error)) from error
    lidar = settings.lidar
    sensor = {"beams": list(lidar.shape), "lidar_range": lidar.range, "lidar_vfov": list(lidar.vfov)}
    for key, value in sensor.items():
        if (trained := (known["network"] | known["about"])[key]) != value:
            raise ConfigError("policy", name, f"was trained with {key}={trained}, but sensor.* gives {value}")
    if known["about"]["decimation"] != settings.decimation:
        log.info(
            "trained with a decision every %d physics steps, flown with one every %d (sim.decimation)",
            known["about"]["decimation"], settings.decimation,
        )  # fmt: skip

    def act(observation) -> torch.Tensor:
        return network.act(**observation)

    return act


if __name__ == "__main__":
    config.launch(main, __doc__, "eval")
