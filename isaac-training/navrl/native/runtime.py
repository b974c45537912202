"""Starts NVIDIA Warp without its banner, and without its warning about a missing GPU on machines that have none."""

from __future__ import annotations

import os
import sys
from functools import cache

import torch
import warp as wp

# Nothing here is differentiated; without backward code kernels compile in half the time.
FORWARD_ONLY = {"enable_backward": False}


@cache
def start_warp() -> None:
    """Initialise Warp; further calls do nothing."""
    wp.config.log_level = wp.LOG_WARNING
    if torch.cuda.is_available():
        wp.init()
        return
    # The warning is written by C code straight to file descriptor 2, so that is what must be redirected.
    sys.stderr.flush()
    saved, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    try:
        wp.init()
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(silent)
