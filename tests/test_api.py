"""What `import navrl` offers, as the README shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import navrl
from navrl.settings import ConfigError

ROOT = Path(__file__).parents[1]


def test_the_example_of_the_readme_runs(tmp_path) -> None:
    (example, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shape, arrived = done.stdout.strip().splitlines()[-2:]
    assert "[64, 20, 1, 36, 4]" in shape and re.fullmatch(r"\d+ % of the flights arrived", arrived)
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_importing_is_quick_and_typed() -> None:
    code = "import sys, navrl; print('torch' in sys.modules, navrl.__version__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["False", navrl.__version__]
    assert (Path(navrl.__file__).parent / "py.typed").exists()
    for name in navrl.__all__:
        assert getattr(navrl, name)
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        navrl.fly  # noqa: B018


def test_overrides_are_those_of_the_command_line() -> None:
    env = navrl.make_env(
        "env.num_envs=4", "env.num_maps=1", "env.num_obstacles=0", "sensor.lidar_hres=20", "device=cpu"
    )
    assert env.reset()["agents", "observation", "lidar"].shape == (4, 1, 18, 4)
    with pytest.raises(ConfigError, match=r"^env.num_envs=0: "):
        navrl.make_env("env.num_envs=0")


def test_any_function_can_be_evaluated() -> None:
    def ahead(observation) -> torch.Tensor:
        return 2.0 * observation["direction"][:, 0]

    results = navrl.evaluate(ahead, ["crossing-0-0"], "sim.decimation=4", "device=cpu", episodes=8)
    assert results["crossing-0-0"]["success"] == 1.0 and results["crossing-0-0"]["episodes"] == 8
    shipped = navrl.load_policy("default")
    assert shipped.settings.collision_radius == 0.3 and navrl.load_policy("navrl").settings.encoder == "navrl"
