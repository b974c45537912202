"""What looking costs: the live page beside nothing and beside a training, replay pages, videos.

    python scripts/bench/view.py [rounds=4] [seconds=10]        about seven minutes; run it alone
    python scripts/bench/view.py soak=20                        instead: minutes of play; a client comes and goes

realtime_factor_n: simulated seconds per second with n drones and a client that takes everything it is sent, at 30
pictures/s, as fast as it goes. watch_cost: frames/s that one training loses while it is watched, and idle_cost while
the page is there but nobody looks; by turns in the same run, against the viewer stopped. The client is a program of its
own without a picture, because a browser may run anywhere; chromium_factor_16 is with Debian's Chromium drawing in
software on these same cores, where it is installed. replay, video: 256 flights of the shipped policy. The last line is
JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from navrl.cli import fail, options
from navrl.monitor.metrics import read_rows
from navrl.task.evaluation import Evaluator, Scenario
from navrl.train.build import make_policy, named_policy
from navrl.train.settings import compose_config, read_eval, read_play
from navrl.view.play import PlayPage
from navrl.view.replay import write_replay
from navrl.view.video import write_video

SCENARIO = Scenario("crossing", 350, 80)
FAST = 200.0  # times real time: as fast as it goes
TRAIN = [
    "headless=True", "device=cpu", "logger=none", "eval_interval=0", "perf.interval=0", "save_interval=20",
    "eval.final_episodes=1", "eval.scenarios=[crossing-0-0]", "eval.maps=1", "max_frame_num=1e9",
]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- a client without a picture ---------------------------------------------------------------------------------------


async def _drain(port: int, seconds: float) -> int:
    """Bytes received by one client, which says where its camera is and then takes what it is sent."""
    import msgspec
    import viser
    import websockets
    from viser._messages import ViewerCameraMessage

    camera = ViewerCameraMessage((1, 0, 0, 0), (-9, 0, 6), 1.0, 0.01, 1000, 800, 1280, (0, 0, 0), (0, 0, 1))
    protocol, received, until = f"viser-v{viser.__version__}", 0, time.monotonic() + seconds
    address = f"ws://127.0.0.1:{port}"
    async with websockets.connect(address, subprotocols=[protocol], max_size=None) as socket_:  # pyright: ignore
        await socket_.send(msgspec.msgpack.encode(camera.as_serializable_dict()))
        while (left := until - time.monotonic()) > 0:
            try:
                received += len(await asyncio.wait_for(socket_.recv(), left))
            except TimeoutError:
                break
    return received


def client(port: int, seconds: float, count: int = 1) -> subprocess.Popen:
    """The same in a process of its own, at the lowest priority: a browser is no concern of this machine."""
    words = [sys.executable, __file__, f"client={port}", f"seconds={seconds}", f"clients={count}"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.nice(19))


async def _many(port: int, seconds: float, count: int) -> None:
    print(sum(await asyncio.gather(*(_drain(port, seconds) for _ in range(count)))), "bytes")


@contextmanager
def page(drones: int, speed: float) -> Iterator[PlayPage]:
    """The page in this process, its loop in a thread."""
    overrides = ["device=cpu", f"view.drones={drones}", f"view.port={free_port()}"]
    settings = read_play(compose_config("play", overrides))
    policy = lambda name: named_policy(name, settings.sim, settings.task, 7)  # noqa: E731
    live = PlayPage(settings.view, settings.sim, settings.task, "default", policy, [])
    live.clock.speed = speed
    thread = threading.Thread(target=live.run)
    thread.start()
    try:
        yield live
    finally:
        live.end()
        thread.join()
        live.close()


def factor(drones: int, seconds: float, chromium: bool = False) -> float:
    """Simulated seconds per second while somebody looks."""
    with page(drones, FAST) as live:
        viewer = browse(live.settings.port) if chromium else client(live.settings.port, seconds + 30)
        try:
            while not live.server.get_clients():
                time.sleep(0.05)
            time.sleep(3.0 if chromium else 1.0)
            began, simulated = time.perf_counter(), live.world.seconds
            time.sleep(seconds)
            return (live.world.seconds - simulated) / (time.perf_counter() - began)
        finally:
            viewer.terminate()
            viewer.wait()


def browse(port: int) -> subprocess.Popen:
    program = f"""
