"""An output that breaks costs what would have been shown, and the exit code."""

from __future__ import annotations

import os
import subprocess
import sys

from navrl.io.output import OUTPUT_LOST

PROGRAM = """
import sys
from navrl.cli import command
@command
def main():
    for number in range(20_000):
        print("line", number, "é")
    print("to the end", file=sys.stderr)
main()
"""


def test_a_pipe_that_is_closed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stderr and process.stdout.readline() == "line 0 é\n"
    process.stdout.close()
    assert process.stderr.read() == "to the end\n" and process.wait() == OUTPUT_LOST


def test_nothing_breaks() -> None:
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, env=ascii_only)
    assert done.returncode == 0 and done.stdout.endswith(b"line 19999 ?\n") and done.stderr == b"to the end\n"
