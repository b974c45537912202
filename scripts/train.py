"""Train a drone to fly to a goal among static and moving obstacles.

python scripts/train.py headless=True env.num_envs=1024        train with the defaults: half an hour on two cores
python scripts/train.py max_frame_num=100_000_000 seed=1       a longer run with another seed
python scripts/train.py resume=runs/2026-11-16/18-31-09        go on with a run that was stopped, to the bit
python scripts/train.py encoder=navrl checkpoint=file.pt       a new run from NavRL's own weights
python scripts/train.py wandb.mode=online wandb.project=drones follow the run in a browser

Every key below can be given as key=value; those of a section with a dot, as in env.num_envs=64.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDictBase

from navrl import config, resume
from navrl.io.files import MANIFEST, DiskGuard, Written, write_checkpoint
from navrl.checkpoint.retention import states_of
from navrl.checkpoint.saver import AsyncCheckpointSaver
from navrl.checkpoint.stop import StopRequest
from navrl.collect.batches import PrefetchedBatches, SerialBatches
from navrl.collect.packed import Packer
from navrl.collect.rollouts import FOLDER, RolloutArchive
from navrl.config import ConfigError
from navrl.monitor.console import TrainingConsole, clock
from navrl.monitor.curves import draw_curves
from navrl.monitor.flights import RecentFlights, draw_flights, results_table
from navrl.monitor.metrics import CsvLogger, Logger, TensorBoardLogger, WandbLogger, code_version, read_rows
from navrl.monitor.performance import PerformanceMonitor
from navrl.ppo.networks import ENCODERS, ActorCritic
from navrl.ppo.policy_file import TRAINING_STATE, describe, load_policy, policy_content
from navrl.ppo.ppo import PPO, HeldBatch, NotFinite
from navrl.sim.engine import make_simulator
from navrl.sim.scene import TRAINING, generate_scene
from navrl.sim.simulator import SimSettings
from navrl.task.env import NavigationEnv, TaskSettings
from navrl.task.evaluation import Evaluator, Scenario, summarize
from navrl.task.kernels import OUTCOMES


@hydra.main(config_path="../cfg", config_name="train", version_base=None)
@config.user_errors
def main(cfg: DictConfig) -> None:
    # Everything the user wrote is read, and may be refused, before anything is built.
    resumed = resume.find(cfg)
    cfg = resumed.cfg if resumed else cfg
    sim_settings, task_settings = config.sim_settings(cfg), config.task_settings(cfg)
    train = config.train_settings(cfg, sim_settings)
    algo = config.ppo_settings(cfg, train.learner_device)
    scenarios = config.scenarios(cfg)
    config.check_obstacles(cfg)
    resume.seed_random_streams(cfg.seed)
    start_from = None if resumed else train.start_from
    policy, value_norm = make_policy(train, sim_settings, task_settings, start_from)
    network, version = describe(policy, train.encoder), code_version()
    files = resume.open_run(resumed, train, network)
    run, overrides, described = files.run, resume.given_overrides(resumed), OmegaConf.to_yaml(cfg)

    # The world: many maps, a thousand drones, the task.
    print(f"drawing {cfg.env.num_maps} maps and building {sim_settings.num_envs} drones")
    scene = generate_scene(
        cfg.seed, cfg.env.num_maps, cfg.env.num_obstacles, cfg.env_dyn.num_obstacles, cfg.env.route, stream=TRAINING
    )
    env = NavigationEnv(make_simulator(scene, sim_settings), task_settings)
    # Isaac holds one world a process, so evaluations on the way fly on Warp; scripts/eval.py sim=isaac flies on Isaac.
    if sim_settings.engine == "isaac":
        print("evaluations on the way fly on the warp engine: Isaac holds one world a process")
    evaluator = Evaluator(train.eval_maps, train.eval_seed, replace(sim_settings, engine="warp"), task_settings)

    # The learner, and what carries data to it.
    ppo = PPO(policy, algo, cfg.seed)
    ppo.value_norm.load_state_dict(value_norm or ppo.value_norm.state_dict())
    packer = None
    if train.compress_rollout != "none":
        columns = math.prod(sim_settings.lidar.shape) if train.compress_rollout == "lidar" else None
        packer = Packer(policy.encoder.prepare, train.batch_steps, columns)
    from_before = resumed.state["batches"] if resumed and resumed.same_world else None
    with resume.as_one_line(resumed and resumed.history):
        if train.prefetch:
            batches = PrefetchedBatches(env, ppo, train.frames_per_batch, train.prefetch, cfg.seed, from_before, packer)
        else:
            batches = SerialBatches(env, ppo, train.frames_per_batch, train.return_same_td, from_before, packer)

    # Where the run is.
    flights = RecentFlights()
    monitor = PerformanceMonitor(train.learner_device, run / "trace.json" if train.trace else None)
    monitor.watch(env, "step_and_maybe_reset", "simulation")
    monitor.watch(batches.actor, "forward", "policy")
    monitor.watch(batches, "carry", "transfer")
    monitor.watch(ppo, "lay_out", "advantages")
    scores: dict[str, float] = {}  # success on unseen maps at the last evaluation
    scored: dict[str, int] = {}  # when that was, and over how many flights
    iteration = frames = 0
    if resumed:
        state = resumed.state
        with resume.as_one_line(resumed.history):
            ppo.load_state(state["ppo"])  # now, because the collector tries the policy out when it is made
            flights.load_state(state["flights"])
            monitor.load_state(state["performance"])
            resume.set_random_state(state["random"])
        iteration, frames, scores, scored = state["iteration"], state["frames"], state["scores"], state["scored"]
    last = iteration + max(0, train.total_frames - frames) // train.frames_per_batch
    total = frames + (last - iteration) * train.frames_per_batch

    # What the person sees, and what stays on disk.
    loggers = make_loggers(cfg, train, run, version, resumed)
    disk, stop = DiskGuard(), StopRequest()
    saver = AsyncCheckpointSaver(train.queue_size, train.compression_level, run / MANIFEST, disk)
    archive = RolloutArchive(run / FOLDER, disk, iteration=iteration) if train.rollout_interval else None
    broken: NotFinite | None = None
    buffers = 0  # bytes of a batch

    def log(metrics: dict[str, float]) -> None:
        with monitor.timer("log"):
            for logger in loggers:
                with disk("logging"):
                    logger.log(metrics, frames)

    def about() -> dict:
        """What a user of this policy must know."""
        return {
            "decimation": sim_settings.decimation,
            "dt": sim_settings.dt,
            "lidar_vfov": list(sim_settings.lidar.vfov),
            "frames": frames,
            "seconds": monitor.elapsed,
            "seed": cfg.seed,
            "commit": version,
            "command": " ".join(["scripts/train.py", *overrides]),
            "scores": scores | scored,
        }

    def fly_averaged(seen: TensorDictBase) -> torch.Tensor:
        return ppo.averaged.act(**seen.to(ppo.device)).to(seen.device)

    def evaluate(episodes: int, scenarios: list[Scenario] = scenarios, patience: float = 0.0) -> None:
        """Fly the averaged policy on unseen maps: scores, table and picture. A request to stop waits `patience` s."""

        def give_way(*_, **__) -> None:
            if stop and stop.seconds > patience:
                raise InterruptedError

        with monitor.timer("evaluate"):
            try:
                flown = {s: evaluator.fly(s, episodes, fly_averaged, give_way) for s in scenarios}
            except InterruptedError:
                return
            results = {str(scenario): summarize(flights) for scenario, flights in flown.items()}
            scores.update({f"eval/{name}/success": result["success"] for name, result in results.items()})
            if not patience:  # else it was only a quick look
                scored.update(frames=frames, episodes=episodes)
            if train.keep.best and not patience:
                score = sum(result["success"] for result in results.values()) / len(results)
                content = policy_content(network, ppo.averaged.state_dict(), ppo.value_norm.state_dict(), about())
                saver.save_async(content, files.best(iteration, score), compress=False, keep=True)
            with disk("drawing an evaluation"):
                (run / "eval.json").write_text(json.dumps({"frames": frames, "scenarios": results}, indent=2) + "\n")
                if train.picture:
                    picture = run / f"flights-{scenarios[0]}.png"
                    title = f"{run.name}   {scenarios[0]}   after {frames / 1e6:.1f} M frames"
                    draw_flights(picture, title, flown[scenarios[0]])
                    for logger in loggers:
                        logger.picture("flights", picture, frames)
        console.say(results_table(results, f"unseen maps after {frames / 1e6:.1f} M frames, {clock(monitor.elapsed)}"))
        log(scores)
        draw()

    def draw() -> None:
        with monitor.timer("evaluate"), disk("drawing curves"):
            draw_curves(run / "curves.png", f"{run}   {clock(monitor.elapsed)}", loggers[0].rows)

    def state_now() -> dict:
        """All that is needed to go on exactly from here; live tensors, which the saver copies."""
        return {
            "format": TRAINING_STATE,
            "config": described,
            "overrides": overrides,
            "machine": resume.machine_now(),
            "network": network,
            "about": about(),
            "iteration": iteration,
            "frames": frames,
            "ppo": ppo.state(),
            "batches": batches.state(),
            "random": resume.random_state(),
            "flights": flights.state(),
            "performance": monitor.state(),
            "scores": scores,
            "scored": scored,
            "wandb_id": next((logger.run.id for logger in loggers if isinstance(logger, WandbLogger)), None),
        }

    def save(keep: bool = False) -> None:
        nonlocal saved_at
        with monitor.timer("save"):
            saver.save_async(state_now(), files.state(iteration), train.compress, keep, after=keep_policy)
        saved_at = time.monotonic()

    def keep_policy(state: dict, _: Written) -> None:
        """In the background, once a state is safe: the policy to fly, and room for the next."""
        content = policy_content(network, state["ppo"]["averaged"], state["ppo"]["value_norm"], state["about"])
        write_checkpoint(run / "policy.pt", content, manifest=saver.manifest)
        if train.keep.every and state["iteration"] % train.keep.every == 0:
            write_checkpoint(files.policy(state["iteration"]), content, manifest=saver.manifest)
        files.prune()

    def due(*intervals: int) -> bool:
        return any(every and iteration % every == 0 for every in intervals)

    saved_at = time.monotonic()
    gc.collect()
    gc.freeze()  # what was built to stay is not looked through again: that would take 10 ms at odd moments
    with TrainingConsole(str(run), total) as console:
        if resumed and iteration < last and due(train.eval_interval) and scored.get("frames") != frames:
            evaluate(train.eval_episodes)  # that the stop cut short
        while iteration < last and not stop:
            began = time.perf_counter()
            try:
                with monitor.timer("collect"):
                    batch = next(batches)
                with monitor.timer("update"):
                    metrics = ppo.update(batch, progress=frames / total)
            except NotFinite as error:
                broken = error
                break
            iteration += 1
            frames += train.frames_per_batch
            if archive and due(train.rollout_interval):
                about_it = {"iteration": iteration, "frames": frames, "lidar_range": sim_settings.lidar.range}
                archive.append(batch, about_it)
            ended = batch["next", "done"].squeeze(-1)
            flights.add({name: batch["next", "stats", name][ended].view(-1).cpu().numpy() for name in SHOWN})
            metrics |= flights.means() | {
                "charts/SPS": train.frames_per_batch / (time.perf_counter() - began),
                "charts/minutes": monitor.elapsed / 60,
                "charts/staleness": batches.staleness,
            }
            buffers = buffers or batch.bytes()
            metrics |= monitor.memory(buffers)
            if due(train.perf_interval):
                metrics |= monitor.end_window()
                console.say(monitor.get_summary())
            if due(TRACED):
                with disk("writing the trace"):
                    monitor.write_trace()
            log(metrics)
            console.update(frames, frames / monitor.elapsed, metrics | scores, monitor.shares())
            if iteration == last or stop:
                break
            if due(train.eval_interval):
                evaluate(train.eval_episodes)
            late = train.save_minutes and time.monotonic() - saved_at > 60 * train.save_minutes
            if late or due(train.save_interval, train.keep.every):
                save()

        # The end, Ctrl-C or worse: save first, then show.
        save(keep=True)
        if broken:
            content = replay_content(cfg, ppo, broken, iteration, frames / total)
            saver.save_async(content, run / "not_finite.pt", compress=False, keep=True)
        elif not stop:
            evaluate(train.final_episodes)
            save(keep=True)
        elif not scores and stop.signal == signal.SIGINT:  # a person, who has not seen anything yet: a quick look
            evaluate(min(64, train.eval_episodes), scenarios[:1], patience=5.0)
            save(keep=True)
        if stop or broken:
            draw()
    saver.shutdown()
    batches.shutdown()
    if archive:
        archive.shutdown()
    with disk("writing the trace"):
        monitor.write_trace()
    for logger in loggers:
        try:
            logger.close()
        except Exception as error:  # whatever a logger's last words fail with, the run is saved
            disk.failed("closing a log", error)
    stop.restore()
    now = otherwise = 0
    with disk("looking at what was saved"):
        now, otherwise = files.bytes_saved()
    written = saver.get_stats()
    files.close()
    print(
        f"{'stopped' if stop or broken else 'done'} after {frames / 1e6:.1f} M frames in {clock(monitor.elapsed)}"
        f" ({frames / monitor.elapsed:,.0f} frames/s), peak memory {peak_memory_mb():,.0f} MB\n"
        f"saved {written['saved']} times, {written['dropped']} dropped, packed to {100 * written['ratio']:.0f} %;"
        f" directory {now / 1e6:.1f} MB, {otherwise / 1e6:.1f} MB had every state been kept\n"
        f"policy, curves and pictures: {run}\n"
        f"fly it with: python scripts/eval.py policy={run / 'policy.pt'}"
    )
    if archive:
        stored = archive.stats
        share = 100 * (1 - stored["bytes"] / max(1, stored["raw_bytes"]))
        print(
            f"stored {stored['stored']} rollouts, {stored['left_out']} left out (disk too slow), {share:.0f} % saved:"
            f" python scripts/rollouts.py {run}"
        )
    if (stop or broken) and states_of(run):
        print(f"go on with: python scripts/train.py resume={run}")
    if broken:
        print(
            f"error: iteration {iteration}: {broken.name} is not finite; training stopped."
            f" Replay it with: python scripts/replay.py {run / 'not_finite.pt'}", file=sys.stderr,
        )  # fmt: skip
    if disk.failures:
        print(f"error: {disk.failures} writes to {run} failed; see the warning above", file=sys.stderr)
    if code := int(disk.failures > 0 or broken is not None) or stop.exit_code:
        sys.exit(code)


SHOWN = (*OUTCOMES, "return", "length")  # of flights that ended while training
TRACED = 20  # iterations between writes of the trace: what a crash can cost


def make_policy(
    train: config.TrainSettings, sim: SimSettings, task: TaskSettings, start_from: str | None
) -> tuple[ActorCritic, dict[str, torch.Tensor] | None]:
    """A new network, or one that starts from the weights in a file, then with its value normaliser."""
    policy = ActorCritic(ENCODERS[train.encoder](sim.lidar.shape, sim.lidar.range), task.action_limit)
    policy = policy.to(train.learner_device)
    if start_from is None:
        return policy, None
    try:
        start, known = load_policy(start_from, task.action_limit)
    except ValueError as error:
        raise ConfigError("checkpoint", start_from, str(error)) from error
    ours = describe(policy, train.encoder)
    for name, value in known["network"].items():
        if value != ours[name]:
            raise ConfigError("checkpoint", start_from, f"has {name}={value}, but this run has {ours[name]}")
    policy.load_state_dict(start.state_dict())
    # NavRL's normaliser belongs to NavRL's rewards, a hundred times as large as ours.
    return policy, known["value_norm"] if "command" in known["about"] else None


def make_loggers(
    cfg: DictConfig, train: config.TrainSettings, run: Path, version: str, resumed: resume.Resumed | None
) -> list[Logger]:
    """metrics.csv, and what `logger` asks for; of a run that is gone on with, where it was when it was saved."""
    frames, rows, wandb_id = 0, [], train.wandb["run_id"]
    if resumed:
        frames, wandb_id = resumed.state["frames"], wandb_id or resumed.state["wandb_id"]
        with contextlib.suppress(FileNotFoundError):
            rows = [row for row in read_rows(resumed.history / "metrics.csv") if row["frames"] <= frames]
    loggers: list[Logger] = [CsvLogger(run / "metrics.csv", rows)]
    if train.logger == "wandb":
        described = OmegaConf.to_container(cfg, resolve=True) | {"code_version": version}
        name = train.wandb["name"] or "-".join(run.parts[-2:])
        loggers.append(WandbLogger(run, described, **train.wandb | {"name": name, "run_id": wandb_id}))
    elif train.logger == "tensorboard":
        loggers.append(TensorBoardLogger(run / "tensorboard", frames))
    return loggers


def replay_content(cfg: DictConfig, ppo: PPO, broken: NotFinite, iteration: int, progress: float) -> dict:
    """What scripts/replay.py needs to fail in the same way."""
    data, packed = broken.data, {}
    if isinstance(data, HeldBatch):  # unpacked: whoever replays it wants to look at it
        rows = torch.empty(data.rows.shape)
        data.rows.select(torch.arange(len(rows)), rows)
        data, packed = data.small, {"rows": rows, "ends": data.ends}
    tensors = {"|".join(key) if isinstance(key, tuple) else key: v for key, v in data.items(True, True)}
    return {
        "config": OmegaConf.to_yaml(cfg, resolve=True),
        "ppo": ppo.state(),
        "data": tensors,
        "packed": packed,
        "batch_size": list(data.batch_size),
        "iteration": iteration,
        "progress": progress,
        "name": broken.name,
    }


def peak_memory_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    config.launch(main, __doc__, "train")
