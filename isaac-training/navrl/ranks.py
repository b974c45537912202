"""The processes of a run and what they exchange. A lone process is rank 0 of 1 and exchanges nothing.

`torchrun` starts the ranks. Every rank executes the same program on its share of the drones; where they must agree they
meet in one of the methods of `Ranks`, all of them in the same order. Every room may know this file.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import PrefixStore, TCPStore, rendezvous  # pyright: ignore[reportPrivateImportUsage]

from navrl.settings import ConfigError, setting

T = TypeVar("T")
BEAT = 1.0  # s between signs of life
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class RanksSettings:
    """How the processes of a run deal with each other."""

    timeout: float = setting("ranks.timeout", 1.0, 86400.0)  # s


class RankFailed(RuntimeError):
    """Another rank has failed. `kind` is the name of what it raised; empty if it is gone or does not answer."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class Ranks:
    """This process among those of its run."""

    def __init__(self, rank: int = 0, size: int = 1, local: int = 0, local_size: int = 1) -> None:
        self.rank, self.size, self.local, self.local_size = rank, size, local, local_size
        self.agreed = True  # after something was raised: all ranks know of it, so that they can still meet to save

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints, logs and saves."""
        return self.rank == 0

    def share(self, total: int) -> tuple[int, int]:
        """First and number of the things this rank has of `total`; the first rank has some if any has."""
        edges = [-(-total * r // self.size) for r in (self.rank, self.rank + 1)]
        return edges[0], edges[1] - edges[0]

    # --- meeting points: a lone process passes through ------------------------------------------------------------

    def sum(self, tensor: Tensor) -> None:
        """Add up a tensor over all ranks, in place; the same bits on each."""

    def most(self, *numbers: int) -> tuple[int, ...]:
        """The largest that any rank has, of each number."""
        return numbers

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What one rank raises in here ends it for all: the others raise `RankFailed`, at the same place."""
        yield

    def from_first(self, thing: T) -> T:
        """What rank 0 has."""
        return thing

    def gather(self, thing: T) -> list[T]:
        """What every rank has, on rank 0; elsewhere nothing."""
        return [thing]

    def gather_tensors(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """`gather` of tensors that have the same shapes everywhere: in one piece, without pickling."""
        return [tensors]

    def close(self) -> None:
        """Leave the others."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


ALONE = Ranks()


def connect(settings: RanksSettings) -> Ranks:
    """This process among those that torchrun started; alone if nothing started several."""
    given = [name for name in VARIABLES[:2] if os.environ.get(name)]
    if not given:
        return Ranks()
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing:
        fix = f"is set, but {', '.join(missing)} is not; start several ranks with torchrun, or unset {given[0]}"
        raise ConfigError(given[0], os.environ[given[0]], fix)
    try:
        rank, size, local = (int(os.environ[name]) for name in VARIABLES[:3])
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    except ValueError:
        words = ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES[:3])
        raise ConfigError(
            "RANK", os.environ["RANK"], f"must be a whole number, like all that torchrun sets: {words}"
        ) from None
    if not 0 <= rank < size:
        raise ConfigError("RANK", rank, f"must be below WORLD_SIZE={size}; start the ranks with torchrun")
    return _Group(rank, size, local, local_size, settings.timeout) if size > 1 else Ranks()


# --- what torchrun remembers from one start of a run to the next ---------------------------------------------------


def ended_by_request(code: int) -> int:
    """The exit code of a run that was asked to stop: torchrun takes any but 0 for a failure and starts it again."""
    return 0 if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" else code


def remember(value: str) -> None:
    """Leave something for the next start of this run, in case torchrun has to start it again."""
    if store := _agent():
        store.set(_note(), value)


def remembered() -> str | None:
    """What an earlier start of this run has left; None if this is the first (torchrun's own count is not reliable)."""
    store = _agent()
    return store.get(_note()).decode() if store and store.check([_note()]) else None


def _note() -> str:
    return f"navrl/{os.environ.get('TORCHELASTIC_RUN_ID')}"


def _agent() -> TCPStore | None:
    """torchrun's own store, which outlives its ranks."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    limit = datetime.timedelta(seconds=60)
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=limit)


# --- several processes ---------------------------------------------------------------------------------------------


def _meeting_place(store: Any, rank: int, size: int, timeout: float) -> str:
    """A name that all ranks of this start know and those of no other.

    torchrun's store outlives a start, with the addresses of ranks that are dead now. Rank 0 invents a name and calls
    back everybody who answers to it; the others may find an older name first, but under that nobody calls them.
    """
    deadline, mine = time.monotonic() + timeout, str(uuid.uuid4())
    if rank == 0:
        store.set("navrl/start", mine)
        answers = [f"{mine}/{other}" for other in range(1, size)]
        store.wait(answers, datetime.timedelta(seconds=timeout))
        store.set(f"{mine}/all", " ".join(store.get(answer).decode() for answer in answers))
        return mine
    while time.monotonic() < deadline:
        if store.check(["navrl/start"]):
            name = store.get("navrl/start").decode()
            store.set(f"{name}/{rank}", mine)
            if store.check([f"{name}/all"]) and mine in store.get(f"{name}/all").decode():
                return name
        time.sleep(0.05)
    raise RuntimeError(f"rank 0 was not there for {timeout:g} s")


class _Group(Ranks):
    """Several processes: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, rank: int, size: int, local: int, local_size: int, timeout: float) -> None:
        super().__init__(rank, size, local, local_size)
        self.agreed, self._apart = False, False
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        limit, met = datetime.timedelta(seconds=timeout), []

        def meet() -> None:
            try:
                store, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
                store.set_timeout(limit)
                store = PrefixStore(_meeting_place(store, rank, size, timeout), store)
                dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
                met.append(store)
            except (RuntimeError, ValueError, OSError) as error:
                met.append(str(error).strip().partition("\n")[0])

        # In a thread: while the main one waits in C++ for ranks that may never come, no signal would reach it.
        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
        store = line = met[0]
        if isinstance(line, str):
            fix = f"the {size} ranks cannot meet there ({line}); is the port free, and does every host reach it?"
            raise ConfigError("MASTER_ADDR:MASTER_PORT", where, fix) from None
        self.timeout, self._store, self._meetings = timeout, store, 0
        self._store.set(f"who/{rank}", f"process {os.getpid()} on {socket.gethostname()}")
        self._ended = threading.Event()
        threading.Thread(target=self._beat, name="sign of life", daemon=True).start()

    def sum(self, tensor: Tensor) -> None:
        with self._meeting():
            self._reduce(tensor, dist.ReduceOp.SUM)

    def most(self, *numbers: int) -> tuple[int, ...]:
        tensor = torch.tensor(numbers, dtype=torch.int64)
        with self._meeting():
            self._reduce(tensor, dist.ReduceOp.MAX)
        return tuple(tensor.tolist())

    def _reduce(self, tensor: Tensor, operation: Any) -> None:
        """Recursive doubling between CPUs: what takes time there is waking threads, and gloo's ring wakes many more.

        In each round a rank exchanges what it has with one other. a + b is b + a, so all end with the same bits.
        """
        if tensor.is_cuda or self.size & (self.size - 1):
            dist.all_reduce(tensor, operation)
            return
        other, apart = torch.empty_like(tensor), 1
        while apart < self.size:
            partner = self.rank ^ apart
            exchange = [dist.isend(tensor, partner), dist.irecv(other, partner)]
            for one in exchange:
                one.wait()  # pyright: ignore[reportOptionalMemberAccess]
            tensor.add_(other) if operation == dist.ReduceOp.SUM else torch.maximum(tensor, other, out=tensor)
            apart *= 2

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
        except RankFailed:  # everybody knows, or nobody can be told
            raise
        except BaseException as error:
            text, others = f"{type(error).__name__}: {error}", []
            with contextlib.suppress(RankFailed):
                self.most(1)
                others = self._all(text)[: self.rank]
                self.agreed = True
            if text in others:  # one of them says it
                raise RankFailed(text, type(error).__name__) from error
            raise
        if self.most(0)[0]:
            failed = [(rank, text) for rank, text in enumerate(self._all("")) if text]
            self.agreed, kind = True, failed[0][1].partition(":")[0]
            raise RankFailed("; ".join(f"rank {rank}: {text}" for rank, text in failed), kind)

    def from_first(self, thing: T) -> T:
        things: list[Any] = [thing]
        with self._meeting():
            dist.broadcast_object_list(things)
        return thing if self.first else things[0]

    def gather(self, thing: T) -> list[T]:
        things: list[Any] = [None] * self.size
        with self._meeting():
            dist.gather_object(thing, things if self.first else None)
        return things if self.first else []

    def gather_tensors(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        packed = torch.cat([tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in tensors])
        everyones = [torch.empty_like(packed) for _ in range(self.size)] if self.first else None
        with self._meeting():
            dist.gather(packed, everyones)
        return [self._unpack(one, tensors) for one in everyones or ()]

    @staticmethod
    def _unpack(packed: Tensor, like: list[Tensor]) -> list[Tensor]:
        pieces = packed.split([tensor.nbytes for tensor in like])
        # Cloned: a number must lie at a multiple of its size.
        return [piece.clone().view(old.dtype).view(old.shape) for piece, old in zip(pieces, like, strict=True)]

    def _all(self, thing: str) -> list[str]:
        things: list[Any] = [None] * self.size
        with self._meeting():
            dist.all_gather_object(things, thing)
        return things

    def close(self) -> None:
        self._ended.set()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    # --- noticing that somebody is missing ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        if self._apart:
            raise RankFailed("the ranks have parted")
        self._meetings += 1
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:  # also what NCCL raises
            self._apart, self.agreed = True, False
            waited = time.monotonic() - began
            raise RankFailed(self._missing(waited) or str(error).strip().partition("\n")[0]) from None

    def _beat(self) -> None:
        """Leave signs of life in the store, with the number of meetings so far."""
        store, beat = self._store.clone(), 0  # pyright: ignore[reportAttributeAccessIssue]
        while not self._ended.wait(BEAT):
            beat += 1
            with contextlib.suppress(RuntimeError):
                store.set(f"alive/{self.rank}", f"{beat} {self._meetings}")

    def _missing(self, waited: float) -> str:
        """Who is not there: a rank without signs of life, or one that has not come as far as this one."""
        try:
            before = self._signs()
            time.sleep(2.5 * BEAT)
            now = self._signs()
            silent = [r for r in now if r != self.rank and now[r] == before[r]]
            behind = [r for r in now if int(now[r].split()[1]) < self._meetings]
            names = [f"rank {r} ({self._store.get(f'who/{r}').decode()})" for r in silent or behind]
        except (RuntimeError, IndexError):
            return "" if waited < self.timeout else f"no answer from the other ranks for {waited:.0f} s"
        if not names:
            return ""
        late = f"has not answered for {waited:.0f} s (ranks.timeout={self.timeout:g})"
        return f"{', '.join(names)} {late if waited >= self.timeout else 'is gone'}"

    def _signs(self) -> dict[int, str]:
        keys = [f"alive/{r}" for r in range(self.size)]
        return {r: self._store.get(key).decode() if self._store.check([key]) else "0 0" for r, key in enumerate(keys)}
