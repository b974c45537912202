"""Train a drone to fly to a goal among static and moving obstacles.

python scripts/train.py headless=True env.num_envs=1024        train with the defaults: half an hour on two cores
python scripts/train.py max_frame_num=100_000_000 seed=1       a longer run with another seed
python scripts/train.py encoder=navrl checkpoint=file.pt       start from NavRL's own weights
python scripts/train.py wandb.mode=online wandb.project=drones follow the run in a browser

Every key below can be given as key=value; those of a section with a dot, as in env.num_envs=64.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import hydra
import psutil
import torch
from omegaconf import DictConfig, OmegaConf
from torchrl.collectors import Collector

from navrl import config
from navrl.checkpoint import files
from navrl.checkpoint.stop import StopRequest
from navrl.config import ConfigError
from navrl.monitor.console import TrainingConsole, clock
from navrl.monitor.curves import draw_curves
from navrl.monitor.flights import RecentFlights, draw_flights, results_table
from navrl.monitor.metrics import CsvLogger, Logger, TensorBoardLogger, WandbLogger, code_version
from navrl.monitor.timers import PhaseTimers
from navrl.ppo.networks import ENCODERS, ActorCritic
from navrl.ppo.policy_file import describe, load_policy, policy_content
from navrl.ppo.ppo import PPO, NotFinite
from navrl.sim.scene import TRAINING, generate_scene
from navrl.sim.simulator import SimSettings
from navrl.sim.warp_engine import WarpSimulator
from navrl.task.env import NavigationEnv, TaskSettings
from navrl.task.evaluation import Evaluator, Scenario, summarize
from navrl.task.kernels import OUTCOMES


@hydra.main(config_path="../cfg", config_name="train", version_base=None)
@config.user_errors
def main(cfg: DictConfig) -> None:
    # Everything the user wrote is read, and may be refused, before anything is built.
    sim_settings, task_settings = config.sim_settings(cfg), config.task_settings(cfg)
    train, algo = config.train_settings(cfg, sim_settings), config.ppo_settings(cfg, sim_settings.device)
    scenarios = config.scenarios(cfg)
    config.check_obstacles(cfg)
    torch.manual_seed(cfg.seed)
    policy, value_norm = make_policy(train, sim_settings, task_settings)
    run, version = config.run_directory(), code_version()

    # The world: many maps, a thousand drones, the task.
    print(f"drawing {cfg.env.num_maps} maps and building {sim_settings.num_envs} drones")
    scene = generate_scene(
        cfg.seed, cfg.env.num_maps, cfg.env.num_obstacles, cfg.env_dyn.num_obstacles, cfg.env.route, stream=TRAINING
    )
    env = NavigationEnv(WarpSimulator(scene, sim_settings), task_settings)
    evaluator = Evaluator(train.eval_maps, train.eval_seed, sim_settings, task_settings)

    # The learner, and what carries data to it.
    ppo = PPO(policy, algo, cfg.seed)
    ppo.value_norm.load_state_dict(value_norm or ppo.value_norm.state_dict())
    collector = Collector(
        env,
        ppo,
        frames_per_batch=train.frames_per_batch,
        total_frames=train.frames_per_batch * train.iterations,
        return_same_td=train.return_same_td,
        trust_policy=True,  # the policy is a module of ours: nothing to wrap
        track_traj_ids=False,
        auto_register_policy_transforms=False,
    )

    # What the person sees.
    loggers = make_loggers(cfg, train, run, version)
    flights, timers, disk, stop = RecentFlights(), PhaseTimers(), files.DiskGuard(), StopRequest()
    total = train.frames_per_batch * train.iterations
    scores: dict[str, float] = {}  # success on unseen maps at the last evaluation
    scored: dict[str, int] = {}  # when that was, and over how many flights
    iteration = frames = 0
    broken: NotFinite | None = None

    def log(metrics: dict[str, float]) -> None:
        with timers("log"), disk("logging"):
            for logger in loggers:
                logger.log(metrics, frames)

    def evaluate(episodes: int, scenarios: list[Scenario] = scenarios) -> None:
        """Fly the averaged policy on unseen maps: scores, table and picture."""
        with timers("evaluate"):
            flown = {s: evaluator.fly(s, episodes, lambda seen: ppo.averaged.act(**seen)) for s in scenarios}
            results = {str(scenario): summarize(flights) for scenario, flights in flown.items()}
            scores.update({f"eval/{name}/success": result["success"] for name, result in results.items()})
            scored.update(frames=frames, episodes=episodes)
            with disk("saving an evaluation"):
                (run / "eval.json").write_text(json.dumps({"frames": frames, "scenarios": results}, indent=2) + "\n")
                if train.picture:
                    picture = run / f"flights-{scenarios[0]}.png"
                    title = f"{run.name}   {scenarios[0]}   after {frames / 1e6:.1f} M frames"
                    draw_flights(picture, title, flown[scenarios[0]])
                    for logger in loggers:
                        logger.picture("flights", picture, frames)
        console.say(results_table(results, f"unseen maps after {frames / 1e6:.1f} M frames, {clock(timers.elapsed)}"))
        log(scores)

    def save() -> None:
        """The policy to fly, the state to go on from, and the curves so far."""
        about = {
            "decimation": sim_settings.decimation,
            "dt": sim_settings.dt,
            "lidar_vfov": list(sim_settings.lidar.vfov),
            "frames": frames,
            "seconds": timers.elapsed,
            "seed": cfg.seed,
            "commit": version,
            "command": " ".join(["scripts/train.py", *(a for a in sys.argv[1:] if not a.startswith("hydra."))]),
            "scores": scores | scored,
        }
        with timers("save"), disk("saving"):
            files.save(run / "policy.pt", policy_content(ppo.averaged, ppo.value_norm, train.encoder, about))
            files.save(run / "training_state.pt", {"iteration": iteration, "frames": frames, "ppo": ppo.state()})
            draw_curves(run / "curves.png", f"{run}   {clock(timers.elapsed)}", loggers[0].rows)

    with TrainingConsole(str(run), total) as console:
        batches = iter(collector)
        while iteration < train.iterations and not stop:
            began = time.perf_counter()
            try:
                with timers("collect"):
                    batch = next(batches)
                with timers("update"):
                    metrics = ppo.update(batch, progress=frames / total)
            except NotFinite as error:
                broken = error
                break
            iteration += 1
            frames += train.frames_per_batch
            ended = batch["next", "done"].squeeze(-1)
            flights.add({name: batch["next", "stats", name][ended].view(-1).cpu().numpy() for name in SHOWN})
            metrics |= flights.means() | {
                "charts/SPS": train.frames_per_batch / (time.perf_counter() - began),
                "charts/minutes": timers.elapsed / 60,
                "perf/memory_mb": psutil.Process().memory_info().rss / 1e6,
            }
            log(metrics)
            console.update(frames, frames / timers.elapsed, metrics | scores, timers.shares())
            if iteration == train.iterations:
                break
            if train.eval_interval and iteration % train.eval_interval == 0:
                evaluate(train.eval_episodes)
            if train.save_interval and iteration % train.save_interval == 0:
                save()

        # The end, Ctrl-C or worse: save first, then show.
        save()
        if broken:
            with disk("saving what was not finite"):
                files.save(run / "not_finite.pt", replay_content(cfg, ppo, broken, iteration, frames / total))
        elif not stop:
            evaluate(train.final_episodes)
            save()
        elif not scores:  # stopped before the first evaluation: a quick one, so that there is something to see
            evaluate(min(64, train.eval_episodes), scenarios[:1])
            save()
    stop.restore()
    collector.shutdown()
    for logger in loggers:
        logger.close()
    print(
        f"{'stopped' if stop or broken else 'done'} after {frames / 1e6:.1f} M frames in {clock(timers.elapsed)}"
        f" ({frames / timers.elapsed:,.0f} frames/s), peak memory {peak_memory_mb():,.0f} MB\n"
        f"policy, curves and pictures: {run}\n"
        f"fly it with: python scripts/eval.py policy={run / 'policy.pt'}"
    )
    if broken:
        print(
            f"error: iteration {iteration}: {broken.name} is not finite; training stopped."
            f" Replay it with: python scripts/replay.py {run / 'not_finite.pt'}", file=sys.stderr,
        )  # fmt: skip
    if disk.failures:
        print(f"error: {disk.failures} writes to {run} failed; see the warning above", file=sys.stderr)
    if code := stop.exit_code or int(disk.failures > 0 or broken is not None):
        sys.exit(code)


SHOWN = (*OUTCOMES, "return", "length")  # of flights that ended while training


def make_policy(
    train: config.TrainSettings, sim: SimSettings, task: TaskSettings
) -> tuple[ActorCritic, dict[str, torch.Tensor] | None]:
    """A new network, or one that starts from the weights of `checkpoint`, then with its value normaliser."""
    policy = ActorCritic(ENCODERS[train.encoder](sim.lidar.shape, sim.lidar.range), task.action_limit).to(sim.device)
    if train.checkpoint is None:
        return policy, None
    try:
        start, known = load_policy(train.checkpoint, task.action_limit)
    except ValueError as error:
        raise ConfigError("checkpoint", train.checkpoint, str(error)) from error
    ours = describe(policy, train.encoder)
    for name, value in known["network"].items():
        if value != ours[name]:
            raise ConfigError("checkpoint", train.checkpoint, f"has {name}={value}, but this run has {ours[name]}")
    policy.load_state_dict(start.state_dict())
    # NavRL's normaliser belongs to NavRL's rewards, a hundred times as large as ours.
    return policy, known["value_norm"] if "command" in known["about"] else None


def make_loggers(cfg: DictConfig, train: config.TrainSettings, run: Path, version: str) -> list[Logger]:
    """metrics.csv, and what `logger` asks for."""
    loggers: list[Logger] = [CsvLogger(run / "metrics.csv")]
    if train.logger == "wandb":
        described = OmegaConf.to_container(cfg, resolve=True) | {"code_version": version}
        name = train.wandb["name"] or "-".join(run.parts[-2:])
        loggers.append(WandbLogger(run, described, **train.wandb | {"name": name}))
    elif train.logger == "tensorboard":
        loggers.append(TensorBoardLogger(run / "tensorboard"))
    return loggers


def replay_content(cfg: DictConfig, ppo: PPO, broken: NotFinite, iteration: int, progress: float) -> dict:
    """What scripts/replay.py needs to fail in the same way."""
    tensors = {"|".join(key) if isinstance(key, tuple) else key: v for key, v in broken.data.items(True, True)}
    return {
        "config": OmegaConf.to_yaml(cfg, resolve=True),
        "ppo": ppo.state(),
        "data": tensors,
        "batch_size": list(broken.data.batch_size),
        "iteration": iteration,
        "progress": progress,
        "name": broken.name,
    }


def peak_memory_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    config.launch(main, __doc__, "train")
