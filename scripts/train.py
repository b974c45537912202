"""Train a drone to fly to a goal among static and moving obstacles.

navrl train headless=True env.num_envs=1024          train with the defaults: half an hour on two cores
navrl train max_frame_num=100_000_000 seed=1         a longer run with another seed
navrl train resume=runs/2026-11-16/18-31-09          continue a run that was stopped, to the bit
navrl train encoder=navrl checkpoint=file.pt         a new run from NavRL's own weights
navrl train wandb.mode=online wandb.project=drones   follow the run in a browser
torchrun --nproc-per-node 2 scripts/train.py …       the same run shared out over two processes, or GPUs

`python scripts/train.py …` is the same command. Every key below can be given as key=value; those of a section with a
dot, as in env.num_envs=64.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import gc
import logging
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
from navrl.collect.batches import make_batches, own_state
from navrl.collect.rollouts import FOLDER, RolloutArchive
from navrl.io.files import DiskGuard
from navrl.monitor.console import TrainingConsole, clock
from navrl.monitor.flights import RecentFlights
from navrl.monitor.metrics import code_version
from navrl.monitor.performance import PerformanceMonitor, peak_memory_mb
from navrl.native.sharing import SharedCores
from navrl.ppo.batch import join_frames
from navrl.ppo.ppo import NotFinite
from navrl.ranks import ALONE, RankFailed, Ranks, RanksSettings, connect, ended_by_request, remember
from navrl.settings import read
from navrl.task.env import NavigationEnv
from navrl.train import resume
from navrl.train.build import make_env, make_ppo, share_of
from navrl.train.directory import RunDirectory
from navrl.train.evaluation import PeriodicEvaluation
from navrl.train.loggers import Loggers
from navrl.train.progress import Progress
from navrl.train.replay import REPLAY
from navrl.train.report import REPORT, is_run, report
from navrl.train.resume import Resumed
from navrl.train.saving import Saving
from navrl.train.settings import TrainSettings, check_same, plain, read_train, shell_word

TRACE_INTERVAL = 20  # iterations between writes of the trace: what a crash can cost


@hydra_command("train", __doc__)
def main(cfg: DictConfig) -> None:
    # Everything the user wrote is read, and may be refused, before anything is built. Rank 0 looks at files.
    with connect(read(RanksSettings, plain(cfg))) as ranks:
        if not ranks.first:
            logging.getLogger("navrl").setLevel(logging.ERROR)  # rank 0 says it
        check_same(plain(cfg), ranks)
        with ranks.together():
            found = resume.find(cfg, ranks) if ranks.first else None
        resumed = ranks.from_first(found)
        with ranks.together():
            settings = read_train(resumed.cfg if resumed else cfg, resume.given_overrides(resumed), ranks)
            if resumed:
                resume.check_resumed(resumed, settings)
            path = resume.directory(resumed) if ranks.first else Path()
        if resumed and resume.finished(resumed, settings):
            if ranks.first:
                print(f"{path} is finished: {resumed.state['frames'] / 1e6:.1f} M frames")
            return
        if code := train(settings, path, resumed, make_env, ranks):
            sys.exit(code)


def train(
    settings: TrainSettings,
    path: Path,
    resumed: Resumed | None = None,
    make_env: Callable[..., NavigationEnv] = make_env,
    ranks: Ranks = ALONE,
) -> int:
    """Train in the directory `path`; returns the exit code. Whatever raises, the run is saved and can be resumed.

    Of several ranks each has its share of the drones, and all learn the same; rank 0 alone writes and prints.
    """
    broken: NotFinite | None = None
    state = resumed.state if resumed else None
    with ExitStack() as stack:
        # The learner: networks, optimizer, value normalizer; from scratch, from a file, or (below) as it was saved.
        resume.seed_random_streams(settings.seed)
        stack.enter_context(SharedCores())
        ppo, disk = make_ppo(settings, None if resumed else settings.start_from, ranks), DiskGuard()
        with ranks.together():
            run = stack.enter_context(RunDirectory(path)) if ranks.first else None
        if run:
            stack.callback(write_report, path, disk)  # last, whatever ends the run: it shows what was saved

        # The world: many maps, a thousand drones, the task; and what carries batches to the learner.
        if ranks.first:
            shared = f", shared out over {ranks.size} ranks" if ranks.size > 1 else ""
            print(f"drawing {settings.scene.num_maps} maps and building {settings.sim.num_envs} drones{shared}")
        env = make_env(settings.scene, share_of(settings.sim, ranks), settings.task)
        stack.callback(env.close, raise_if_closed=False)
        with ranks.together(), resume.as_one_line(resumed and resumed.history):
            flown = own_state(resumed.state["batches"], env, ranks) if resumed and resumed.same_world else None
            batches = make_batches(env, ppo, settings.collect, flown)
        stack.callback(batches.shutdown)

        # Where the run is: a resumed one continues to the bit.
        flights, version = RecentFlights(), code_version()
        trace = path / "trace.json" if settings.logging.trace and ranks.first else None
        monitor = PerformanceMonitor(settings.learner_device, trace)
        with ranks.together(), resume.as_one_line(resumed and resumed.history):
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
        if ranks.size > 1:
            monitor.watch(ranks, "sum", "all-reduce")
            monitor.watch(ranks, "most", "wait")

        # What is written on the way, and what the person sees. From here on a request to stop saves the run.
        stop = stack.enter_context(StopRequest(ranks.size == 1))
        archive = None
        with ranks.together():
            if run:
                run.take_over(progress.iteration, settings.config, list(settings.overrides))
                remember(str(path.absolute()))
            if run and settings.collect.rollout_interval:
                archive = RolloutArchive(path / FOLDER, disk, iteration=progress.iteration)
                stack.callback(archive.shutdown)
            loggers = stack.enter_context(Loggers(settings, path, disk, version, resumed, ranks))
            saving = stack.enter_context(
                Saving(settings, path, disk, progress, ppo, batches, flights, monitor, loggers, version, ranks)
            )
            console = stack.enter_context(TrainingConsole(str(path), progress.total, quiet=not ranks.first))
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
                with monitor.timer("collect"), ranks.together():
                    batch = next(batches)
                with monitor.timer("update"):
                    metrics = ppo.update(batch, progress.fraction)
            except NotFinite as error:
                broken = error
                break
            except RankFailed as error:
                if error.kind != NotFinite.__name__:
                    raise
                broken = NotFinite(str(error))
                break
            progress.advance()
            metrics |= flights.add(batch.frames, ranks)
            store = progress.due(settings.collect.rollout_interval)
            whole = ranks.gather(batch.frames) if store else []
            with ranks.together():
                if archive and store:
                    label = progress.label() | {"lidar_range": settings.sim.lidar.range}
                    archive.append(join_frames(whole), label)
                metrics |= monitor.memory(batch.bytes()) | {
                    "charts/SPS": progress.frames_per_batch / (time.perf_counter() - began),
                    "charts/minutes": monitor.elapsed / 60,
                    "charts/staleness": batches.staleness,
                }
                del batch, whole  # its network input need not wait in memory while the next one is collected
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
            asked, save = ranks.most(stop.noted, int(saving.due()))
            stop.agree(asked)
            if progress.done or stop:
                break
            if progress.due(settings.evaluation.interval):
                evaluation.run(settings.evaluation.episodes)
            if save:
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

    if ranks.first:
        summarize(path, progress, monitor, saving, archive, disk, bool(stop) or broken is not None)
    if broken and ranks.first:
        where = f"iteration {progress.iteration}: {broken.name} is not finite; training stopped."
        print(f"error: {where} Replay it with: navrl replay {shell_word('file', path / REPLAY)}", file=sys.stderr)
    return 1 if disk.failures or broken else ended_by_request(stop.exit_code)


def write_report(path: Path, disk: DiskGuard) -> None:
    """report.html, if there is anything to report."""
    if is_run(path) and states_of(path):
        with disk("writing the report"):
            report(path)


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
    written = saving.saver.get_stats() if saving.saver else {}
    print(
        f"{'stopped' if stopped else 'done'} after {progress.frames / 1e6:.1f} M frames in {clock(monitor.elapsed)}"
        f" ({progress.frames / monitor.elapsed:,.0f} frames/s), peak memory {peak_memory_mb():,.0f} MB\n"
        f"saved {written['saved']} times, {written['dropped']} dropped, compressed to {100 * written['ratio']:.0f} %;"
        f" directory {now / 1e6:.1f} MB, {otherwise / 1e6:.1f} MB had every state been kept\n"
        f"curves, pictures, flights: {path / REPORT}"
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
