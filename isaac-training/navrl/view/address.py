"""Where the live page is, what it shows at first, and how a person gets there."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Any

from navrl.settings import SEED, ConfigError, setting
from navrl.task.evaluation import Scenario

MOST_DRONES = 64


def scenario(value: Any, key: str) -> Scenario:
    """Parse one scenario."""
    try:
        return Scenario.parse(str(value))
    except ValueError as error:
        raise ConfigError(key, value, str(error)) from error


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Where the page is, and what it shows at first."""

    host: str = setting("view.host")
    port: int = setting("view.port", 1, 65535)
    browser: bool = setting("view.browser")
    scenario: Scenario = setting("view.scenario", parse=scenario)
    seed: int = setting("view.seed", *SEED)
    drones: int = setting("view.drones", 1, MOST_DRONES)
    speed: float = setting("view.speed", 0.05, 10.0)
    ghost: str | None = setting("view.ghost")
    seconds: float = setting("view.seconds", 0.0)  # 0: until Ctrl-C

    @property
    def local(self) -> bool:
        """Whether only this machine can open the page."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def check_view(settings: ViewSettings) -> None:
    """Refuse, before anything slow, a missing viewer, an address that is none and a port that is taken."""
    try:
        import viser  # noqa: F401
    except ImportError:
        raise ConfigError(
            "view.port", settings.port, "needs viser: pip install 'navrl[view]' (make play does)"
        ) from None
    try:
        _try_port(settings.host, settings.port)
    except socket.gaierror:
        raise ConfigError("view.host", settings.host, "no such address; 127.0.0.1 is this machine alone") from None
    except PermissionError:
        raise ConfigError("view.port", settings.port, "only root may use it; choose one above 1023") from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(
                "view.host", settings.host, f"{error.strerror}; 127.0.0.1 is this machine alone"
            ) from None
        free = next((p for p in range(settings.port + 1, 65536) if _is_free(settings.host, p)), 0)
        fix = f"is used by another program; choose another, such as view.port={free}"
        raise ConfigError("view.port", settings.port, fix) from None


def _try_port(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _is_free(host: str, port: int) -> bool:
    try:
        _try_port(host, port)
    except OSError:
        return False
    return True


def invitation(settings: ViewSettings) -> str:
    """What a person must do to see the page, wherever they sit."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "localhost") else settings.host
    lines = [f"watch at http://{f'[{host}]' if ':' in host else host}:{settings.port} (Ctrl-C ends)"]
    if not settings.local:
        who = "anybody who can reach this machine can watch and interfere"
        lines.append(f"view.host={settings.host}: {who}; there is no password")
    elif has_no_screen():
        name = f"{os.environ.get('USER', '<user>')}@{socket.gethostname()}"
        lines.append(f"from another machine: ssh -L {settings.port}:127.0.0.1:{settings.port} {name}")
    return "\n".join(lines)


def has_no_screen() -> bool:
    return bool(os.environ.get("SSH_CONNECTION")) or not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.uname().sysname == "Darwin"
    )
