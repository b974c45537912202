"""The machine a run is trained on, for people."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path

import psutil
import torch

import navrl


@functools.cache
def describe_machine() -> dict[str, str]:
    """Processor, memory, GPU, system and versions (`machine_now` has that of torch).

    No name of host or user: a report is made to be shared.
    """
    cores, logical = psutil.cpu_count(logical=False), psutil.cpu_count()
    usable = len(os.sched_getaffinity(0))
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "CPU": _cpu_model(),
        "cores": f"{usable} usable of {logical}" + (f" ({cores} physical)" if cores and cores != logical else ""),
        "memory": f"{psutil.virtual_memory().total / 1e9:.1f} GB",
        "GPU": ", ".join(gpus) or "none",
        "system": f"{platform.system()} {platform.release()}, {_distribution()}",
        "Python": platform.python_version(),
        "navrl": navrl.__version__,
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _distribution() -> str:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    return "unknown distribution"
