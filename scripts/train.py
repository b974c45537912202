"""Train a drone to fly to a goal among static and moving obstacles.

navrl train headless=True env.num_envs=1024          train with the defaults: half an hour on two cores
navrl train max_frame_num=100_000_000 seed=1         a longer run with another seed
navrl train resume=runs/2026-11-16/18-31-09          continue a run that was stopped, to the bit
navrl train encoder=navrl checkpoint=file.pt         a new run from NavRL's own weights
navrl train wandb.mode=online wandb.project=drones   follow the run in a browser

`python scripts/train.py …` is the same command. Every key below can be given as key=value; those of a section with a
dot, as in env.num_envs=64.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import gc
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from omegaconf import DictConfig

from navrl.checkpoint.retention import iteration_of, states_of
from navrl.checkpoint.stop import StopRequest
from navrl.cli import hydra_command
from navrl.collect.batches import make_batches
from navrl.collect.rollouts import FOLDER, RolloutArchive
from navrl.io.files import DiskGuard
from navrl.monitor.console import TrainingConsole, clock
from navrl.monitor.flights import RecentFlights
from navrl.monitor.metrics import code_version
from navrl.monitor.performance import PerformanceMonitor, peak_memory_mb
from navrl.ppo.ppo import NotFinite
from navrl.task.env import NavigationEnv
from navrl.train import resume
from navrl.train.build import make_env, make_ppo
from navrl.train.directory import RunDirectory, fresh_directory, remove_fresh_directory
from navrl.train.evaluation import PeriodicEvaluation
from navrl.train.loggers import Loggers
from navrl.train.progress import Progress
from navrl.train.replay import REPLAY
from navrl.train.resume import Resumed
from navrl.train.saving import Saving
from navrl.train.settings import TrainSettings, read_train, shell_word

TRACE_INTERVAL = 20  # iterations between writes of the trace: what a crash can cost


@hydra_command("train", __doc__)
def main(cfg: DictConfig) -> None:
    # Everything the user wrote is read, and may be refused, before anything is built.
    resumed = resume.find(cfg)
    settings = read_train(resumed.cfg if resumed else cfg, resume.given_overrides(resumed))
    if resumed:
        resume.check_resumed(resumed, settings)
        if resumed.run == resumed.history:
            remove_fresh_directory()  # Hydra made one
    if code := train(settings, resumed.run if resumed else fresh_directory(), resumed):
        sys.exit(code)


def train(
    settings: TrainSettings,
    path: Path,
    resumed: Resumed | None = None,
    make_env: Callable[..., NavigationEnv] = make_env,
) -> int:
    """Train in the directory `path`; returns the exit code. Whatever raises, the run is saved and can be resumed."""
    broken: NotFinite | None = None
    state = resumed.state if resumed else None
    with ExitStack() as stack:
        # The learner: networks, optimizer, value normalizer; from scratch, from a file, or (below) as it was saved.
        resume.seed_random_streams(settings.seed)
        ppo = make_ppo(settings, None if resumed else settings.start_from)
        run, disk = stack.enter_context(RunDirectory(path)), DiskGuard()

        # The world: many maps, a thousand drones, the task; and what carries batches to the learner.
        print(f"drawing {settings.scene.num_maps} maps and building {settings.sim.num_envs} drones")
        env = make_env(settings.scene, settings.sim, settings.task)
        stack.callback(env.close, raise_if_closed=False)
        with resume.as_one_line(resumed and resumed.history):
            flown = resumed.state["batches"] if resumed and resumed.same_world else None
            batches = make_batches(env, ppo, settings.collect, flown)
        stack.callback(batches.shutdown)

        # Where the run is: a resumed one continues to the bit.
        flights, version = RecentFlights(), code_version()
        monitor = PerformanceMonitor(settings.learner_device, path / "trace.json" if settings.logging.trace else None)
        with resume.as_one_line(resumed and resumed.history):
            progress = Progress(settings, state)
            if state:
                ppo.load_state(state["ppo"])  # now, because making a collector calls the policy
                flights.load_state(state["flights"])
                monitor.load_state(state["performance"])
                resume.set_random_state(state["random"])
        monitor.watch(env, "step_and_maybe_reset", "simulation")
        monitor.watch(batches.actor, "forward", "policy")
        monitor.watch(batches, "carry", "transfer")
        monitor.watch(ppo, "compute_targets", "advantages")

        # What is written on the way, and what the person sees. From here on a request to stop saves the run.
        stop = stack.enter_context(StopRequest())
        run.take_over(progress.iteration, settings.config, list(settings.overrides))
        archive = None
        if settings.collect.rollout_interval:
            archive = RolloutArchive(path / FOLDER, disk, iteration=progress.iteration)
            stack.callback(archive.shutdown)
        loggers = stack.enter_context(Loggers(settings, path, disk, version, resumed))
        saving = stack.enter_context(
            Saving(settings, path, disk, progress, ppo, batches, flights, monitor, loggers, version)
        )
        console = stack.enter_context(TrainingConsole(str(path), progress.total))
        evaluation = PeriodicEvaluation(settings, saving, console, stop)
        if settings.sim.engine == "isaac":
            console.say("evaluations during training fly on the warp engine: Isaac holds one world per process")

        gc.collect()
        gc.freeze()  # what was built to stay is not scanned again: that would take 10 ms at odd moments
        if resumed and not progress.done and progress.due(settings.evaluation.interval) and not progress.evaluated:
            evaluation.run(settings.evaluation.episodes)  # the stop cut it short
        while not progress.done and not stop:
            began = time.perf_counter()
            try:
                with monitor.timer("collect"):
                    batch = next(batches)
                with monitor.timer("update"):
                    metrics = ppo.update(batch, progress.fraction)
            except NotFinite as error:
                broken = error
                break
            progress.advance()
            if archive and progress.due(settings.collect.rollout_interval):
                archive.append(batch.frames, progress.label() | {"lidar_range": settings.sim.lidar.range})
            metrics |= flights.add(batch.frames) | monitor.memory(batch.bytes()) | {
                "charts/SPS": progress.frames_per_batch / (time.perf_counter() - began),
                "charts/minutes": monitor.elapsed / 60,
                "charts/staleness": batches.staleness,
            }  # fmt: skip
            del batch  # its network input need not wait in memory while the next one is collected
            if progress.due(settings.logging.perf_interval):
                metrics |= monitor.end_window()
                console.say(monitor.get_summary())
            if progress.due(TRACE_INTERVAL):
                with disk("writing the trace"):
                    monitor.write_trace()
            with monitor.timer("log"):
                loggers.log(metrics, progress.frames)
            speed = progress.frames / monitor.elapsed
            console.update(progress.frames, speed, metrics | progress.scores, monitor.shares())
            if progress.done or stop:
                break
            if progress.due(settings.evaluation.interval):
                evaluation.run(settings.evaluation.episodes)
            if saving.due():
                saving.save()

        # The end, Ctrl-C or worse: save first, then show.
        saving.save(keep=True)
        if broken:
            saving.save_replay(broken)
        elif not stop:
            evaluation.run(settings.evaluation.final_episodes)
            saving.save(keep=True)
        elif not progress.scores and stop.signal == signal.SIGINT:  # a person, who has not seen anything yet
            evaluation.quick_look()
            saving.save(keep=True)
        if stop or broken:
            evaluation.draw_curves()
        with disk("writing the trace"):
            monitor.write_trace()

    summarize(path, progress, monitor, saving, archive, disk, bool(stop) or broken is not None)
    if broken:
        where = f"iteration {progress.iteration}: {broken.name} is not finite; training stopped."
        print(f"error: {where} Replay it with: navrl replay {shell_word('file', path / REPLAY)}", file=sys.stderr)
    return 1 if disk.failures or broken else stop.exit_code


def summarize(
    path: Path,
    progress: Progress,
    monitor: PerformanceMonitor,
    saving: Saving,
    archive: RolloutArchive | None,
    disk: DiskGuard,
    stopped: bool,
) -> None:
    """Say what was done, what was saved, and what to type next."""
    now = otherwise = 0
    with disk("looking at what was saved"):
        now, otherwise = saving.folder.bytes_saved()
    written = saving.saver.get_stats()
    print(
        f"{'stopped' if stopped else 'done'} after {progress.frames / 1e6:.1f} M frames in {clock(monitor.elapsed)}"
        f" ({progress.frames / monitor.elapsed:,.0f} frames/s), peak memory {peak_memory_mb():,.0f} MB\n"
        f"saved {written['saved']} times, {written['dropped']} dropped, compressed to {100 * written['ratio']:.0f} %;"
        f" directory {now / 1e6:.1f} MB, {otherwise / 1e6:.1f} MB had every state been kept\n"
        f"curves and pictures: {path}"
    )
    if saving.policy_iteration == progress.iteration:
        print(f"fly its policy with: navrl eval {shell_word('policy', path / 'policy.pt')}")
    elif saving.policy_iteration is not None:
        print(f"{path / 'policy.pt'} is of iteration {saving.policy_iteration}: later ones could not be saved")
    else:
        print("no policy could be saved")
    if archive:
        stored = archive.stats
        share = 100 * (1 - stored["bytes"] / max(1, stored["raw_bytes"]))
        skipped = f"{stored['left_out']} skipped (disk too slow)"
        where = shell_word("run", path)
        print(f"stored {stored['stored']} rollouts, {skipped}, {share:.0f} % saved: navrl rollouts {where}")
    if stopped and (states := states_of(path)):
        lost = progress.iteration - iteration_of(states[0])
        print(f"resume {f'{lost} iterations earlier ' if lost else ''}with: navrl train {shell_word('resume', path)}")
    if disk.failures:
        print(f"error: {disk.failures} writes to {path} failed; see the warning above", file=sys.stderr)


if __name__ == "__main__":
    main()
