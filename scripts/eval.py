"""Fly a policy over maps it has never seen: a table, eval.json, a picture of every flight and replays in 3-D.

navrl eval policy=default eval.scenarios=[crossing-350-80] eval.episodes=256
navrl eval policy=runs/2026-11-16/18-31-09/policy.pt sim.decimation=4

`policy` is a file, or one of: default (comes with navrl), navrl (NavRL's published one), straight, hover, random.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import json
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from navrl.cli import hydra_command
from navrl.io.files import write_text
from navrl.monitor.flights import results_table
from navrl.task.evaluation import Evaluator, Scenario, summarize
from navrl.train.build import make_policy
from navrl.train.directory import fresh_directory, write_settings
from navrl.train.evaluation import writers
from navrl.train.settings import plain, read_eval


@hydra_command("eval", __doc__)
def main(cfg: DictConfig) -> None:
    # Everything the user wrote is read, and may be refused, before anything is built.
    settings = read_eval(cfg)
    policy = make_policy(settings)
    evaluator, episodes = Evaluator(settings.evaluation, settings.sim, settings.task), settings.evaluation.episodes

    run = fresh_directory()
    write_settings(run, plain(cfg), list(HydraConfig.get().overrides.task))
    console = Console()
    if not console.is_terminal:
        console.width = 120  # nobody resizes a log file
    results: dict[str, dict] = {}
    with ScenarioBars(console) as bars:
        for scenario in settings.evaluation.scenarios:
            bars.begin(scenario, episodes)
            flights = evaluator.fly(scenario, policy, report=bars.report, record=settings.evaluation.records)
            assert flights is not None, "nobody cancels it"
            result = results[str(scenario)] = summarize(flights)
            if not console.is_terminal:  # a bar that cannot move says nothing until the end
                console.print(f"{scenario}: {100 * result['success']:.1f} % success")
            write_text(run / "eval.json", json.dumps(results, indent=2) + "\n")
            title = f"{Path(settings.policy).name}   {scenario}   {episodes} flights"
            for _, suffix, write in writers(settings.evaluation):
                write(run / f"flights-{scenario}{suffix}", title, flights)
            del flights  # 40 MB of recording are not kept while the next scenario is flown

    title = f"policy={settings.policy}, {episodes} flights per scenario, seed {settings.evaluation.seed}"
    console.print(results_table(results, title))
    console.print(f"numbers, pictures and replays: {run}")


class ScenarioBars(Progress):
    """A progress bar per scenario."""

    def __init__(self, console: Console) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        super().__init__(*columns, console=console)

    def begin(self, scenario: Scenario, episodes: int) -> None:
        self._scenario, self._bar = scenario, self.add_task(str(scenario), total=episodes)

    def report(self, done: int, total: int, what: str = "") -> None:
        self.update(self._bar, description=f"{self._scenario}{what}", completed=done, total=total)


if __name__ == "__main__":
    main()
