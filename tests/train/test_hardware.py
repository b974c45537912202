"""Hardware presets: found, chosen, refused, and as the documentation says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from navrl.settings import ConfigError
from navrl.train import hardware
from navrl.train.hardware import KEYS, choose, own_folder, presets, with_hardware
from navrl.train.settings import CONFIG, compose_config, flat, plain, read_train

OURS = ["cpu", "gpu-24gb", "gpu-80gb", "gpu-8gb", "laptop"]


@pytest.fixture(autouse=True)
def nobodys_home(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_presets_set_the_same_keys() -> None:
    assert presets() == OURS
    for name in OURS:
        preset = dict(flat(yaml.safe_load((CONFIG / "hardware" / f"{name}.yaml").read_text())))
        assert sorted(preset) == sorted(KEYS)
        composed = dict(flat(plain(compose_config("train", [f"hardware={name}"]))))
        assert {key: composed[key] for key in KEYS} == preset
        assert read_train(compose_config("train", [f"hardware={name}", "algo.amp=false", "env.num_envs=64"]))


def test_the_documentation_has_the_same_table() -> None:
    text = (Path(__file__).parents[2] / "docs/scaling.md").read_text()
    for name in OURS:
        preset = dict(flat(plain(compose_config("train", [f"hardware={name}"]))))
        precision = "yes" if preset["algo.amp"] else "no"
        assert f"| `{name}` | {preset['env.num_envs']} | {preset['algo.num_minibatches']} | {precision} |" in text


def test_auto_is_the_default_and_says_why(capsys, monkeypatch) -> None:
    monkeypatch.setattr(hardware, "choose", lambda: ("laptop", "it is small"))
    assert with_hardware(["seed=1"]) == ["seed=1", "hardware=laptop"] == with_hardware(["hardware=auto", "seed=1"])
    assert capsys.readouterr().out == 2 * "hardware: laptop (it is small)\n"
    assert with_hardware(["resume=runs/a"]) == ["resume=runs/a"], "a run has its own settings"
    assert with_hardware(["sim=isaac"]) == ["sim=isaac"], "a GPU's drones may be too many for it"
    monkeypatch.setenv("RANK", "1")
    with_hardware([])
    assert capsys.readouterr().out == ""


def test_this_machine_gets_one_of_ours() -> None:
    name, why = choose()
    assert name in OURS and "GB" in why


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hardware=fast: choose auto or one of cpu, .*navrl tune"):
        with_hardware(["hardware=fast"])
    assert with_hardware(["hardware=cpu,laptop"]) == ["hardware=cpu,laptop"], "a sweep of Hydra's"


def test_a_preset_of_the_user() -> None:
    own_folder().mkdir(parents=True)
    (own_folder() / "my-box.yaml").write_text("# @package _global_\nenv: {num_envs: 96}\nalgo: {num_minibatches: 3}\n")
    assert presets() == [*OURS, "my-box"]
    arguments = with_hardware(["hardware=my-box", "seed=3"])
    assert arguments[:2] == ["seed=3", "hardware=my-box"] and arguments[2].startswith("hydra.searchpath=[file://")
