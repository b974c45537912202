"""Where numbers and media go: a CSV file always, and wandb or TensorBoard if asked for."""

from __future__ import annotations

import contextlib
import csv
import errno
import inspect
import logging
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from navrl.io.files import open_file, whole_file
from navrl.monitor.flights import HEADINGS

log = logging.getLogger("navrl")

LARGEST = 1 << 29  # bytes of a metrics.csv
GROUPS = ("charts", "flights", "losses", "perf", "eval")  # what is before the / in the name of a metric
NO_KEY = "no API key; set WANDB_API_KEY or run wandb login"
TABLE = "media/table"
MEDIA = ("media/picture", "media/replay", "media/video", TABLE)  # of the newest evaluation


class Logger(Protocol):
    """Takes named numbers at a frame count, media as files, results of evaluations, and policies."""

    takes: ClassVar[frozenset[str]]  # suffixes of the files that `media` is given

    def log(self, metrics: Mapping[str, float], frames: int) -> None: ...
    def media(self, name: str, path: Path, frames: int) -> None: ...
    def table(self, results: Mapping[str, Mapping[str, Any]], frames: int) -> None: ...
    def policy(self, content: bytes, about: Mapping[str, Any], best: bool) -> None: ...
    def close(self) -> None: ...


class CsvLogger:
    """metrics.csv: one row per iteration, one column per metric; a column that appears later is added to the file.

    Rows are kept in memory only until they are on disk: a run may have any number of them. Everything else that is
    logged is in the run directory already.
    """

    takes: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, path: Path, rows: Sequence[Mapping[str, float]] | None = None) -> None:
        """`rows`: what the file holds from before, in a resumed run; None: it begins anew."""
        self.path = path
        self._unwritten = [*(rows or [])]
        self._columns: list[str] = []  # of the file
        self._whole = True  # nothing was torn by a write that failed
        self._begun = False

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        self._unwritten.append({"frames": frames, **metrics})
        if self._whole and self._begun and all(row.keys() <= set(self._columns) for row in self._unwritten):
            self._whole = False
            with open_file(self.path, "a", newline="") as file:
                csv.DictWriter(file, self._columns).writerows(self._unwritten)
        else:
            self._write_all(self.rows())
        self._whole, self._begun = True, True
        self._unwritten.clear()

    def rows(self, most: int | None = None) -> list[dict[str, float]]:
        """The rows so far, all or about `most` of them."""
        return [*(read_rows(self.path, most) if self._begun else []), *map(dict, self._unwritten)]

    def _write_all(self, rows: Sequence[Mapping[str, float]]) -> None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with whole_file(self.path, newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        self._columns = columns

    def media(self, name: str, path: Path, frames: int) -> None: ...
    def table(self, results: Mapping[str, Mapping[str, Any]], frames: int) -> None: ...
    def policy(self, content: bytes, about: Mapping[str, Any], best: bool) -> None: ...
    def close(self) -> None: ...


def read_rows(path: Path, most: int | None = None) -> list[dict[str, float]]:
    """The rows of a metrics.csv, without those that a crash, a power cut or somebody spoiled.

    Files of up to `LARGEST` bytes are read: 100,000 iterations are about 100 MB. With `most`, only about so many rows
    are kept, evenly spread, and all with a score: as many as a picture can show.
    """
    if path.stat().st_size > LARGEST:
        raise OSError(errno.EFBIG, f"{path} is larger than {LARGEST >> 20} MB, which no run of ours writes")
    stride = -(-sum(1 for _ in _whole_lines(path)) // most) if most else 1
    rows = []
    for number, row in enumerate(csv.DictReader(_whole_lines(path), quoting=csv.QUOTE_NONE)):
        if number % max(1, stride) and not any(value for key, value in row.items() if key and key.startswith("eval/")):
            continue
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            values = {key: float(value) for key, value in row.items() if value}
            values = {key: value for key, value in values.items() if abs(value) < 1e18}  # not NaN, not infinite
            if 0 <= values.get("frames", -1) <= 1e13:
                rows.append({**values, "frames": int(values["frames"])})
    return rows


def _whole_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line.replace("\0", "") for line in file if line.endswith("\n") and len(line) < 1 << 16)


class TensorBoardLogger:
    """Event files under `directory`, for `tensorboard --logdir`."""

    takes: ClassVar[frozenset[str]] = frozenset({".png", ".gif"})

    def __init__(self, directory: Path, after: int = 0) -> None:
        """`after`: frames up to which earlier events stand, in a resumed run."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory), purge_step=after + 1 if after else None)

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, frames)

    def media(self, name: str, path: Path, frames: int) -> None:
        """A picture, or a GIF as it is: TensorBoard's page plays it."""
        if path.suffix == ".png":
            import matplotlib.image

            self.writer.add_image(name, matplotlib.image.imread(path)[..., :3], frames, dataformats="HWC")
            return
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        with Image.open(path) as animation:
            width, height = animation.size
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=path.read_bytes())
        # What add_video does; that one wants the frames, and encodes them with a package of its own.
        self.writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), frames)

    def table(self, results: Mapping[str, Mapping[str, Any]], frames: int) -> None:
        """The table as Markdown, which TensorBoard shows as text."""
        columns, rows = table_rows(results, frames)
        lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
        self.writer.add_text(TABLE, "\n".join(f"| {' | '.join(line)} |" for line in lines), frames)

    def policy(self, content: bytes, about: Mapping[str, Any], best: bool) -> None: ...

    def close(self) -> None:
        self.writer.close()


