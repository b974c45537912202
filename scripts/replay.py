"""Repeat the update that met NaN or infinity, from the file train.py left, and say where it appears.

navrl replay runs/<date>/<time>/not_finite.pt
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import sys

from navrl.cli import command, fail, options
from navrl.io.files import BadCheckpoint
from navrl.ppo.batch import Batch
from navrl.ppo.ppo import NotFinite
from navrl.train.replay import load_replay


@command
def main() -> None:
    given = options(__doc__, "file", file=None)
    if given.file is None:
        fail("file=null: give the not_finite.pt of a run (--help shows how)")
    try:
        ppo, data, saved = load_replay(given.file)
    except BadCheckpoint as error:
        fail(str(error))
    print(f"iteration {saved['iteration']}: {saved['name']} was not finite")
    if saved["on_gpu"]:
        print("that was on a GPU; replayed on the CPU with other random numbers, so the result may differ")
    try:
        ppo.update(data, saved["progress"]) if isinstance(data, Batch) else ppo.actor(data)
    except NotFinite as error:
        print(f"again: {error.name} is not finite")
        return
    print("this time every number is finite")
    sys.exit(1)


if __name__ == "__main__":
    main()
