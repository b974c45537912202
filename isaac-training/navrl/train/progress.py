"""Where a run is: iterations, frames, and its scores on unseen maps."""

from __future__ import annotations

from navrl.train.settings import TrainSettings


class Progress:
    """Counts iterations and frames up to the end of the run, and keeps the last scores."""

    def __init__(self, settings: TrainSettings, state: dict | None = None) -> None:
        """`state`: a training state to continue from."""
        self.frames_per_batch = settings.frames_per_batch
        self.iteration: int = state["iteration"] if state else 0
        self.frames: int = state["frames"] if state else 0
        self.scores: dict[str, float] = dict(state["scores"]) if state else {}  # success, by eval/<scenario>/success
        self.scored: dict[str, int] = dict(state["scored"]) if state else {}  # frames and episodes of those scores
        self.last = self.iteration + max(0, settings.max_frames - self.frames) // self.frames_per_batch
        self.total = self.frames + (self.last - self.iteration) * self.frames_per_batch

    @property
    def done(self) -> bool:
        return self.iteration >= self.last

    @property
    def fraction(self) -> float:
        """Share of the run's frames, 0 to 1."""
        return self.frames / self.total

    @property
    def evaluated(self) -> bool:
        """Whether the scores are of now."""
        return self.scored.get("frames") == self.frames

    def label(self) -> dict[str, int]:
        """What a stored batch is found by."""
        return {"iteration": self.iteration, "frames": self.frames}

    def advance(self) -> None:
        """Count one more batch."""
        self.iteration += 1
        self.frames += self.frames_per_batch

    def due(self, *intervals: int) -> bool:
        """Whether this iteration is a multiple of any interval; 0 is never due."""
        return any(every and self.iteration % every == 0 for every in intervals)

    def state(self) -> dict:
        """What `__init__` continues from."""
        return {**self.label(), "scores": self.scores, "scored": self.scored}
