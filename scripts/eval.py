"""Fly a policy over maps it has never seen: a table, eval.json and a picture of every flight.

python scripts/eval.py policy=straight eval.scenarios=[crossing-350-80] eval.episodes=256
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from navrl import config
from navrl.config import ConfigError
from navrl.monitor.flights import draw_flights, results_table
from navrl.ppo.navrl_format import load_policy
from navrl.sim.scene import EVALUATION, generate_scene
from navrl.sim.simulator import SimSettings
from navrl.sim.warp_engine import WarpSimulator
from navrl.task.env import NavigationEnv, TaskSettings
from navrl.task.evaluation import Flights, Policy, Scenario, fly_all, hover, random_walk, straight, summarize
from navrl.task.kernels import OUTCOMES


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
    sim_settings = replace(config.sim_settings(cfg), num_envs=episodes, seed=seed)
    # One flight a drone, over at its first event.
    task_settings = replace(config.task_settings(cfg), starts_in_order=True, end_at_goal=True)
    policy = make_policy(cfg, sim_settings)

    run = Path(HydraConfig.get().runtime.output_dir)
    run = run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run
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

            flights = fly_scenario(scenario, seed, maps, policy, sim_settings, task_settings, report)
            result = results[str(scenario)] = summarize(flights)
            if not console.is_terminal:  # a bar that cannot move says nothing until the end
                console.print(f"{scenario}: {100 * result['success']:.1f} % success")
            (run / "eval.json").write_text(json.dumps(results, indent=2) + "\n")
            if picture:
                outcome = [OUTCOMES[o] for o in flights.outcome]
                title = f"{Path(str(cfg.policy)).name}   {scenario}   {episodes} flights"
                file = run / f"flights-{scenario}.png"
                draw_flights(file, title, flights.scene, flights.map_index, flights.trace, outcome)

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
        network = load_policy(name, float(cfg.drone.action_limit), settings.device)
    except ValueError as error:
        raise ConfigError("policy", name, str(error)) from error
    if settings.lidar.shape != (36, 4):
        raise ConfigError(
            "policy", name, f"NavRL's network sees 36 × 4 beams, but sensor.* gives {settings.lidar.shape}"
        )

    def act(observation) -> torch.Tensor:
        return network.act(**observation)

    return act


def fly_scenario(
    scenario: Scenario,
    seed: int,
    maps: int,
    policy: Policy,
    sim_settings: SimSettings,
    task_settings: TaskSettings,
    report: Callable[..., None],
) -> Flights:
    """Build the scenario's maps and drones, fly every drone once, and take all down again."""
    episodes = sim_settings.num_envs
    maps = min(maps, episodes)
    scene = generate_scene(
        seed,
        num_maps=maps,
        num_static=scenario.num_static,
        num_moving=scenario.num_moving,
        route=scenario.route,
        starts_per_map=-(-episodes // maps),
        stream=EVALUATION,
        progress=lambda done, total: report(done, total, what="  drawing maps"),
    )
    report(0, episodes, what="  building")
    env = NavigationEnv(WarpSimulator(scene, sim_settings), task_settings)
    try:
        return fly_all(env, policy, report)
    finally:
        env.close()


if __name__ == "__main__":
    main()
