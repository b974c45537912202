"""The command line: `navrl <command> key=value …`. Every script goes through here, so all behave alike.

Help is shown by --help, a mistake costs one line and exit code 2, a signal never shows a traceback, and an output that
breaks ends nothing.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import NoReturn

from navrl.checkpoint.stop import on_signals
from navrl.io.output import OUTPUT_LOST, leave, lost_output, make_output_lenient
from navrl.settings import ConfigError, one_line

COMMANDS = {
    "train": "train a policy",
    "eval": "fly a policy over unseen maps and count how the flights end",
    "export": "write a policy as ONNX and TorchScript, for a robot",
    "play": "fly a policy on a page in the browser, live, to watch and to disturb",
    "watch": "the same page for a run while it trains",
    "video": "write a video of a policy's flights",
    "report": "one page about a run, or a comparison of several",
    "rollouts": "list and draw the rollouts a run has stored",
    "replay": "repeat an update that met NaN or infinity",
    "sweep": "search for better settings with many runs, on any number of machines",
    "parity": "fly the same on Warp and on Isaac Lab, and compare",
    "workspace": "lay out a project's page on wandb",
    "tune": "measure this machine and write a hardware preset for it",
}
# What a disk, a directory or their permissions can be blamed for. Anything else is an error of ours: a traceback.
DISK_TROUBLE = {
    errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR, errno.ELOOP, errno.EMFILE,
    errno.ENAMETOOLONG, errno.ENFILE, errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip
RUN_KEYS = ("hydra.run.dir", "hydra.sweep.dir", "resume")
PATH_KEYS = (*RUN_KEYS, "checkpoint", "checkpoint.file", "policy", "run", "output", "view.ghost")
RULE = "─" * 120


def main(arguments: Sequence[str] | None = None) -> None:
    """`navrl` and `python -m navrl`."""
    begin()
    import navrl

    name, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name == "torchrun":
        _torchrun(rest)
    if name in COMMANDS:
        sys.argv = [f"navrl {name}", *rest]
        importlib.import_module(f"navrl.scripts.{name}").main()
        return
    if name in ("--version", "-V"):
        print(f"navrl {navrl.__version__}")
    else:
        lines = [f"  navrl {command:10} {about}" for command, about in COMMANDS.items()]
        lines.append("  navrl torchrun   any of them in several processes: navrl torchrun --nproc-per-node 2 train …")
        text = "\n".join(["Train drones to fly safely among static and moving obstacles.", "", *lines, ""])
        print(text + "\nnavrl <command> --help shows every key; settings are given as key=value.")
        if name not in ("--help", "-h", "help"):
            fail(f"{name}: no such command; choose one of {', '.join(COMMANDS)}")
    _end()


def _torchrun(arguments: list[str]) -> NoReturn:
    """`navrl torchrun <torchrun's options> train key=value …`: what went wrong is said once, by one rank."""
    import logging

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    place = next((k for k, word in enumerate(arguments) if word in COMMANDS), None)
    if place is None:
        fail("torchrun: name the command to run, as in: navrl torchrun --nproc-per-node 2 train env.num_envs=1024")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # or torchrun warns; ranks set their threads themselves
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    try:
        torchrun([*arguments[:place], "-m", "navrl", *arguments[place:]])
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        sys.exit(code if code > 0 else 128 - code)
    except SignalException as error:
        sys.exit(128 + error.sigval)
    sys.exit(0)


def begin() -> None:
    """Call this before anything slow, imports included: from here on a signal or a broken output is survived."""
    make_output_lenient()
    on_signals(_leave)


def _leave(number: int, _: FrameType | None) -> None:
    """A signal before training has begun, or in a command that has nothing to save: leave at once."""
    if directory := sys.modules.get("navrl.train.directory"):
        with contextlib.suppress(Exception):
            if left := directory.remove_fresh_directory():
                os.write(2, f"\ninterrupted; what was finished is in {left}\n".encode(errors="replace"))
    leave(128 + number)


def _end() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if lost_output():
        sys.exit(OUTPUT_LOST)


def command(function: Callable[[], None]) -> Callable[[], None]:
    """Decorate the `main` of a script: signals, broken output and full disks end it as they should."""

    @functools.wraps(function)
    def run() -> None:
        begin()
        try:
            function()
        except SystemExit as ended:
            if ended.code:
                raise
        except OSError as error:
            if error.errno not in DISK_TROUBLE:
                raise
            fail(_explain(error))
        _end()

    return run


def _explain(error: OSError) -> str:
    """Name the file that failed, why, and what to do."""
    if error.filename is None:
        return f"{error.strerror or error}"
    path, warp = Path(os.fsdecode(error.filename)), sys.modules.get("warp")
    cache = warp and warp.config.kernel_cache_dir
    if cache and path.absolute().is_relative_to(Path(cache).absolute()):
        fix = "compiled kernels are kept there; choose another place with WARP_CACHE_PATH=<directory>"
        return f"{path}: {error.strerror}: {fix}"
    typed = [(key, value.strip("'")) for key, _, value in (a.partition("=") for a in sys.argv[1:]) if key in RUN_KEYS]
    for key, directory in [*typed, ("hydra.run.dir", "runs"), ("hydra.sweep.dir", "multirun")]:
        if path.absolute().is_relative_to(Path(directory).absolute()):
            fix = "make it writable" if key == "resume" else f"choose another directory with {key}=<directory>"
            return f"{key}={directory}: {path}: {error.strerror}; {fix}"
    return f"{path}: {error.strerror}"


# --- scripts with a configuration in cfg/ (train, eval) ---------------------------------------------------------------


def hydra_command(name: str, about: str | None, bare: str = "") -> Callable[[Callable], Callable[[], None]]:
    """Decorate a function of a composed config: it becomes the whole command, with cfg/<name>.yaml as its keys.

    A word without = is a value of the key `bare`, if there is one.
    """

    def decorate(function: Callable) -> Callable[[], None]:
        @functools.wraps(function)
        def run() -> None:
            from navrl.train.settings import CONFIG

            if {"--help", "-h"} & set(sys.argv[1:]):
                _show_help(about or "", name, CONFIG)
                return
            if bare:
                words = [a if "=" in a or a.startswith("-") else f"{bare}={a}" for a in sys.argv[1:]]
                sys.argv[1:] = words
            sweep = {"-m", "--multirun"} & set(sys.argv[1:])
            if sweep:  # first: Hydra does not understand it between settings
                sys.argv[1:] = ["-m", *(a for a in sys.argv[1:] if a not in sweep)]
            else:
                sys.argv[1:] = [quoted(argument) for argument in sys.argv[1:]]
            if name == "train":
                from navrl.train.hardware import with_hardware

                try:
                    sys.argv[1:] = with_hardware([whole_key(argument) for argument in sys.argv[1:]])
                except ConfigError as error:
                    fail(str(error))
            if os.environ.get("RANK", "0") != "0":  # rank 0 has the run directory; Hydra would make one for each
                sys.argv[1:] = [a for a in sys.argv[1:] if not a.startswith("hydra.run.dir=")] + ["hydra.run.dir=."]
            if "RANK" in os.environ and sweep:
                fail("-m: starts several runs in turn, but these are ranks of one; leave out torchrun or -m")
            _run_hydra(function, name, str(CONFIG))

        return command(run)

    return decorate


def whole_key(argument: str) -> str:
    """`checkpoint=` is short for `checkpoint.file=` of train.yaml."""
    return re.sub(r"^checkpoint=", "checkpoint.file=", argument)


def quoted(argument: str) -> str:
    """A path as Hydra reads it: its grammar has uses of its own for spaces, commas, brackets and the like."""
    key, _, path = argument.partition("=")
    plain = re.fullmatch(r"[\w./+%@*?|-]*", path, re.ASCII) or path[:1] in ("'", '"') or "${" in path
    if key not in PATH_KEYS or plain or (path[0] in "[{" and not os.path.lexists(path)):
        return argument
    return f"{key}='" + re.sub(r"(\\*)'", r"\1\1\\'", path) + "'"


def _run_hydra(function: Callable, name: str, config: str) -> None:
    """Refused values are one line, exit code 2, and leave no run directory behind."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from navrl.ranks import RankFailed
    from navrl.sim.isaac_check import IsaacMissing
    from navrl.train.directory import remove_fresh_directory

    seen = SimpleNamespace(composed=False)  # until then whatever fails is about what was typed

    def guarded(cfg: object) -> None:
        seen.composed = True
        try:
            function(cfg)
        except (ConfigError, OmegaConfBaseException, IsaacMissing) as error:
            remove_fresh_directory()
            fail(str(error).splitlines()[0])
        except RankFailed as error:  # what a rank raised it says itself
            remove_fresh_directory()
            if not error.kind:
                print(f"error: {one_line(str(error))}", file=sys.stderr)
            sys.exit(2 if error.kind == ConfigError.__name__ else 1)
        except OSError as error:
            remove_fresh_directory()
            if error.errno not in DISK_TROUBLE:
                raise
            fail(_explain(error))  # here: Hydra would add a line of its own

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # let errors through to here
    try:
        hydra.main(config_path=config, config_name=name, version_base=None)(functools.wraps(function)(guarded))()
    except (HydraException, OmegaConfBaseException) as error:  # an unknown key, a value that cannot be parsed, ...
        fail(explain_config(error))
    except OSError:
        raise
    except Exception as error:
        if seen.composed:
            raise
        fail(f"{' '.join(sys.argv[1:])}: {str(error).strip() or type(error).__name__} (--help lists every key)")
    finally:
        if isaac := sys.modules.get("navrl.sim.isaac_engine"):  # Isaac Sim ends the process, so it is closed last
            isaac.leave_runtime(*sys.exc_info())


