"""Watch a run while it trains: its newest policy flies on a page, with its curves beside it.

navrl watch runs/<date>/<time>                       at http://127.0.0.1:8080; start it in a second terminal
navrl watch run=runs/<date>/<time> view.drones=2 view.port=9000

The page picks up every policy that the run saves, and costs the training next to nothing; while nobody has the page
open it costs nothing. Sensor and drone are those of the run.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

from omegaconf import DictConfig

from navrl.cli import hydra_command
from navrl.settings import ConfigError
from navrl.train.settings import read_play
from navrl.train.show import serve, with_settings_of


@hydra_command("play", __doc__, bare="run")
def main(cfg: DictConfig) -> None:
    if cfg.run is None:
        raise ConfigError("run", "null", "name the run directory to watch, as in: navrl watch runs/<date>/<time>")
    serve(read_play(with_settings_of(str(cfg.run), cfg)))


if __name__ == "__main__":
    main()
