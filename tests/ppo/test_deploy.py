"""Exported policies, ONNX and TorchScript: the policy's velocity for good input, a harmless one for any other."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from navrl.ppo.deploy import LARGEST, Deployed
from navrl.ppo.networks import ActorCritic, NetworkSettings
from navrl.ppo.policy_file import load_policy, policy_content
from navrl.ppo.returns import ValueNorm
from navrl.schema import POLICY_INPUTS
from navrl.scripts import export

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

BAD = torch.tensor([torch.nan, torch.inf, -torch.inf])
SEEDS = range(8)
Observation = dict[str, Tensor]


class Broken(ActorCritic):
    """A policy whose velocity is what a test says, in the goal frame."""

    answer: tuple[float, ...] = (0.0, 0.0, 0.0)

    def mean_velocity(self, state: Tensor, lidar: Tensor, direction: Tensor, dynamic_obstacle: Tensor) -> Tensor:
        return torch.tensor(self.answer).expand(len(state), 3)


def decided(settings: NetworkSettings, seed: int = 3) -> ActorCritic:
    """An untrained policy that does not hover: its heads are 100 times as large as at the start of training."""
    torch.manual_seed(seed)
    policy = ActorCritic(settings).eval()
    with torch.no_grad():
        for layer in (policy.actor.alpha_layer, policy.actor.beta_layer):
            layer.weight *= 100.0
    return policy


POLICIES = {  # other sensors and limits too, so that no number is taken for granted; two files say what they met
    "default": (None, {}),
    "navrl": (NetworkSettings("navrl"), {"disturbance": "real", "shield": "fly"}),
    "other": (NetworkSettings("fast", (24, 8), 10.0, action_limit=0.7), {"disturbance": {"wind": [0.0, 3.0]}}),
}


@pytest.fixture(scope="module", params=POLICIES)
def exported(request, tmp_path_factory) -> SimpleNamespace:
    return exported_files(request.param, tmp_path_factory.getbasetemp() / f"exported-{request.param}")


@cache  # pytest forgets a fixture between tests with other parameters, and each export takes seconds
def exported_files(name: str, folder: Path) -> SimpleNamespace:
    """What `navrl export` writes for a policy."""
    folder.mkdir()
    settings, about = POLICIES[name]
    checkpoint = "default" if settings is None else str(folder / "policy.pt")
    if settings is not None:
        weights = decided(settings).state_dict()
        torch.save(policy_content(settings, weights, ValueNorm().state_dict(), about), checkpoint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["export", f"checkpoint={checkpoint}", f"output={folder / 'policy.onnx'}"])
        patch.setattr("navrl.cli.begin", lambda: None)  # the signals of the tests are not ours to take
        export.main()
    deployed = Deployed(load_policy(checkpoint)[0])
    return SimpleNamespace(folder=folder, name=name, about=about, deployed=deployed, policy=deployed.policy)


@pytest.fixture(scope="module", params=["onnx", "torchscript"])
def run(request, exported) -> Callable[[Observation], Tensor]:
    """One exported file as a function of observations."""
    if request.param == "onnx":
        function = export.run_onnx(exported.folder / "policy.onnx")
    else:
        function = torch.jit.load(exported.folder / "policy.ts")

    @torch.no_grad()
    def call(seen: Observation) -> Tensor:
        return function(*(seen[name] for name in POLICY_INPUTS))

    return call


def observations(exported, count: int, seed: int = 0) -> Observation:
    """Rows of those the export itself checks with, others for every seed."""
    every = export.random_observations(exported.deployed)
    rows = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))[:count]
    return {name: value[rows].clone() for name, value in every.items()}


@torch.no_grad()
def eager(exported, seen: Observation) -> Tensor:
    return exported.policy.mean_velocity(**seen)


def in_goal_frame(velocity: Tensor, direction: Tensor) -> Tensor:
    """World to goal frame: the inverse of the rotation the policy ends with, for a direction of unit length."""
    ahead, left = direction[:, 0, 0], direction[:, 0, 1]
    x, y, z = velocity.unbind(-1)
    return torch.stack([ahead * x + left * y, ahead * y - left * x, z], dim=-1)


def close(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and bool(((got - wanted).abs() <= export.TOLERANCE).all())  # False for NaN


# --- good input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 7, 1000])
def test_it_is_the_policy_for_any_batch_size(exported, run, batch: int) -> None:
    seen = observations(exported, batch, seed=batch)
    wanted = eager(exported, seen)
    assert close(run(seen), wanted)
    assert wanted.any(), "or zero would pass for an answer"


def test_without_moving_obstacles(exported, run) -> None:
    seen = observations(exported, 50)
    seen["dynamic_obstacle"].zero_()
    assert close(run(seen), eager(exported, seen))


# --- direction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_length_and_tilt_of_the_direction_do_not_matter(exported, run, seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    seen = observations(exported, 100, seed)
    wanted = eager(exported, seen)
    length = 10 ** (6 * torch.rand(100, 1, 1, generator=make) - 3)  # 1e-3 ... 1e3
    slope = torch.tensor([0.0, 0.0, 1.0]) * torch.randn(100, 1, 1, generator=make)
    for direction in (seen["direction"] * length, seen["direction"] + slope, (seen["direction"] + slope) * length):
        assert close(run(seen | {"direction": direction}), wanted)
    assert close(
        run(seen | {"direction": normalize(seen["direction"] + slope, dim=-1)}), wanted
    )  # tilted, of unit length


@pytest.mark.parametrize("length", [1e-11, 1e-6, 1e6, 1e30])
def test_lengths_whose_squares_are_no_floats(exported, run, length: float) -> None:
    seen = observations(exported, 100)
    assert close(run(seen | {"direction": seen["direction"] * length}), eager(exported, seen))


@pytest.mark.parametrize("direction", [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -0.0, -1e3], [1e-20, 1e-30, 0.0]])
def test_no_direction_no_velocity(exported, run, direction: list[float]) -> None:
    seen = observations(exported, 20)
    wanted = run(seen)
    seen["direction"][3:6] = torch.tensor(direction)
    got = run(seen)
    assert torch.equal(got[3:6], torch.zeros(3, 3))
    assert torch.equal(got[:3], wanted[:3]) and torch.equal(got[6:], wanted[6:])


# --- what is no number ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_nan_and_infinity_anywhere_give_zero_for_that_row_only(exported, run, seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    seen = observations(exported, 64, seed)
    clean = run(seen)
    bad = torch.rand(64, generator=make) < 0.5
    for row in bad.nonzero()[:, 0].tolist():
        for _ in range(int(torch.randint(1, 20, (), generator=make))):
            name = POLICY_INPUTS[int(torch.randint(len(POLICY_INPUTS), (), generator=make))]
            values = seen[name][row].view(-1)
            place, kind = int(torch.randint(len(values), (), generator=make)), torch.randint(3, (), generator=make)
            values[place] = BAD[kind]
    got = run(seen)
    assert bad.any() and torch.equal(got[bad], torch.zeros(int(bad.sum()), 3))
    assert torch.equal(got[~bad], clean[~bad]), "the same bits as without the bad rows"
    row = int(bad.nonzero()[0])
    assert torch.equal(run({name: value[row : row + 1] for name, value in seen.items()}), torch.zeros(1, 3))


@pytest.mark.parametrize("name", POLICY_INPUTS)
def test_every_single_number_counts(exported, run, name: str) -> None:
    one = observations(exported, 1, seed=1)
    count = one[name].numel()
    too_large = [1.1 * LARGEST, -3e38] if name in ("state", "dynamic_obstacle") else []
    for kind in [*BAD.tolist(), *too_large]:
        seen = {key: value.repeat(count, *[1] * (value.ndim - 1)) for key, value in one.items()}
        seen[name].view(count, count).fill_diagonal_(kind)
        assert torch.equal(run(seen), torch.zeros(count, 3))


def test_a_batch_of_nothing_but_nan(exported, run) -> None:
    seen = {name: torch.full_like(value, torch.nan) for name, value in observations(exported, 10).items()}
    assert torch.equal(run(seen), torch.zeros(10, 3))


# --- numbers that cannot be right -------------------------------------------------------------------------------------


def test_lidar_out_of_range_is_clamped(exported, run) -> None:
    seen, reach = observations(exported, 100), exported.policy.settings.lidar_range
    make = torch.Generator().manual_seed(0)
    for scale in (1.0, 10.0, 1e30):
        seen["lidar"] = reach * (0.5 + scale * torch.randn(seen["lidar"].shape, generator=make))
        assert (seen["lidar"] < 0).any() and (seen["lidar"] > reach).any()
        assert close(run(seen), eager(exported, seen | {"lidar": seen["lidar"].clamp(0.0, reach)}))


@pytest.mark.parametrize("name", ["state", "dynamic_obstacle"])
def test_no_measurement_is_that_large(exported, run, name: str) -> None:
    seen = observations(exported, 20)
    wanted = run(seen)
    seen[name].view(20, -1)[4, 5] = 1.1 * LARGEST
    seen[name].view(20, -1)[7, 2] = -3e38
    wanted[[4, 7]] = 0.0
    assert torch.equal(run(seen), wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_comes_in_the_velocity_stays_within_the_limit(exported, run, seed: int) -> None:
    """Bit patterns at random: every float there is, of any size, NaN and denormal too; and all of them at most 1e6."""
    make = torch.Generator().manual_seed(seed)
    limit = exported.policy.settings.action_limit * (1.0 + 1e-6)
    answered = 0
    for largest in (None, 1e6, 10.0):
        seen = observations(exported, 256, seed)
        for name, value in seen.items():
            bits = torch.randint(-(2**31), 2**31, value.shape, generator=make).to(torch.int32)
            anything = bits.view(torch.float32)
            seen[name] = anything if largest is None else anything.nan_to_num(0.0).clamp(-largest, largest)
        got = run(seen)
        assert torch.isfinite(got).all()
        assert (got.norm(dim=-1) <= math.sqrt(3.0) * limit).all() and (got[:, 2].abs() <= limit).all()
        horizontal = normalize(seen["direction"].double()[..., :2], dim=-1, eps=1e-300)
        usable = got.any(-1)
        assert (in_goal_frame(got.double(), horizontal)[usable].abs() <= limit).all()
        answered += int(usable.sum())
    assert answered > 256, "most of the rows without NaN are answered"


# --- the wrapper, with networks that are worse than any trained one ---------------------------------------------------


@pytest.mark.parametrize("answer", [(10.0, -10.0, 10.0), (3.0, 0.1, -0.2), (1e38, -1e38, 2.5)])
def test_the_velocity_is_clamped_along_the_axes_of_the_goal_frame(answer: tuple[float, ...]) -> None:
    policy = Broken(NetworkSettings(action_limit=1.5))
    policy.answer = answer
    deployed = Deployed(policy)
    seen = export.random_observations(deployed, 50)
    got = deployed(**seen)
    wanted = torch.tensor(answer).clamp(-1.5, 1.5).expand(50, 3)
    assert torch.allclose(in_goal_frame(got, seen["direction"]), wanted, atol=1e-6)
    assert (got.norm(dim=-1) <= math.sqrt(3.0) * 1.5 + 1e-6).all()


@pytest.mark.parametrize("answer", [(math.nan, 0.5, 0.5), (0.5, math.inf, 0.5), (0.5, 0.5, -math.inf)])
def test_a_network_that_overflows_gives_zero(answer: tuple[float, ...]) -> None:
    policy = Broken(NetworkSettings())
    policy.answer = answer
    deployed = Deployed(policy)
    assert torch.equal(deployed(**export.random_observations(deployed, 5)), torch.zeros(5, 3))


def test_a_policy_at_its_limit(tmp_path) -> None:
    """The mean of the Beta distribution rounds to 1: the exported velocity is the limit, and no more."""
    policy = decided(NetworkSettings())
    with torch.no_grad():
        policy.actor.alpha_layer.bias.fill_(1e5)
        policy.actor.beta_layer.bias.fill_(-1e5)
    deployed = Deployed(policy)
    export.write_torchscript(deployed, tmp_path / "policy.ts", {})
    seen = export.random_observations(deployed, 50)
    got = torch.jit.load(tmp_path / "policy.ts")(*seen.values())
    flown = in_goal_frame(got, seen["direction"])
    assert (flown > 1.999).all() and (flown <= 2.0 + 1e-6).all()


# --- the files --------------------------------------------------------------------------------------------------------


def test_files_say_what_the_policy_met_in_training(exported) -> None:
    session = onnxruntime.InferenceSession(exported.folder / "policy.onnx")
    stored = {k: json.loads(v) for k, v in session.get_modelmeta().custom_metadata_map.items()}
    extra = {"metadata.json": ""}
    torch.jit.load(exported.folder / "policy.ts", _extra_files=extra)
    assert stored == json.loads(extra["metadata.json"])
    assert stored["disturbance"] == exported.about.get("disturbance", "none")
    assert stored["shield"] == exported.about.get("shield", "none")
    assert stored["action_limit"] == exported.policy.settings.action_limit
    assert {"goal_frame", "lidar_order", "lidar_values", "beams", "bad_input", "output_limit"} <= set(stored)
    if exported.name == "default":
        assert {"scores", "commit", "decimation", "lidar_vfov"} <= set(stored)
    if exported.name == "navrl":  # weights alone: NavRL's code guards nothing
        told = json.loads((exported.folder / "policy.navrl.json").read_text())
        assert told["disturbance"] == "real" and "bad_input" not in told


def test_files_do_not_tell_where_they_were_made(exported) -> None:
    assert (
        str(Path(export.__file__).resolve().parents[1]).encode() not in (exported.folder / "policy.onnx").read_bytes()
    )


def test_beams_in_another_order_are_refused(exported, run) -> None:
    seen = observations(exported, 3)
    with pytest.raises(Exception, match="lidar"):
        run(seen | {"lidar": seen["lidar"].transpose(2, 3).contiguous()})
    with pytest.raises(Exception, match="dynamic_obstacle"):
        run(seen | {"dynamic_obstacle": seen["dynamic_obstacle"][:, :, :4].contiguous()})


@pytest.mark.parametrize("fault", ["unguarded", "wrong"])
def test_a_file_that_fails_the_check_is_removed(tmp_path, fault: str) -> None:
    policy = decided(NetworkSettings())
    file = tmp_path / "policy.ts"
    file.write_bytes(b"anything")
    if fault == "unguarded":
        with pytest.raises(SystemExit, match="NaN and infinity"):
            export.verified(file, Deployed(policy), Unguarded(Deployed(policy)))
    else:
        other = decided(NetworkSettings(), seed=4)
        with pytest.raises(SystemExit, match="differs from the policy"):
            export.verified(file, Deployed(policy), Deployed(other))
    assert not file.exists()


class Unguarded:
    """A copy of a policy that takes NaN for zero and flies on."""

    def __init__(self, deployed: Deployed) -> None:
        self.deployed = deployed

    def __call__(self, *seen: Tensor) -> Tensor:
        return self.deployed(*(value.nan_to_num(0.0, 0.0, 0.0) for value in seen))
