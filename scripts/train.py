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
from hydra.core.hydra_config import HydraConfig
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
from navrl.ppo.policy_file import load_policy, policy_content
from navrl.ppo.ppo import PPO, NotFinite
from navrl.sim.scene import TRAINING, generate_scene
from navrl.sim.warp_engine import WarpSimulator
from navrl.task.env import NavigationEnv
from navrl.task.evaluation import Evaluator, summarize
from navrl.task.kernels import OUTCOMES


@hydra.main(config_path="../cfg", config_name="train", version_base=None)
@config.user_errors
def main(cfg: DictConfig) -> None:
    # Everything the user wrote is read, and may be refused, before anything is built.
    train, algo = config.train_settings(cfg), config.ppo_settings(cfg)
    sim_settings, task_settings = config.sim_settings(cfg), config.task_settings(cfg)
    scenarios = config.scenarios(cfg)
    config.check_obstacles(cfg)
    torch.manual_seed(cfg.seed)
    policy = make_policy(cfg, train.encoder, sim_settings)
    run = run_directory()

    # The world: many maps, a thousand drones, the task.
    print(f"drawing {cfg.env.num_maps} maps and building {sim_settings.num_envs} drones")
    scene = generate_scene(
        cfg.seed, cfg.env.num_maps, cfg.env.num_obstacles, cfg.env_dyn.num_obstacles, cfg.env.route, stream=TRAINING
    )
    env = NavigationEnv(WarpSimulator(scene, sim_settings), task_settings)
    evaluator = Evaluator(train.eval_maps, train.eval_seed, sim_settings, task_settings)

    # The learner, and what carries data to it.
    ppo = PPO(policy, algo, cfg.seed)
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
    loggers = make_loggers(cfg, train.logger, run)
    flights, timers, disk, stop = RecentFlights(), PhaseTimers(), files.DiskGuard(), StopRequest()
    total = train.frames_per_batch * train.iterations
    latest: dict[str, float] = {}  # scores of the last evaluation
    iteration = frames = 0

    def log(metrics: dict[str, float]) -> None:
        with timers("log"), disk("logging"):
            for logger in loggers:
                logger.log(metrics, frames)

    def evaluate(episodes: int) -> None:
        """Fly the averaged policy on unseen maps: scores, table and picture."""
        results = {}
        with timers("evaluate"), disk("saving an evaluation"):
            for scenario in scenarios:
                flown = evaluator.fly(scenario, episodes, lambda seen: ppo.averaged.act(**seen))
                results[str(scenario)] = summarize(flown)
                if train.picture and scenario == scenarios[0]:
                    title = f"{run.name}   {scenario}   after {frames / 1e6:.1f} M frames"
                    picture = run / f"flights-{scenario}.png"
                    outcome = [OUTCOMES[o] for o in flown.outcome]
                    draw_flights(picture, title, flown.scene, flown.map_index, flown.trace, outcome)
                    for logger in loggers:
                        logger.picture("flights", picture, frames)
            latest.clear()
            latest.update({f"eval/{name}/success": result["success"] for name, result in results.items()})
            (run / "eval.json").write_text(json.dumps({"frames": frames, "scenarios": results}, indent=2) + "\n")
        console.say(results_table(results, f"unseen maps after {frames / 1e6:.1f} M frames, {clock(timers.elapsed)}"))
        log(latest)

    def save() -> None:
        """The policy to fly, the state to go on from, and the curves so far."""
        with timers("save"), disk("saving"):
            about = {
                "decimation": sim_settings.decimation,
                "dt": sim_settings.dt,
                "lidar_vfov": list(sim_settings.lidar.vfov),
                "frames": frames,
                "seconds": timers.elapsed,
                "seed": cfg.seed,
                "commit": code_version(),
                "command": " ".join(["scripts/train.py", *sys.argv[1:]]),
                "scores": dict(latest),
            }
            files.save(run / "policy.pt", policy_content(ppo.averaged, ppo.value_norm, train.encoder, about))
            files.save(run / "training_state.pt", {"iteration": iteration, "frames": frames, "ppo": ppo.state()})
            draw_curves(run / "curves.png", f"{run}   {clock(timers.elapsed)}", loggers[0].rows)

    with TrainingConsole(str(run), total) as console:
        batches = iter(collector)
        while iteration < train.iterations and not stop:
            began = time.perf_counter()
            with timers("collect"):
                batch = next(batches)
            with timers("update"):
                try:
                    metrics = ppo.update(batch, progress=frames / total)
                except NotFinite as error:
                    files.save(run / "not_finite.pt", replay_content(cfg, ppo, batch, iteration, error.name))
                    sys.exit(
                        f"error: iteration {iteration}: {error.name} is not finite; training stopped."
                        f" Replay it with: python scripts/replay.py {run / 'not_finite.pt'}"
                    )
            iteration += 1
            frames += train.frames_per_batch
            ended = batch["next", "done"].squeeze(-1)
            flights.add({name: batch["next", "stats", name][ended].view(-1).cpu().numpy() for name in SHOWN})
            speed = train.frames_per_batch / (time.perf_counter() - began)
            metrics |= flights.means() | {"charts/SPS": speed, "charts/minutes": timers.elapsed / 60}
            metrics["perf/memory_mb"] = psutil.Process().memory_info().rss / 1e6
            log(metrics)
            console.update(frames, frames / timers.elapsed, metrics | latest, timers.shares())
            last = iteration == train.iterations
            if not last and train.eval_interval and iteration % train.eval_interval == 0:
                evaluate(train.eval_episodes)
            if not last and train.save_interval and iteration % train.save_interval == 0:
                save()

        # The end, or Ctrl-C: save first, then show.
        save()
        if not stop:
            evaluate(train.final_episodes)
            save()
        elif not latest:
            evaluate(min(64, train.eval_episodes))
            save()
    stop.restore()
    collector.shutdown()
    for logger in loggers:
        logger.close()
    print(
        f"{'stopped' if stop else 'done'} after {frames / 1e6:.1f} M frames in {clock(timers.elapsed)}"
        f" ({frames / timers.elapsed:,.0f} frames/s), peak memory {peak_memory_mb():,.0f} MB\n"
        f"policy, curves and pictures: {run}\n"
        f"fly it with: python scripts/eval.py policy={run / 'policy.pt'}"
    )
    if disk.failures:
        print(f"error: {disk.failures} writes to {run} failed; see the warning above", file=sys.stderr)
    sys.exit(stop.exit_code or int(disk.failures > 0))