class WandbLogger:
    """A wandb run. Offline needs neither account nor network; `wandb sync <directory>` uploads it later."""

    takes: ClassVar[frozenset[str]] = frozenset({".png", ".html", ".mp4"})

    def __init__(
        self,
        directory: Path,
        config: dict,
        mode: str,
        project: str | None,
        name: str | None = None,
        entity: str | None = None,
        run_id: str | None = None,
    ) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        wanted = {"project": project, "name": name, "entity": entity, "id": run_id, "dir": str(directory)}
        if run_id:
            wanted["resume"] = "allow"
        try:
            if mode == "online" and not has_api_key():
                raise RuntimeError(NO_KEY)
            self.run = wandb.init(**wanted, config=config, mode=mode, settings=wandb.Settings(init_timeout=20))  # pyright: ignore[reportArgumentType]
        except Exception as error:  # no key, no network, no such entity: wandb has a class of its own for each
            if mode != "online":
                raise
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            log.warning("wandb.mode=online: %s; logging offline, upload later with: wandb sync %s", reason, directory)
            self.run = wandb.init(**wanted, config=config, mode="offline")
        # wandb keeps a copy of every artifact until it is uploaded. In the user's home, where it keeps them by itself,
        # those of an offline run would outlive it, and a home that cannot be written to would be a failure.
        self._own_copies = "WANDB_DATA_DIR" not in os.environ
        if self._own_copies:
            os.environ["WANDB_DATA_DIR"] = str(Path(self.run.dir).absolute().parent)
        self._define_metrics()

    def _define_metrics(self) -> None:
        """Frames are the x axis, not wandb's own step: that may only rise, and a resumed run may repeat.

        No pattern matches what another does: wandb would take either of the two, at random.
        """
        self.run.define_metric("frames", hidden=True)
        for group in GROUPS:
            summary = "last,max" if group == "eval" else None
            self.run.define_metric(f"{group}/*", step_metric="frames", summary=summary)
        for name in MEDIA:
            self.run.define_metric(name, step_metric="frames")

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        self.run.log({"frames": frames, **metrics})

    def media(self, name: str, path: Path, frames: int) -> None:
        """A picture, a page or a video. wandb copies the file before this returns."""
        import wandb

        if path.suffix == ".html":
            shown = wandb.Html(str(path), inject=False)
        elif path.suffix == ".mp4":
            shown = wandb.Video(str(path), format="mp4")
        else:
            from PIL import Image

            with Image.open(path) as picture:  # wandb keeps every one: small, or they would be most of its directory
                small = picture.convert("RGB")
                small.thumbnail((1000, 1000))
            shown = wandb.Image(small, file_type="jpg")
        self.run.log({"frames": frames, name: shown})

    def table(self, results: Mapping[str, Mapping[str, Any]], frames: int) -> None:
        """One row per scenario. An online run asks the server first: 19 s where the network has gone."""
        import wandb

        columns, rows = table_rows(results, frames)
        self.run.log({"frames": frames, TABLE: wandb.Table(columns=[*columns], data=rows)})

    def policy(self, content: bytes, about: Mapping[str, Any], best: bool) -> None:
        """A new version of this run's artifact. An online run asks the server first, as for a table."""
        import wandb

        artifact = wandb.Artifact(f"policy-{self.run.id}", type="model", metadata={**about})
        with artifact.new_file("policy.pt", "wb") as file:
            file.write(content)
        self.run.log_artifact(artifact, aliases=["latest", *(["best"] if best else [])])
        if best:
            self.run.summary["best"] = {"success": about["success"], **about["scores"]}

    def text(self, name: str, content: str) -> None:
        """A text file that is uploaded with the run."""
        path = Path(self.run.dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        self.run.save(str(path), base_path=self.run.dir, policy="now")

    def close(self) -> None:
        try:
            self.run.finish()
        finally:
            if self._own_copies:
                os.environ.pop("WANDB_DATA_DIR", None)


def has_api_key() -> bool:
    """Whether wandb knows whose account to use; without a key it would ask for one and wait."""
    import wandb

    if "prompt" in inspect.signature(wandb.login).parameters:
        return wandb.login(prompt=False, verify=False)
    return bool(wandb.api.api_key)  # of an older wandb


def table_rows(results: Mapping[str, Mapping[str, Any]], frames: int) -> tuple[list[str], list[list]]:
    """Columns and rows of an evaluation: one row per scenario, every figure with half of its 95 % interval."""
    columns = ["scenario", "frames", "flights", *(column for name in HEADINGS for column in (name, f"{name} ±"))]
    rows = []
    for scenario, result in results.items():
        row = [scenario, frames, result["episodes"]]
        for name in HEADINGS:
            interval = result[f"{name}_ci95"]
            row += [result[name], interval and (interval[1] - interval[0]) / 2]
        rows.append(row)
    return columns, rows


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "–" if value is None else f"{value}"


def code_version() -> str:
    """The commit this code is at, with + if files were changed since; 'unknown' outside a checkout."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here, capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit + ("+" if changed else "")
