"""Change real files of a run in thousands of ways and open them: each must load and be sane, or cost one line.

    python scripts/bench/fuzz_files.py [cases=5000] [seed=0] [kinds=[state,policy]] [show=true]

Files are changed structurally (types, sizes, missing and extra parts, huge claims) and then written whole, with correct
checksums, as somebody who means harm would. A case is opened as the program opens it: a training state is trained on,
a policy flown, a rollout read. Cases run in a process of their own, so a crash or a hang is seen too. The last line is
JSON: `cases`, `tracebacks` (anything that is neither loaded nor refused in one line), `slowest_s`, `peak_mb` (the most
memory a case took).
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import json
import logging
import math
import multiprocessing
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import navrl.scripts.replay
import navrl.scripts.report
import navrl.scripts.rollouts
from navrl.checkpoint.retention import CheckpointFolder, newest_state, states_of
from navrl.cli import options
from navrl.collect.rollouts import DATA, INDEX, TABLE, BadRollout, RolloutStorage, _signed, remove_after
from navrl.io.files import BadCheckpoint, load_checkpoint, write_checkpoint
from navrl.monitor.metrics import read_rows
from navrl.ppo.policy_file import load_policy
from navrl.schema import POLICY_INPUTS, observation_shapes
from navrl.scripts.train import train
from navrl.settings import ConfigError
from navrl.train import resume
from navrl.train.report import read_run
from navrl.train.settings import CONFIG, read_train

SETTINGS = [
    "device=cpu", "env.num_envs=32", "algo.training_frame_num=4", "algo.num_minibatches=2", "env.num_maps=2",
    "env.num_obstacles=10", "env_dyn.num_obstacles=8", "env.max_episode_length=8", "eval.scenarios=[crossing-0-0]",
    "eval.episodes=2", "eval.final_episodes=2", "eval.maps=1", "eval.picture=false", "logger=none", "save_interval=1",
]  # fmt: skip
PATIENCE = 60.0  # s until a case counts as a hang
REFUSED = (ConfigError, BadCheckpoint, BadRollout)

# --- changing things --------------------------------------------------------------------------------------------


def junk(rng: random.Random, json_only: bool) -> Any:
    """A value that may be anywhere and belongs nowhere."""
    deep: Any = 1
    for _ in range(rng.choice([3, 60, 500])):
        deep = [deep]
    twice: Any = [1]  # small in memory, endless for who walks through it; as JSON it would be endless itself
    for _ in range(0 if json_only else 40):
        twice = [twice, twice]
    tensors = [
        torch.zeros(3), torch.full((2, 2), math.nan), torch.zeros(0), torch.zeros(1, dtype=torch.complex64),
        torch.zeros(1).expand(1 << 40), torch.zeros(2, 2).to_sparse(), torch.zeros(5, dtype=torch.int64),
        torch.tensor(1e30), torch.zeros(2, dtype=torch.bool), torch.empty(4, 4, device="meta"),
    ]  # fmt: skip
    plain = [
        None, True, False, 0, -1, -5, 3, 10**15, 10**40, -(10**18), 0.5, -0.0, 1e300, math.nan, math.inf, -math.inf, "",
        "x", "x" * 70_000, "a\nb", "\x1b[31m", "../..", "${oc.env:HOME}", "${now:%Y}", b"bytes", [], {}, [[]], {"": 0},
        {1: 2}, {"x": None}, [1, "a", None], deep, twice, ("a", 1), {"encoder": "fast"}, [3000, 3000],
    ]  # fmt: skip
    return rng.choice(plain if json_only or rng.random() < 0.75 else tensors)


def places(node: Any, path: tuple = ()) -> list[tuple]:
    """Every place in nested dicts and lists."""
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    inside = inside if len(path) < 8 else ()  # no real file is deeper
    return [place for key, value in inside for place in [(*path, key), *places(value, (*path, key))]]


def changed(content: Any, rng: random.Random, parts: tuple[str, ...] = (), json_only: bool = False) -> Any:
    """A copy with one to three changes, inside the named parts if there are any."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        there = [place for place in places(content) if not parts or place[0] in parts]
        if not there:
            return junk(rng, json_only)
        depth = rng.choice([len(place) for place in there])  # or the many tensors would get all the changes
        *way, last = rng.choice([place for place in there if len(place) == depth])
        owner = content
        for key in way:
            owner = owner[key]
        change(owner, last, rng, json_only)
    return content


