"""Lay out a wandb project's page for our runs: scores, how flights end, learner, speed and memory, media.

navrl workspace entity=<user or team> project=navrl

Saves a new view, "navrl runs", in the project and prints its address. Needs wandb-workspaces and an API key. The layout
was built and inspected here, but never sent to wandb's own server.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import os
from typing import TYPE_CHECKING, Any

from navrl.cli import command, fail, options

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

NAME = "navrl runs"
FRAMES = "frames"  # the x axis
SMOOTHED = 0.6  # of training flights and losses, which are noisy


@command
def main() -> None:
    given = options(__doc__, entity=None, project="navrl")
    if not given.entity:
        fail("entity=null: give the user or team that the wandb project belongs to")
    try:
        import wandb_workspaces  # noqa: F401
    except ImportError:
        fail("layouts need wandb-workspaces, which is not installed: pip install 'wandb-workspaces>=0.4,<1'")
    os.environ.setdefault("WANDB_SILENT", "true")
    from navrl.monitor.metrics import NO_KEY, has_api_key

    try:
        if not has_api_key():
            raise RuntimeError(NO_KEY)
        saved = build_workspace(given.entity, given.project).save()
    except Exception as error:  # no network, no such entity: each has a class of its own
        reason = str(error).strip() or type(error).__name__
        fail(f"entity={given.entity} project={given.project}: could not be saved: {reason.splitlines()[0]}")
    print(f"saved: {saved.url}")


def build_workspace(entity: str, project: str) -> Workspace:
    """The layout, which nothing has been sent of yet."""
    import wandb_workspaces.workspaces as ws

    sections = {
        "scores on unseen maps": _scores(),
        "how training flights end": [
            _lines("success", "flights/success", share=True),
            _lines("hit a box", "flights/static_collision", share=True),
            _lines("hit a mover", "flights/dynamic_collision", share=True),
            _lines("out of bounds", "flights/out_of_bounds", share=True),
            _lines("too late", "flights/timeout", share=True),
            _lines("return", "flights/return"),
            _lines("length", "flights/length"),
        ],
        "learner": [
            _lines("KL divergence", "losses/approx_kl"),
            _lines("learning rate", "charts/learning_rate"),
            _lines("entropy", "losses/entropy"),
            _lines("clipped share", "losses/clipfrac", share=True),
            _lines("explained variance", "losses/explained_variance"),
            _lines("value loss", "losses/value_loss"),
            _lines("policy loss", "losses/policy_loss"),
            _lines("gradient norm", "losses/grad_norm"),
        ],
        "speed and memory": [
            _lines("frames per second", "charts/SPS"),
            _lines("share of time", regex=r"^perf/[a-z]+_share$", share=True),
            _lines("memory, MB", "perf/memory_mb"),
            _lines("buffers, MB", "perf/buffers_mb"),
        ],
        "media": _media(),
    }
    return ws.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
        settings=ws.WorkspaceSettings(x_axis=FRAMES, group_by_prefix="first"),
    )


def _scores() -> list[Any]:
    """Success by frames and by time, whichever scenarios the runs have, and the table of the newest evaluation."""
    import wandb_workspaces.reports.v2 as wr

    success = {"metric_regex": r"^eval/.+/success$", "range_y": (0.0, 1.0)}
    return [
        wr.LinePlot(title="success by frames", x=FRAMES, title_x="frames", **success),
        wr.LinePlot(title="success by time", x="RelativeTime(Process)", title_x="time", **success),
        wr.WeavePanelSummaryTable(table_name="media/table"),
    ]


def _media() -> list[Any]:
    import wandb_workspaces.reports.v2 as wr

    shown = {"replay in 3-D": "media/replay", "video": "media/video", "flights from above": "media/picture"}
    return [
        wr.MediaBrowser(title=title, media_keys=[key], num_columns=1, mode="gallery", gallery_axis="run")
        for title, key in shown.items()
    ]


def _lines(title: str, *metrics: str, regex: str | None = None, share: bool = False) -> Any:
    """A plot over frames, one line per run and metric."""
    import wandb_workspaces.reports.v2 as wr

    limits = (0.0, 1.0) if share else (None, None)
    smoothing = {"smoothing_type": "exponentialTimeWeighted", "smoothing_factor": SMOOTHED}
    return wr.LinePlot(
        title=title, x=FRAMES, y=[*metrics], metric_regex=regex, title_x="frames", range_y=limits, **smoothing
    )


if __name__ == "__main__":
    main()
