"""The command line: `navrl <command> key=value …`. Every script goes through here, so all behave alike.

Help is shown by --help, a mistake costs one line and exit code 2, and Ctrl-C never shows a traceback.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from errno import EACCES, EDQUOT, EEXIST, ENOSPC, ENOTDIR, EPERM, EROFS
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from navrl.settings import ConfigError

COMMANDS = {
    "train": "train a policy",
    "eval": "fly a policy over unseen maps and count how the flights end",
    "export": "write a policy as ONNX and TorchScript, for a robot",
    "report": "compare runs: a table and their learning curves",
    "rollouts": "list and draw the rollouts a run has stored",
    "replay": "repeat an update that met NaN or infinity",
    "parity": "fly the same on Warp and on Isaac Lab, and compare",
}
DISK_TROUBLE = (ENOSPC, EDQUOT, EACCES, EPERM, EROFS, ENOTDIR, EEXIST)
RULE = "─" * 120


def main(arguments: Sequence[str] | None = None) -> None:
    """`navrl` and `python -m navrl`."""
    import navrl

    name, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name in ("--version", "-V"):
        print(f"navrl {navrl.__version__}")
    elif name in COMMANDS:
        sys.argv = [f"navrl {name}", *rest]
        importlib.import_module(f"navrl.scripts.{name}").main()
    else:
        lines = [f"  navrl {command:10} {about}" for command, about in COMMANDS.items()]
        text = "\n".join(["Train drones to fly safely among static and moving obstacles.", "", *lines, ""])
        print(text + "\nnavrl <command> --help shows every key; settings are given as key=value.")
        if name not in ("--help", "-h", "help"):
            fail(f"{name}: no such command; choose one of {', '.join(COMMANDS)}")


# --- scripts with a configuration in cfg/ (train, eval) ---------------------------------------------------------------


def hydra_command(name: str, about: str | None) -> Callable[[Callable], Callable[[], None]]:
    """Decorate a function of a composed config: it becomes the whole command, with cfg/<name>.yaml as its keys."""

    def decorate(function: Callable) -> Callable[[], None]:
        import hydra

        from navrl.train.settings import CONFIG

        application = hydra.main(config_path=str(CONFIG), config_name=name, version_base=None)(_refusals(function))

        @functools.wraps(function)
        def command() -> None:
            if {"--help", "-h"} & set(sys.argv[1:]):
                _show_help(about or "", name, CONFIG)
                return
            short = re.compile(r"^checkpoint=")  # for checkpoint.file, in train.yaml
            sys.argv[1:] = [short.sub("checkpoint.file=", a) if name == "train" else a for a in sys.argv[1:]]
            _run_hydra(application)

        return command

    return decorate


def _refusals(function: Callable) -> Callable:
    """A refused value is one line, exit code 2, and leaves no run directory behind."""
    from omegaconf.errors import OmegaConfBaseException

    from navrl.sim.isaac_check import IsaacMissing
    from navrl.train.directory import remove_fresh_directory

    @functools.wraps(function)
    def guarded(cfg: object) -> None:
        try:
            function(cfg)
        except KeyboardInterrupt:
            print("\ninterrupted; what was finished is in the run directory", file=sys.stderr)
            sys.exit(130)
        except (ConfigError, OmegaConfBaseException, IsaacMissing) as error:
            remove_fresh_directory()
            print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
            sys.exit(2)

    return guarded


def _run_hydra(application: Callable[[], None]) -> None:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # let errors through to here
    try:
        application()
    except (HydraException, OmegaConfBaseException) as error:  # an unknown key, a value that cannot be parsed, ...
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in DISK_TROUBLE:
            raise
        directory = next((a for a in sys.argv[1:] if a.startswith("hydra.run.dir=")), "hydra.run.dir")
        print(f"error: {directory}: {error}; choose a directory that can be written", file=sys.stderr)
        sys.exit(2)
    finally:
        if isaac := sys.modules.get("navrl.sim.isaac_engine"):  # Isaac Sim ends the process, so it is closed last
            isaac.leave_runtime(*sys.exc_info())


def _show_help(about: str, name: str, folder: Path) -> None:
    print(about.strip())
    for file in (folder / f"{name}.yaml", folder / "base.yaml", *sorted(folder.glob("sim/*.yaml"))):
        print(f"\n{RULE}\ncfg/{file.relative_to(folder)}\n")
        print(file.read_text().partition("\nhydra:")[0].strip())
    presets = ", ".join(file.stem for file in sorted(folder.glob("reward/*.yaml")))
    print(f"\n{RULE}\nreward=<preset> chooses one of: {presets}")


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
            given[name] = value.strip("[]").split(",") if value.startswith("[") else [value]
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
    print(f"error: {line}", file=sys.stderr)
    sys.exit(2)