def change(owner: Any, key: Any, rng: random.Random, json_only: bool) -> None:
    value = owner[key]
    if isinstance(value, torch.Tensor) and rng.random() < 0.6:
        owner[key] = changed_tensor(value, rng)
    elif isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        owner[key] = rng.choice([-value, value + 1, value * 1000, value / 3, float(value), -1, 0, 2**31, 1e308])
    elif (choice := rng.random()) < 0.25:
        del owner[key]
    elif choice < 0.35 and isinstance(owner, dict):
        owner[rng.choice(["extra", 7, "", None, "x" * 300])] = junk(rng, json_only)
    elif choice < 0.45 and isinstance(value, list):
        owner[key] = rng.choice([value * 3, value[:-1], value[::-1], [value], tuple(value)])
    else:
        owner[key] = junk(rng, json_only)


def changed_tensor(value: torch.Tensor, rng: random.Random) -> torch.Tensor:
    if value.layout is not torch.strided or value.is_meta or value.numel() > 10**7:  # changed before
        return torch.zeros(2)
    flat = value.reshape(-1)
    with contextlib.suppress(RuntimeError):
        return rng.choice([
            lambda: flat, lambda: flat[:-1], lambda: value[None], lambda: value.double(), lambda: value.long(),
            lambda: value * 1e30, lambda: torch.full_like(value, math.nan), lambda: torch.full_like(value, -1),
            lambda: torch.full_like(value, 2**31 - 1), lambda: value.to(torch.complex64), lambda: value.to_sparse(),
            lambda: value.repeat(2, *[1] * (value.dim() - 1)) if value.dim() else value, lambda: value.bool(),
            lambda: flat[:1].expand(1 << 36) if len(flat) else flat, lambda: torch.randint_like(value, -100, 100),
        ])()  # fmt: skip
    return flat[:0]


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Text files: bytes cut, doubled, swapped, or replaced by words that parse."""
    words = [
        b"", b"\0" * 50, b"\xff\xfe", b"nan", b"1e999", b"-1", b'"', b"{}", b"[" * 9999, b"\r", b"," * 500,
        b"x" * 100_000, b"null",
    ]  # fmt: skip
    for _ in range(rng.choice([1, 1, 2, 5])):
        a, b = sorted(rng.choices(range(len(data) + 1), k=2))
        b = min(b, a + rng.choice([0, 1, 10, 1000]))
        data = data[:a] + rng.choice([*words, data[a:b] * 2]) + data[b:]
    return data


# --- opening them as the program does --------------------------------------------------------------------------------


class Files:
    """A real run in `folder`, and a place to put changed copies of its files."""

    def __init__(self, folder: Path) -> None:
        self.run, self.broken = folder / "run", folder / "broken"
        self.place = Path(tempfile.mkdtemp(dir=folder))
        self.state, self.replay = newest_state(self.run)[1], load_checkpoint(self.broken / "not_finite.pt")
        self.policy = load_checkpoint(self.run / "policy.pt")

    def fresh(self, name: str) -> Path:
        """An empty folder for this case."""
        shutil.rmtree(self.place / name, ignore_errors=True)
        (self.place / name).mkdir()
        return self.place / name

    def open_state(self, rng: random.Random) -> None:
        self.resume(changed(self.state, rng))

    def resume(self, state: Any) -> None:
        """Resume it and train one iteration."""
        run = self.fresh("run")
        (run / "checkpoints").mkdir()
        write(run / "checkpoints/state-00000002.pt", state)
        frames = state.get("frames") if isinstance(state, dict) else 0
        much = frames + 128 if type(frames) is int and 0 <= frames < 10**12 else 512
        typed = [f"resume={run}", f"max_frame_num={much}", "eval.maps=1"]
        HydraConfig.instance().set_config(hydra_config(typed, self.place / "hydra"))
        resumed = resume.find(compose("train", typed))
        assert resumed is not None
        settings = read_train(resumed.cfg, resume.given_overrides(resumed))
        resume.check_resumed(resumed, settings)
        code = train(settings, resumed.run, resumed)
        sane(code in (0, 1) and states_of(run), f"exit code {code}")

    def open_config(self, rng: random.Random) -> None:
        """A state that was changed in what it stores of its settings: by value, or as text."""
        state = copy.deepcopy(self.state)
        if (choice := rng.random()) < 0.3:
            state = changed(state, rng, ("overrides", "config"))
        elif choice < 0.8:
            config = changed(OmegaConf.to_container(OmegaConf.create(state["config"])), rng, json_only=True)
            with contextlib.suppress(Exception):
                state["config"] = OmegaConf.to_yaml(OmegaConf.create(config))
        else:
            state["config"] = changed_bytes(state["config"].encode(), rng).decode(errors="replace")
        self.resume(state)

    def open_policy(self, rng: random.Random) -> None:
        """Fly it."""
        path = self.fresh("policy") / "policy.pt"
        write(path, changed(self.policy, rng))
        policy, known = load_policy(path)
        json.dumps(known["about"])
        shapes = observation_shapes(policy.settings.beams)
        action = policy.act(**{name: torch.rand(3, *shapes[name]) for name in POLICY_INPUTS})
        sane(action.shape == (3, 3) and bool(torch.isfinite(action).all()) and float(action.abs().max()) < 60, "action")

    def open_replay(self, rng: random.Random) -> None:
        path = self.fresh("replay") / "not_finite.pt"
        write(path, changed(self.replay, rng))
        call(navrl.scripts.replay.main, path)

    def open_manifest(self, rng: random.Random) -> None:
        run = self.fresh("run")
        text = (self.run / "manifest.jsonl").read_bytes()
        lines = [json.loads(line) for line in text.splitlines()]
        (run / "manifest.jsonl").write_bytes(dumped(lines, rng) if rng.random() < 0.7 else changed_bytes(text, rng))
        now, otherwise = CheckpointFolder(run, 1, 1).bytes_saved()
        sane(0 <= now <= otherwise, f"{now} and {otherwise} bytes")

    def open_index(self, rng: random.Random) -> None:
        run = self.fresh("run")
        shutil.copytree(self.run / "rollouts", run / "rollouts")
        index = run / "rollouts" / INDEX
        text = index.read_bytes()
        lines = [json.loads(line) for line in text.splitlines()]
        index.write_bytes(dumped(lines, rng, signed=True) if rng.random() < 0.7 else changed_bytes(text, rng))
        self.read_rollouts(run, rng)

    def open_record(self, rng: random.Random) -> None:
        """A record whose header was changed, with checksums that are right again, with or without its index."""
        run = self.fresh("run")
        shutil.copytree(self.run / "rollouts", run / "rollouts")
        data, index = run / "rollouts" / DATA, run / "rollouts" / INDEX
        lines = [json.loads(line) for line in index.read_bytes().splitlines()]
        record = data.read_bytes()[: lines[0]["bytes"]]
        _, size, blocks, _ = struct.unpack_from("<4sIII", record)
        split = size - blocks * TABLE.itemsize
        header, table = json.loads(record[16 : 16 + split]), bytearray(record[16 + split : 16 + size])
        if rng.random() < 0.75:
            header = changed(header, rng, json_only=True)
        else:
            struct.pack_into("<I", table, 4 * rng.randrange(3 * blocks), rng.choice([0, 1, 2**32 - 1, 1000]))
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            body = json.dumps(header).encode() + b"\n" + table
            head = struct.pack("<4sIII", b"NVRL", len(body), rng.choice([blocks, blocks, 0, 10**6]), zlib.crc32(body))
            record = head + body + record[16 + size :]
        data.write_bytes(record)
        if rng.random() < 0.5:
            index.unlink()
        else:
            line = {key: value for key, value in lines[0].items() if key != "crc"}
            index.write_text(json.dumps(_signed(line | {"bytes": len(record)})) + "\n")
        self.read_rollouts(run, rng)

    def read_rollouts(self, run: Path, rng: random.Random) -> None:
        """Read all there is, list it, draw one, and resume into it."""
        size = (run / "rollouts" / DATA).stat().st_size
        storage = RolloutStorage(run / "rollouts")
        navrl.scripts.rollouts.listing(storage)
        for number in range(len(storage)):
            with contextlib.suppress(BadRollout):
                sane(storage[number].numel() == math.prod(storage[number].batch_size), "rollout")
        for episode in range(min(storage.num_episodes, 20)):
            with contextlib.suppress(BadRollout, KeyError):
                storage.episode(episode, ["value"]) if rng.random() < 0.3 else storage.find_episode(episode)
        if rng.random() < 0.1:
            call(navrl.scripts.rollouts.main, run, "draw=0", "drones=[0]")
        remove_after(run / "rollouts", 10**9)
        sane((run / "rollouts" / DATA).stat().st_size <= size, "data.bin grew")

    def open_metrics(self, rng: random.Random) -> None:
        path = self.fresh("run") / "metrics.csv"
        path.write_bytes(changed_bytes((self.run / "metrics.csv").read_bytes(), rng))
        rows = read_rows(path)
        sane(all(math.isfinite(value) for row in rows for value in row.values()), "rows")
        navrl.scripts.report.results([read_run(path.parent)])
        if rng.random() < 0.05:
            call(navrl.scripts.report.main, path.parent, f"output={path.parent}/report.{rng.choice(['png', 'html'])}")


KINDS: dict[str, Callable[[Files, random.Random], None]] = {
    "state": Files.open_state, "config": Files.open_config, "policy": Files.open_policy, "replay": Files.open_replay,
    "manifest": Files.open_manifest, "index": Files.open_index, "record": Files.open_record,
    "metrics": Files.open_metrics,
}  # fmt: skip


def write(path: Path, content: Any) -> None:
    """As write_checkpoint, which takes a dict; what torch cannot store is left out."""
    try:
        write_checkpoint(path, content, None)
    except (RecursionError, RuntimeError, TypeError, NotImplementedError, ValueError, AttributeError):
        write_checkpoint(path, {"format": "something"}, None)


def dumped(lines: list, rng: random.Random, signed: bool = False) -> bytes:
    """Lines of JSON with changes; what JSON cannot say is left out."""
    out = []
    for line in changed(lines, rng, json_only=True):
        if signed and isinstance(line, dict) and rng.random() < 0.9:
            line.pop("crc", None)
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                line = _signed(line)
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            out.append(json.dumps(line))
    return "\n".join(out).encode() + b"\n"


def call(command: Callable[[], None], *words: object) -> None:
    """Run a command; refusing is fine if it costs one line."""
    sys.argv = ["navrl", *map(str, words)]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            command()
    except SystemExit as ended:
        sane(ended.code in (None, 0, 1, 2) and len(errors.getvalue().splitlines()) <= 1, errors.getvalue())
        if ended.code == 2:
            raise BadCheckpoint(errors.getvalue().strip()) from None


def sane(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(f"not sane: {what}")


def hydra_config(typed: list[str], fresh: Path) -> Any:
    cfg = compose("train", typed, return_hydra_config=True)
    OmegaConf.set_readonly(cfg.hydra, False)
    cfg.hydra.runtime.output_dir = str(fresh)
    return cfg


# --- running the cases ----------------------------------------------------------------------------------------------


def work(pipe: Any, folder: Path) -> None:
    """Open one case after the other and say what became of it."""
    logging.disable(logging.CRITICAL)
    sys.stdout = io.StringIO()
    files, process = Files(folder), psutil.Process()
    with initialize_config_dir(str(CONFIG), version_base=None):
        while True:
            try:
                kind, seed = pipe.recv()
            except EOFError:
                return
            if kind in ("state", "config"):  # a training freezes what it has built; here hundreds follow each other
                gc.unfreeze(), gc.collect()
            Path("/proc/self/clear_refs").write_text("5")  # forget the highest memory so far
            outcome, words, began, before = "loaded", "", time.perf_counter(), process.memory_info().rss
            try:
                KINDS[kind](files, random.Random(seed))
            except REFUSED as error:
                outcome, words = "refused", str(error)
                if "\n" in words or not words:
                    outcome = "traceback"
            except BaseException:
                outcome, words = "traceback", traceback.format_exc()
            sys.stdout.seek(0), sys.stdout.truncate()
            highest = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
            pipe.send((outcome, words, time.perf_counter() - began, max(0, highest - before) / 1e6))


class Worker:
    """A process that opens cases; a new one takes its place when it dies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, None

    def run(self, case: tuple[str, int]) -> tuple[str, str, float, float]:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=work, args=(other, self.folder), daemon=True)
            self.process.start()
            other.close()
        try:
            self.pipe.send(case)
            if self.pipe.poll(PATIENCE):
                return self.pipe.recv()
            words = f"no answer in {PATIENCE:.0f} s"
        except (EOFError, OSError):
            self.process.join()
            words = f"the process died with exit code {self.process.exitcode}"
        self.process.kill()
        self.process = None
        return "traceback", words, PATIENCE, 0.0


