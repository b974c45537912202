"""Background saving: the training thread copies and continues, another thread packs and writes."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from navrl.io.files import DiskGuard, Written, write_checkpoint
from navrl.io.snapshot import Snapshot

log = logging.getLogger("navrl")

After = Callable[[dict, Written], None]  # runs in the background once a save is on disk


@dataclass
class _Job:
    snapshot: Snapshot
    path: str | Path
    compress: bool
    keep: bool  # must not be dropped for a newer one
    after: After | None
    source: dict  # kept so that the background thread frees it


class AsyncCheckpointSaver:
    """Saves in the background: `save_async` returns once the checkpoint is copied. Files appear only when complete.

    When the queue is full, a periodic save replaces the oldest one waiting; one with `keep` waits for room.
    """

    def __init__(
        self,
        max_queue_size: int = 3,
        level: int = 0,
        manifest: Path | None = None,
        disk: DiskGuard | None = None,
    ) -> None:
        self.max_queue_size, self.level, self.manifest = max_queue_size, level, manifest
        self.disk = disk or DiskGuard()
        self._stats = {"saved": 0, "failed": 0, "dropped": 0, "bytes": 0, "raw_bytes": 0, "seconds": 0.0}
        self._packed = 0, 0  # bytes after and before packing
        self._free: list[Snapshot] = []
        self._queue: deque[_Job] = deque()
        self._writing: _Job | None = None
        self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="checkpoint saver", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)  # program exit waits for pending saves

    def save_async(
        self,
        checkpoint: dict,
        path: str | Path,
        compress: bool = True,
        keep: bool = False,
        after: After | None = None,
    ) -> None:
        """Save `checkpoint` to `path`, with `.lz4` appended if compressed. The caller may change everything right away.

        `keep`: never dropped; waits for room in the queue. `after(copy, written)` runs when the file is on disk.
        """
        with self._change:
            if self._closed:
                raise RuntimeError("this saver has been shut down")
            if keep:
                self._change.wait_for(lambda: len(self._queue) < self.max_queue_size)
            elif len(self._queue) >= self.max_queue_size and not self._make_room():
                return
            snapshot = self._free_one_for(checkpoint)
        snapshot.take(checkpoint)
        with self._change:
            self._queue.append(_Job(snapshot, path, compress, keep, after, checkpoint))
            self._change.notify_all()

    def shutdown(self, timeout: float | None = None) -> bool:
        """Wait for every save and stop. Logs what it waits for; returns False if `timeout` seconds were not enough."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._change:
            self._closed = True
            self._change.notify_all()
            patience = 1.0
            while left := [Path(job.path).name for job in ([self._writing] if self._writing else []) + [*self._queue]]:
                remaining = patience if deadline is None else min(patience, deadline - time.monotonic())
                if remaining <= 0:
                    log.warning("not saved in %.0f s: %s", timeout, ", ".join(left))
                    return False
                if not self._change.wait(remaining) and remaining == patience:
                    log.info("saving %s", ", ".join(left))
                    patience = 10.0
        self._thread.join()
        atexit.unregister(self.shutdown)
        return True

    def get_stats(self) -> dict[str, float]:
        """Return counts of saves by status, bytes on disk and before packing, their ratio, and seconds of work."""
        with self._change:
            queued = len(self._queue) + (self._writing is not None)
            ratio = self._packed[0] / self._packed[1] if self._packed[1] else 1.0  # of compressed saves only
            return {**self._stats, "queued": queued, "ratio": ratio}

    # --- internals ----------------------------------------------------------------------------------------------

    def _make_room(self) -> bool:
        """Drop the oldest save that may be dropped. Returns False if there is none: then the new one is dropped."""
        self._stats["dropped"] += 1
        if self._stats["dropped"] == 1:
            log.warning(
                "saves come faster than this disk can write them: the oldest one waiting is dropped for the newest."
                " Save less often (save_interval, save_minutes) or raise async_checkpoint_queue_size=%d",
                self.max_queue_size,
            )
        for job in self._queue:
            if not job.keep:
                self._queue.remove(job)
                self._free.append(job.snapshot)
                return True
        return False

    def _free_one_for(self, checkpoint: dict) -> Snapshot:
        """Return a snapshot whose memory can be reused: checkpoints of one kind have the same keys."""
        for snapshot in self._free:
            if snapshot.content.keys() == checkpoint.keys():
                self._free.remove(snapshot)
                return snapshot
        return Snapshot()

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                job = self._writing = self._queue.popleft()
                self._change.notify_all()
            try:
                self._save(job)
            except Exception as error:  # whatever it is, training must not be affected
                self._stats["failed"] += 1
                self.disk.failed(f"saving {job.path}", error)
            finally:
                with self._change:
                    self._writing = None
                    if len(self._free) <= self.max_queue_size:
                        self._free.append(job.snapshot)
                    self._change.notify_all()

    def _save(self, job: _Job) -> None:
        job.snapshot.wait()
        path = Path(job.path)
        folder = path.parent
        if not folder.is_dir():
            self.disk.failed(f"saving {path}", f"{folder} has vanished (recreated, but its contents are lost)")
            folder.mkdir(parents=True, exist_ok=True)
        level = self.level if job.compress else None
        written = write_checkpoint(path, job.snapshot.content, level, self.manifest)
        with self._change:
            self._stats["saved"] += 1
            self._stats["bytes"] += written.bytes
            self._stats["raw_bytes"] += written.raw_bytes
            if job.compress:
                self._packed = self._packed[0] + written.bytes, self._packed[1] + written.raw_bytes
            self._stats["seconds"] += written.seconds
        if job.after:
            job.after(job.snapshot.content, written)
