"""Saving a run: what is in a training state, when it is written, what happens when training breaks."""

from __future__ import annotations

import functools
import logging
import time
from pathlib import Path
from types import TracebackType

from omegaconf import OmegaConf

from navrl.checkpoint.retention import BEST, CheckpointFolder, states_of
from navrl.checkpoint.saver import AsyncCheckpointSaver
from navrl.collect.batches import Batches, whole_state
from navrl.io.files import MANIFEST, DiskGuard, Written, write_checkpoint
from navrl.monitor.flights import RecentFlights
from navrl.monitor.performance import PerformanceMonitor
from navrl.ppo.policy_file import TRAINING_STATE, policy_content
from navrl.ppo.ppo import PPO, NotFinite
from navrl.ranks import ALONE, Ranks
from navrl.train.loggers import Loggers
from navrl.train.machine import describe_machine
from navrl.train.progress import Progress
from navrl.train.replay import REPLAY, join_data, replay_content
from navrl.train.resume import machine_now, random_state
from navrl.train.settings import TrainSettings, shell_word

log = logging.getLogger("navrl")


class Saving:
    """Gathers a run's state and saves it in the background, with the policy beside it and retention after it.

    As a context it waits for its saves when it ends. If an exception ends it, the state is saved first, so that the run
    can be resumed whatever broke.
    """

    def __init__(
        self,
        settings: TrainSettings,
        run: Path,
        disk: DiskGuard,
        progress: Progress,
        ppo: PPO,
        batches: Batches,
        flights: RecentFlights,
        monitor: PerformanceMonitor,
        loggers: Loggers,
        code_version: str,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.settings, self.run, self.progress, self.ppo, self.batches = settings, run, progress, ppo, batches
        self.flights, self.monitor, self.loggers, self.code_version = flights, monitor, loggers, code_version
        self.folder = CheckpointFolder(run, settings.save.keep_last, settings.save.keep_best)
        self.saver: AsyncCheckpointSaver | None = None  # rank 0 saves for all
        if ranks.first:
            self.saver = AsyncCheckpointSaver(settings.save.queue_size, settings.save.level, run / MANIFEST, disk)
        self._config, self._machine = OmegaConf.to_yaml(settings.config), describe_machine()
        self._saved_at = time.monotonic()
        self.policy_iteration: int | None = None  # of the policy.pt on disk, if this process wrote it
        self._policy_about: dict = {}  # ... and what it says of itself
        self._logged_frames = -1  # of the policy that was logged last
        before = [BEST.fullmatch(path.name) for path in self.folder.path.glob("best-*")]
        self._best_score = max((float(match[2]) for match in before if match), default=0.0)

    def due(self) -> bool:
        """Whether it is time to save, by iterations or by the clock."""
        minutes, every = self.settings.save.minutes, self.settings.save.interval
        late = minutes and time.monotonic() - self._saved_at > 60 * minutes
        return bool(late) or self.progress.due(every, self.settings.save.keep_every)

    def save(self, keep: bool = False) -> None:
        """Save everything needed to resume. `keep`: this save is never dropped for a newer one."""
        with self.monitor.timer("save"):
            state = self.state()
            if self.saver:
                path = self.folder.state(self.progress.iteration)
                self.saver.save_async(state, path, self.settings.save.compress, keep, after=self._after)
        self._saved_at = time.monotonic()

    def save_best(self, score: float) -> None:
        """Keep the policy as it is now, if it ranks among the best by `score`."""
        if self.settings.save.keep_best and self.saver:
            weights, norm = self.ppo.ema_policy.state_dict(), self.ppo.value_norm.state_dict()
            content = policy_content(self.settings.network, weights, norm, self.about())
            path = self.folder.best(self.progress.iteration, score)
            best, self._best_score = score >= self._best_score, max(score, self._best_score)
            after = functools.partial(self._log_policy, success=score, best=best)
            self.saver.save_async(content, path, compress=False, keep=True, after=after)

    def save_replay(self, broken: NotFinite) -> None:
        """Save what scripts/replay.py needs to fail in the same way: of several ranks all their batches as one."""
        parts = self.ranks.gather(broken.data)
        if self.saver:
            whole = NotFinite(broken.name, join_data(parts))
            content = replay_content(self.settings, self.ppo, whole, self.progress)
            self.saver.save_async(content, self.run / REPLAY, compress=False, keep=True)

    def about(self) -> dict:
        """What a user of this policy must know."""
        sim = self.settings.sim
        return {
            "decimation": sim.decimation,
            "dt": sim.dt,
            "lidar_vfov": list(sim.lidar.vfov),
            "frames": self.progress.frames,
            "seconds": self.monitor.elapsed,
            "seed": self.settings.seed,
            "commit": self.code_version,
            "command": " ".join(["navrl train", *self.settings.overrides]),
            "scores": self.progress.scores | self.progress.scored,
        }

    def state(self) -> dict:
        """Everything needed to resume exactly from here, on rank 0; live tensors, which the saver copies."""
        return {
            "format": TRAINING_STATE,
            "config": self._config,
            "overrides": list(self.settings.overrides),
            "machine": self._machine | machine_now(self.ranks),
            "network": self.settings.network.describe(),
            "about": self.about(),
            **self.progress.state(),
            "ppo": self.ppo.state(),
            "batches": whole_state(self.batches, self.ranks),
            "random": random_state(),
            "flights": self.flights.state(),
            "performance": self.monitor.state(),
            "wandb_id": self.loggers.wandb_id,
        }

    def _after(self, state: dict, _: Written) -> None:
        """In the background, once a state is on disk: write the policy to fly, and make room."""
        network, norm = self.settings.network, state["ppo"]["value_norm"]
        content = policy_content(network, state["ppo"]["averaged"], norm, state["about"])
        manifest = self.run / MANIFEST
        write_checkpoint(self.run / "policy.pt", content, manifest=manifest)
        self.policy_iteration, self._policy_about = state["iteration"], state["about"]
        every = self.settings.save.keep_every
        if every and state["iteration"] % every == 0:
            write_checkpoint(self.folder.policy(state["iteration"]), content, manifest=manifest)
        self.folder.prune()

    def _log_policy(self, content: dict, written: Written, success: float, best: bool) -> None:
        """In the background, once a policy that was evaluated is on disk: it may not stay there for long."""
        about = content["about"] | {"network": content["network"], "success": success}
        self.loggers.policy(self.run / written.file, about, best)
        self._logged_frames = content["about"]["frames"]

    def _log_last_policy(self) -> None:
        """Log policy.pt, unless it was logged when it was evaluated."""
        if self._policy_about and self._policy_about["frames"] != self._logged_frames:
            with self.loggers.disk("logging the policy"):
                about = self._policy_about | {"network": self.settings.network.describe()}
                self.loggers.policy(self.run / "policy.pt", about)

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and self.ranks.agreed:
            try:
                self.save(keep=True)
            except Exception as second:  # what ended the run is what the user must see
                log.warning("the state could not be saved: %s: %s", type(second).__name__, second)
        if self.saver:
            self.saver.shutdown()
            self._log_last_policy()
        if error is not None and self.saver and states_of(self.run):
            hint = shell_word("resume", self.run)
            log.warning("%s ended the run; resume with: navrl train %s", type(error).__name__, hint)