def make_run(folder: Path) -> None:
    """Two real runs: one with everything a run can leave, one that met infinity."""
    store = ["max_frame_num=256", "rollout_save_interval=1", "return_same_td=false", "compress_checkpoint=false"]
    for name, more in (("run", store), ("broken", ["reward.static_clearance=3e38"])):
        command = [sys.executable, "-m", "navrl", "train", *SETTINGS, *more, f"hydra.run.dir={folder / name}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if not (folder / name / "checkpoints").is_dir():
            sys.exit(f"error: the run to change could not be made: {done.stderr}")


def main() -> None:
    given = options(__doc__, cases=5000, seed=0, kinds=[*KINDS], show=False)
    folder = Path(tempfile.mkdtemp(prefix="navrl-fuzz-"))
    try:
        make_run(folder)
        worker, rng, began = Worker(folder), random.Random(given.seed), time.monotonic()
        count = {kind: {"loaded": 0, "refused": 0, "traceback": 0} for kind in given.kinds}
        slowest = peak = (0.0, "")
        for number in range(given.cases):
            kind = given.kinds[number % len(given.kinds)]
            case = kind, rng.getrandbits(48)
            outcome, words, seconds, memory = worker.run(case)
            count[kind][outcome] += 1
            slowest, peak = max(slowest, (seconds, f"{case}")), max(peak, (memory, f"{case}"))
            if outcome == "traceback":
                print(f"{case}: {words.strip()}\n", flush=True)
            elif given.show:
                print(f"{case}: {outcome} {words} {seconds:.2f} s")
            if (number + 1) % 500 == 0:
                print(f"{number + 1} cases, {time.monotonic() - began:.0f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for kind, outcomes in count.items():
        print(f"{kind:10}" + "  ".join(f"{outcome} {number:5}" for outcome, number in outcomes.items()))
    print(f"slowest: {slowest[1]}, most memory: {peak[1]}")
    tracebacks = sum(outcomes["traceback"] for outcomes in count.values())
    numbers = {"cases": given.cases, "tracebacks": tracebacks, "slowest_s": slowest[0], "peak_mb": peak[0]}
    print(json.dumps(numbers | {"kinds": count}))


if __name__ == "__main__":
    main()