def explain_config(error: Exception) -> str:
    """What Hydra or OmegaConf refuses, in one line."""
    line = str(error).strip().partition("\n")[0].rstrip(".")
    key = getattr(error, "full_key", None)
    line = f"{key}: {line}" if key and key not in line else line
    hint = "; --help lists every key" if "Could not override" in line else ""
    return line + (hint or "; settings are given as key=value" if "parsing override" in line else hint)


def _show_help(about: str, name: str, folder: Path) -> None:
    print(about.strip())
    for file in (folder / f"{name}.yaml", folder / "base.yaml", *sorted(folder.glob("sim/*.yaml"))):
        print(f"\n{RULE}\ncfg/{file.relative_to(folder)}\n")
        print(file.read_text("utf-8").partition("\nhydra:")[0].strip())
    for group in ("reward", *(["hardware"] if name == "train" else [])):
        presets = ", ".join(file.stem for file in sorted(folder.glob(f"{group}/*.yaml")))
        print(f"\n{RULE}\n{group}=<preset> chooses one of: {presets}")


# --- scripts with a handful of keys (export, report, benchmarks, ...) -------------------------------------------------


def options(about: str | None, main_key: str = "", /, **defaults: object) -> SimpleNamespace:
    """Read key=value arguments; each has the type of its default, None is any text, a list takes [a,b].

    A bare word is a value of `main_key`. The older spelling `--key value …` is understood too.
    """
    if {"--help", "-h"} & set(sys.argv[1:]):
        print((about or "").strip() + "\n\nkeys and their defaults:")
        print("\n".join(f"  {key}={_written(value)}" for key, value in defaults.items()))
        sys.exit(0)
    given: dict[str, list[str]] = {}
    key = main_key
    for word in sys.argv[1:]:
        if re.match(r"--\w", word):
            key, equals, value = word[2:].replace("-", "_").partition("=")
            given.setdefault(key, []).extend([value] if equals else [])
        elif re.match(r"\w+=", word):
            name, _, value = word.partition("=")
            many = isinstance(defaults.get(name), list | tuple) and value.startswith("[")
            given[name] = value.strip("[]").split(",") if many else [value]
            key = main_key
        else:
            given.setdefault(key, []).append(word)
    values = dict(defaults)
    for name, words in given.items():
        if name not in defaults:
            wrong = f"{name}={words[0] if words else ''}" if name else words[0]
            fail(f"{wrong}: no such key; the keys are {', '.join(defaults)} (--help explains them)")
        values[name] = _parsed(name, words, defaults[name])
    return SimpleNamespace(**values)


def _parsed(name: str, words: list[str], default: object) -> object:
    if isinstance(default, list | tuple):
        kind = type(default[0]) if default else str
        return [_parsed(name, [word.strip()], kind()) for word in words]
    word = words[-1] if words else "true"
    if isinstance(default, bool):
        if word.lower() not in ("true", "false"):
            fail(f"{name}={word}: must be true or false")
        return word.lower() == "true"
    if isinstance(default, int | float):
        try:
            return type(default)(word)
        except ValueError:
            fail(f"{name}={word}: must be a {'whole ' if isinstance(default, int) else ''}number")
    return word


def _written(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def fail(line: str) -> NoReturn:
    """One line, and exit code 2."""
    print(f"error: {one_line(line.strip(), 2000)}", file=sys.stderr)
    sys.exit(2)
