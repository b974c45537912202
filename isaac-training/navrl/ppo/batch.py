"""One batch of experience (N drones, T steps), whichever way it was collected: what the learner learns from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from navrl.schema import NETWORK_INPUTS, OBSERVED

VERSION = "policy_version"  # key of `frames`: number of updates the weights that flew the batch had seen


class Rows(Protocol):
    """The network's input for a whole batch: one row per frame, drone after drone."""

    shape: torch.Size
    ahead: int  # minibatches that are best selected together

    def __len__(self) -> int: ...
    def select(self, index: Tensor, out: Tensor) -> None: ...
    def tensor(self) -> Tensor: ...
    @property
    def nbytes(self) -> int: ...


class PlainRows:
    """All rows in one tensor."""

    ahead = 1

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.shape = rows, rows.shape

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, index: Tensor, out: Tensor) -> None:
        torch.index_select(self.rows, 0, index, out=out)

    def tensor(self) -> Tensor:
        return self.rows

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes


@dataclass
class Batch:
    """What was flown, and the network's input for it.

    `frames` (N, T) holds rewards, ends, actions, values and statistics; observations too, unless they were packed away.
    """

    frames: TensorDictBase
    rows: Rows
    last_rows: Tensor  # network input of the next observations that need a value, see `needs_bootstrap`

    @classmethod
    def prepared(cls, frames: TensorDictBase, prepare: Callable[..., Tensor], last: bool = True) -> Batch:
        """A batch from a collector's frames; `prepare` is the encoder's, `last` as in `needs_bootstrap`."""
        now, after, ask = frames.get(OBSERVED), frames.get(("next", *OBSERVED)), needs_bootstrap(frames, last)
        rows = PlainRows(prepare(*(now[name].flatten(0, 1) for name in NETWORK_INPUTS)))
        return cls(frames, rows, prepare(*(after[name][ask] for name in NETWORK_INPUTS)))

    def __getitem__(self, key: str | tuple[str, ...]) -> Tensor:
        return self.frames[key]

    def bytes(self) -> int:
        """Memory it takes."""
        return self.frames.bytes() + self.last_rows.nbytes + self.rows.nbytes


def join_frames(parts: list[TensorDictBase]) -> TensorDictBase:
    """Frames of several ranks' drones as one batch's."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]  # pyright: ignore[reportArgumentType, reportCallIssue, reportReturnType]


def needs_bootstrap(frames: TensorDictBase, last: bool = True) -> Tensor:
    """Mask (N, T) of steps whose next observation has no value yet: those truncated, and the last of the batch.

    Elsewhere the next observation is the one of the next step, or the flight has terminated and has no future.
    `last=False`: more of the same batch follows these frames.
    """
    ask = (frames["next", "done"] & ~frames["next", "terminated"]).squeeze(-1)
    if last:
        ask = ask.clone()
        ask[:, -1] = True
    return ask