SHOWN = (*OUTCOMES, "return", "length")  # of flights that ended while training


def make_policy(cfg: DictConfig, encoder: str, settings) -> ActorCritic:
    """A new network, or one that starts from the weights of `checkpoint`."""
    policy = ActorCritic(ENCODERS[encoder](settings.lidar.shape, settings.lidar.range), cfg.drone.action_limit)
    if cfg.checkpoint is not None:
        try:
            start, _ = load_policy(cfg.checkpoint)
            policy.load_state_dict(start.state_dict())
        except (ValueError, RuntimeError) as error:
            reason = str(error) if isinstance(error, ValueError) else f"is not a network of encoder={encoder}"
            raise ConfigError("checkpoint", cfg.checkpoint, reason) from error
    return policy.to(settings.device)


def make_loggers(cfg: DictConfig, kind: str, run: Path) -> list[Logger]:
    """metrics.csv, and what `logger` asks for."""
    loggers: list[Logger] = [CsvLogger(run / "metrics.csv")]
    if kind == "wandb":
        described = OmegaConf.to_container(cfg, resolve=True) | {"code_version": code_version()}
        wanted = {key: cfg.wandb[key] for key in ("mode", "project", "entity", "run_id")}
        loggers.append(WandbLogger(run, described, name=cfg.wandb.name or "-".join(run.parts[-2:]), **wanted))
    elif kind == "tensorboard":
        loggers.append(TensorBoardLogger(run / "tensorboard"))
    return loggers


def replay_content(cfg: DictConfig, ppo: PPO, batch, iteration: int, name: str) -> dict:
    """What scripts/replay.py needs to fail in the same way."""
    settings = OmegaConf.to_yaml(cfg, resolve=True)
    tensors = {"|".join(key) if isinstance(key, tuple) else key: v for key, v in batch.items(True, True)}
    state = {"config": settings, "ppo": ppo.state(), "batch": tensors, "batch_size": list(batch.batch_size)}
    return state | {"iteration": iteration, "name": name}


def run_directory() -> Path:
    """Hydra's, as short as it can be written."""
    run = Path(HydraConfig.get().runtime.output_dir)
    return run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run


def peak_memory_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    config.launch(main, __doc__, "train")
