"""Two hosts train one run over a network that is slow, and that one of them loses for a while: does it end, unharmed?

    sudo python scripts/bench/hosts.py [iterations=150] [delay=5] [cut=20] [timeout=120]

The hosts are network namespaces of this machine, joined by a cable (two tun devices and a thread of this program, since
not every kernel has tc's netem) with `delay` ms each way; each has one torchrun and one rank. Once the run has saved
something, everything between them is lost for `cut` seconds. With `timeout` (ranks.timeout) above that, the ranks wait;
below, they give each other up and torchrun starts them again. Either way the final state must be, bit for bit, that of
a run that nobody disturbed. Needs root. The last line is JSON.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from navrl.checkpoint.retention import iteration_of, states_of
from navrl.cli import fail, options
from navrl.io.files import load_checkpoint
from navrl.io.snapshot import tensors_of

TRAIN = Path(__file__).parents[1] / "train.py"
BATCH = 64 * 8  # frames
SETTINGS = [
    "device=cpu", "env.num_envs=64", "algo.training_frame_num=8", "algo.num_minibatches=4", "env.num_maps=2",
    "env.num_obstacles=20", "env_dyn.num_obstacles=8", "env.max_episode_length=120", "eval_interval=0", "logger=none",
    "eval.scenarios=[crossing-20-8]", "eval.final_episodes=8", "eval.maps=2", "save_interval=10",
]  # fmt: skip
PATIENCE = 600.0  # s
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Cable:
    """Carries packets between two network devices of this process: later by `delay` seconds, or not at all if cut."""

    def __init__(self, devices: list[str], delay: float) -> None:
        self.delay, self.cut = delay, False
        self._ends = [self._open(device) for device in devices]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="cable", daemon=True)
        self._thread.start()

    @staticmethod
    def _open(device: str) -> int:
        handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
        return handle

    def _carry(self) -> None:
        under_way: collections.deque[tuple[float, int, bytes]] = collections.deque()
        while not self._ended.is_set():
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else 0.1
            for end in select.select(self._ends, [], [], wait)[0]:
                with contextlib.suppress(OSError):
                    packet = os.read(end, 65536)
                    if not self.cut:
                        under_way.append((time.monotonic() + self.delay, self._ends[end == self._ends[0]], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, end, packet = under_way.popleft()
                with contextlib.suppress(OSError):  # the other end is full or down: lost, as on any network
                    os.write(end, packet)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)


class Hosts:
    """Two network namespaces and the cable between them."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.names = [f"navrl{os.getpid()}{letter}" for letter in "ab"]
        self.devices = [f"nv{os.getpid() % 100000}{letter}" for letter in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def __enter__(self) -> Hosts:
        self.cable = Cable(self.devices, self.delay / 1e3)
        for k, (name, device) in enumerate(zip(self.names, self.devices, strict=True)):
            ip("netns", "add", name)
            ip("link", "set", device, "netns", name)
            ip("-n", name, "addr", "add", self.addresses[k], "peer", self.addresses[1 - k], "dev", device)
            ip("-n", name, "link", "set", device, "mtu", "9000", "up")
            ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        self.cable.close()
        for name in self.names:
            with contextlib.suppress(OSError):
                ip("netns", "del", name)

    @contextlib.contextmanager
    def train(self, folder: Path, *overrides: str) -> Iterator[list[subprocess.Popen]]:
        """One torchrun on each host; what they print is in `folder`."""
        processes = []
        for k, (name, device, address) in enumerate(zip(self.names, self.devices, self.addresses, strict=True)):
            meeting = ["--rdzv-backend=c10d", "--rdzv-id=navrl", f"--rdzv-endpoint={self.addresses[0]}:29400"]
            meeting += [f"--rdzv-conf=is_host={str(k == 0).lower()}", f"--local-addr={address}"]
            launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *meeting]
            command = ["ip", "netns", "exec", name, *launcher, "--max-restarts=5", str(TRAIN), *SETTINGS, *overrides]
            environment = os.environ | {"GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1"}
            with (folder / f"host-{k}.txt").open("a") as file:
                kwargs = {"stdout": file, "stderr": subprocess.STDOUT, "start_new_session": True}
                processes.append(subprocess.Popen(command, cwd=folder, env=environment, **kwargs))
        try:
            yield processes
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def newest(run: Path) -> int:
    states = states_of(run)
    return iteration_of(states[0]) if states else 0


def wait_for(what: str, condition, processes: list[subprocess.Popen], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline or any(process.poll() for process in processes):
            said = "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("host-*.txt")))
            sys.exit(f"{said}\nerror: {what} did not happen; this is what the hosts said")
        time.sleep(0.05)


def train(hosts: Hosts, folder: Path, iterations: int, timeout: float, cut: float) -> dict:
    """The final state of a run, with the cable cut once if `cut` is not 0."""
    folder.mkdir()
    run = folder / "run"
    given = f"max_frame_num={BATCH * iterations}", f"hydra.run.dir={run}", f"ranks.timeout={timeout}"
    with hosts.train(folder, *given) as processes:
        if cut:
            wait_for("a save", lambda: newest(run) >= iterations // 4, processes, folder)
            print(f"iteration {newest(run)}: nothing passes between the hosts for {cut:g} s", flush=True)
            hosts.cable.cut = True
            time.sleep(cut)
            hosts.cable.cut = False
        wait_for("the end", lambda: all(p.poll() is not None for p in processes), processes, folder)
    return load_checkpoint(states_of(run)[0])


def main() -> None:
    given = options(__doc__, iterations=150, delay=5.0, cut=20.0, timeout=120.0)
    if os.geteuid():
        fail("network namespaces need root; run it with sudo")
    with tempfile.TemporaryDirectory(prefix="navrl-hosts-") as name, Hosts(given.delay) as hosts:
        folder, began = Path(name), time.monotonic()
        quiet = train(hosts, folder / "undisturbed", given.iterations, given.timeout, 0.0)
        middle = time.monotonic()
        cut = train(hosts, folder / "disturbed", given.iterations, given.timeout, given.cut)
        text = "".join(path.read_text() for path in (folder / "disturbed").glob("host-*.txt"))
    pairs = [zip(tensors_of(quiet[part]), tensors_of(cut[part]), strict=True) for part in ("ppo", "batches", "flights")]
    result = {
        "iterations": cut["iteration"],
        "tensors_that_differ": sum(not torch.equal(a, b) for part in pairs for a, b in part),
        "restarts": text.count("resuming from"),
        "seconds_undisturbed": round(middle - began, 1),
        "seconds_disturbed": round(time.monotonic() - middle, 1),
        "machine_ranks": cut["machine"]["ranks"],
    }
    print(json.dumps(result))
    sys.exit(1 if result["tensors_that_differ"] or result["iterations"] != quiet["iteration"] else 0)


if __name__ == "__main__":
    main()
