"""Open a page where a policy flies, live: watch it, follow a drone, drag what is in its way.

navrl play                                           the policy that comes with navrl, at http://127.0.0.1:8080
navrl play policy=runs/<date>/<time>/policy.pt       one of yours
navrl play view.ghost=navrl view.scenario=crossing-350-120 view.drones=16
navrl play view.port=9000 view.host=0.0.0.0          for everybody in the network, without a password

`policy` is a file, or one of: default (comes with navrl), navrl (NavRL's published one), straight, hover, random.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

from omegaconf import DictConfig

from navrl.cli import hydra_command
from navrl.train.settings import read_play
from navrl.train.show import serve


@hydra_command("play", __doc__)
def main(cfg: DictConfig) -> None:
    serve(read_play(cfg))


if __name__ == "__main__":
    main()