import shutil, sys, time
from playwright.sync_api import sync_playwright
with sync_playwright() as p:
    flags = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    page = p.chromium.launch(executable_path=shutil.which("chromium"), args=flags).new_page()
    page.goto("http://127.0.0.1:{port}")
    time.sleep(600)
"""
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)


# --- beside a training ------------------------------------------------------------------------------------------------


def watch_cost(rounds: int, seconds: float) -> dict[str, float]:
    """Frames/s of one training, by turns without a viewer, with an idle one, and watched.

    A training's own speed drifts, so that phases are compared within a round, there and back; costs are medians of
    rounds.
    """
    phases = ("alone", "idle", "watched")
    ratios: dict[str, list[float]] = {phase: [] for phase in phases}
    speed = 0.0
    with tempfile.TemporaryDirectory(prefix="navrl-view-") as name:
        run, port = Path(name) / "run", free_port()
        start = [sys.executable, "-m", "navrl"]
        training = subprocess.Popen([*start, "train", *TRAIN, f"hydra.run.dir={run}"], stdout=subprocess.DEVNULL)
        viewer = None
        try:
            while not (run / "policy.pt").exists():
                if training.poll() is not None:
                    fail("the training ended; its reason is above")
                time.sleep(0.5)
            words = [*start, "watch", str(run), f"view.port={port}", "view.browser=false", "device=cpu"]
            viewer = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            time.sleep(30.0)
            for number in range(rounds):
                round_speeds: dict[str, list[float]] = {phase: [] for phase in phases}
                for phase in (*phases, *reversed(phases)):
                    viewer.send_signal(signal.SIGSTOP if phase == "alone" else signal.SIGCONT)
                    guest = client(port, seconds + 5) if phase == "watched" else None
                    time.sleep(3.0)  # a client is let in, caches settle
                    before = len(_speeds(run))
                    time.sleep(seconds)
                    round_speeds[phase] += _speeds(run)[before:]
                    if guest:
                        guest.terminate()
                        guest.wait()
                middle = {phase: statistics.median(values) for phase, values in round_speeds.items()}
                speed = middle["alone"]
                for phase in phases:
                    ratios[phase].append(middle[phase] / middle["alone"])
                told = {phase: round(value) for phase, value in middle.items()}
                print(f"round {number + 1}: median frames/s {told}", flush=True)
        finally:
            for process in (viewer, training):
                if process:
                    process.kill()
                    process.wait()
    costs = {phase: 1.0 - statistics.median(values) for phase, values in ratios.items()}
    return {"watch_cost": costs["watched"], "idle_cost": costs["idle"], "training_frames_per_s": speed}


def _speeds(run: Path) -> list[float]:
    return [row["charts/SPS"] for row in read_rows(run / "metrics.csv") if "charts/SPS" in row]


# --- files to share ---------------------------------------------------------------------------------------------------


def files() -> dict[str, float]:
    """Size of a replay page and what it takes; speed and memory of a video."""
    words = ["device=cpu", "policy=default", "sim.decimation=4"]
    settings = read_eval(compose_config("eval", words))
    evaluator, policy = Evaluator(settings.evaluation, settings.sim, settings.task), make_policy(settings)
    evaluator.fly(SCENARIO, policy, 256)
    plain, recorded, flights = [], [], None
    for _ in range(3):
        for record, into in ((False, plain), (True, recorded)):
            began = time.perf_counter()
            flights = evaluator.fly(SCENARIO, policy, 256, record=record)
            into.append(time.perf_counter() - began)
    assert flights is not None
    with tempfile.TemporaryDirectory(prefix="navrl-view-") as name:
        replay, video = Path(name) / "flights.html", Path(name) / "flights.mp4"
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            write_replay(replay, "benchmark", flights)
            seconds.append(time.perf_counter() - began)
        with PeakMemory() as peak:
            began = time.perf_counter()
            write_video(video, "benchmark", flights)
            taken = time.perf_counter() - began
        return {
            "replay_mb": replay.stat().st_size / 1e6,
            "replay_seconds": min(seconds),
            "recording_seconds": min(recorded) - min(plain),
            "video_fps": frames_of(video) / taken,
            "video_mb": video.stat().st_size / 1e6,
            "video_peak_mb": peak.grown_mb,
        }


class PeakMemory(threading.Thread):
    """The most memory that this process has taken since, with its children: what they were started with is not theirs,
    so that `getrusage` would count this process twice."""

    def __init__(self) -> None:
        super().__init__()
        self._over, self._process = threading.Event(), psutil.Process()
        self._before, self.grown_mb = self._process.memory_info().rss, 0.0

    def run(self) -> None:
        while not self._over.wait(0.05):
            with contextlib.suppress(psutil.Error):
                others = sum(child.memory_info().rss for child in self._process.children() if child.name() != "python")
                now = self._process.memory_info().rss + others
                self.grown_mb = max(self.grown_mb, (now - self._before) / 1e6)

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def frames_of(video: Path) -> int:
    from imageio_ffmpeg import count_frames_and_secs

    return int(count_frames_and_secs(str(video))[0] or 0)


# --- for a long time --------------------------------------------------------------------------------------------------


def soak(minutes: float, visits: int = 50) -> dict[str, object]:
    """Memory and threads of the page while a client comes and goes, things are dropped, worlds and policies change."""
    process, samples = psutil.Process(), []
    with page(16, 1.0) as live:
        for visit in range(visits):
            count = 10 if visit % 10 == 9 else 1
            guest = client(live.settings.port, 60 * minutes / visits * 0.8, count)
            if visit % 5 == 1:
                live._do.put(lambda: live.drop("box"))
            if visit % 5 == 2:
                live._do.put(live.rebuild)
            if visit % 5 == 3:
                names = ("default", "straight") if visit % 2 else ("default", "none")
                live._do.put(lambda names=names: live.choose_policies(*names))
            guest.wait()
            time.sleep(60 * minutes / visits * 0.2)
            samples.append((process.memory_info().rss / 1e6, process.num_threads(), process.num_fds()))
            if live.error:
                fail(f"the page says: {live.error}")
            print(f"visit {visit + 1}: {samples[-1][0]:.0f} MB, {samples[-1][1]} threads", flush=True)
    half = samples[len(samples) // 2 :]
    return {
        "visits": visits,
        "memory_mb": [round(samples[k][0], 1) for k in (0, len(samples) // 4, len(samples) // 2, -1)],
        "growth_mb_second_half": round(half[-1][0] - half[0][0], 1),
        "threads": [half[0][1], half[-1][1]],
        "descriptors": [half[0][2], half[-1][2]],
    }


def main() -> None:
    given = options(__doc__, rounds=4, seconds=10.0, soak=0.0, client=0, clients=1)
    if given.client:
        asyncio.run(_many(given.client, given.seconds, given.clients))
        return
    torch.set_num_threads(1)
    if given.soak:
        print(json.dumps(soak(given.soak)))
        return
    result = files()
    for drones in (1, 16, 64):
        result[f"realtime_factor_{drones}"] = factor(drones, given.seconds)
        print(f"{drones} drones: {result[f'realtime_factor_{drones}']:.1f} × real time", flush=True)
    if shutil.which("chromium"):
        result["chromium_factor_16"] = factor(16, given.seconds, chromium=True)
    result |= watch_cost(given.rounds, given.seconds)
    print(json.dumps({name: round(value, 4) for name, value in result.items()}))


if __name__ == "__main__":
    main()
