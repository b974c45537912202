"""Write a trained policy for use outside this project: ONNX, TorchScript, and NavRL's own format where it fits.

navrl export checkpoint=policies/default.pt output=policy.onnx    (or checkpoint=default, which comes with navrl)

Writes policy.onnx and policy.ts, and policy.navrl.pt for a policy of NavRL's network. Each is checked against the
policy on 1000 random observations, and with input that cannot be right, before this says done. Inputs, for any batch
size B:

  state             (B, 8)         unit vector to the goal, horizontal and vertical distance to it (m), velocity (m/s)
  lidar             (B, 1, 36, 4)  range - distance of every beam (m), azimuth by elevation; 0 is a clear beam;
                                   clamped to 0 ... range
  direction         (B, 1, 3)      the goal frame's x axis in the world: from start to goal; its height is ignored, its
                                   length too
  dynamic_obstacle  (B, 1, 5, 10)  nearest moving obstacles: unit vector, horizontal and vertical distance (m),
                                   velocity (m/s), width / 0.25 - 1, height if it floats else 0; zeros: none there

state and dynamic_obstacle are in the goal frame (x along direction, z up). Output: action (B, 3), the velocity to fly
in the world frame, m/s: within the action limit along each axis of the goal frame, and exactly zero for a row with NaN
or infinity anywhere, or without a direction. docs/export.md says more.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the imports that take seconds
    from navrl.cli import begin

    begin()

import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from navrl.cli import command, fail, options
from navrl.io.files import BadCheckpoint, whole_file
from navrl.ppo.deploy import Deployed, ShapesChecked
from navrl.ppo.navrl_format import to_navrl
from navrl.ppo.networks import NavRLEncoder
from navrl.ppo.policy_file import load_policy
from navrl.schema import NEAREST, POLICY_INPUTS, WIDTH_STEP, observation_shapes

TOLERANCE = 1e-4  # m/s between the policy and its exported copies
CONVENTIONS = {
    "inputs": "see docs/export.md: state, lidar, direction, dynamic_obstacle",
    "output": "action: velocity in m/s, world frame, z up",
    "goal_frame": "x along the horizontal line from start to goal, fixed for a flight; z up; right-handed",
    "lidar_order": "[azimuth][elevation]; azimuth 0 is straight ahead along yaw, counter-clockwise; elevations rise",
    "lidar_values": "range - distance in m; rays turn with yaw only",
}
GUARANTEES = {  # of ONNX and TorchScript; NavRL's own code keeps none of them
    "direction": "normalised inside: only where it points horizontally counts",
    "lidar_limit": "lidar is clamped to 0 ... lidar_range inside",
    "output_limit": "within action_limit along each axis of the goal frame, so at most sqrt(3) times as fast in all",
    "bad_input": "a row with NaN, infinity, more than 1e6 or no direction gives exactly zero velocity",
}
TRAINED_WITH = {"disturbance": "none", "shield": "none"}  # where a policy file does not say


@command
def main() -> None:
    given = options(__doc__, "checkpoint", checkpoint=None, output="policy.onnx")
    if given.checkpoint is None:
        fail("checkpoint=null: give the policy to export (--help shows how)")
    output = Path(given.output)
    if output.suffix != ".onnx":
        fail(f"output={output}: must end in .onnx; the other formats are written beside it")
    if not output.parent.is_dir():
        fail(f"output={output}: the directory {output.parent} does not exist")
    if output.is_dir():
        fail(f"output={output}: is a directory")
    try:
        with whole_file(trial := output.with_name(output.name + ".trial")):  # found out before the slow part
            pass
        trial.unlink()
    except OSError as error:
        fail(f"output={output}: {error.strerror or error}; choose a place that can be written")
    try:
        policy, about = load_policy(given.checkpoint)
    except BadCheckpoint as error:
        fail(f"checkpoint={given.checkpoint}: {error}")
    metadata = {"checkpoint": Path(given.checkpoint).name, **TRAINED_WITH, **about["network"], **about["about"]}
    metadata |= CONVENTIONS
    deployed = Deployed(policy).eval()

    write_onnx(deployed, output, metadata | GUARANTEES)
    verified(output, deployed, run_onnx(output))
    script = output.with_suffix(".ts")
    write_torchscript(deployed, script, metadata | GUARANTEES)
    verified(script, deployed, torch.jit.load(script))
    if isinstance(policy.encoder, NavRLEncoder):
        theirs = output.with_suffix(".navrl.pt")
        torch.save(to_navrl(policy, about.get("value_norm", {})), theirs)
        output.with_suffix(".navrl.json").write_text(json.dumps(metadata, indent=2) + "\n")
        again, _ = load_policy(theirs, policy.settings.action_limit)
        verified(theirs, deployed, Deployed(again))
    print("done")


def random_observations(deployed: Deployed, count: int = 1000) -> dict[str, Tensor]:
    """Observations of every kind: clear and crowded, near and far, with and without moving obstacles."""
    make = torch.Generator().manual_seed(0)
    network = deployed.policy.settings

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=make)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=make)

    toward, away = nn.functional.normalize(normal(3), dim=-1), nn.functional.normalize(normal(1, NEAREST, 3), dim=-1)
    state = torch.cat([toward, 48 * uniform(1), normal(1), 2 * normal(3)], dim=-1)
    heading = 6.2832 * uniform(1, 1)
    direction = torch.cat([heading.cos(), heading.sin(), torch.zeros(count, 1, 1)], dim=-1)
    size = torch.cat([(uniform(1, NEAREST, 1) / WIDTH_STEP).floor(), (2 * uniform(1, NEAREST, 1)).floor()], dim=-1)
    place = [away, network.lidar_range * uniform(1, NEAREST, 1), normal(1, NEAREST, 1)]
    obstacle = torch.cat([*place, normal(1, NEAREST, 3), size], dim=-1)
    obstacle *= torch.arange(NEAREST)[:, None] < ((NEAREST + 1) * uniform(1, 1, 1)).floor()  # the nearest 0 to 5
    lidar = network.lidar_range * uniform(1, *network.beams) * (uniform(1, *network.beams) < 0.5)
    seen = {"state": state, "lidar": lidar, "direction": direction, "dynamic_obstacle": obstacle}
    return {name: seen[name] for name in POLICY_INPUTS}


def write_onnx(deployed: Deployed, path: Path, metadata: dict) -> None:
    """ONNX with the metadata inside, batch size free."""
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        fail(f"{error.name} is not installed; install what export needs with: pip install 'navrl[export]'")
    del onnxruntime, onnxscript
    for name in ("onnxscript", "torch.onnx", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    batch = torch.export.Dim("batch", min=1)
    example = tuple(value[:3] for value in random_observations(deployed).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            deployed, example, dynamo=True, input_names=list(POLICY_INPUTS), output_names=["action"],
            dynamic_shapes=tuple({0: batch} for _ in POLICY_INPUTS), verbose=False,
        )  # fmt: skip
    assert program is not None  # dynamo=True always returns one
    model = program.model_proto
    for node in model.graph.node:
        node.ClearField("metadata_props")  # stack traces, with the paths of this machine
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in metadata.items()})
    onnx.save(model, path)


def run_onnx(path: Path) -> Callable[..., Tensor]:
    """The exported file as a function of tensors, in the order of POLICY_INPUTS."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*values: Tensor) -> Tensor:
        inputs = {name: value.numpy() for name, value in zip(POLICY_INPUTS, values, strict=True)}
        return torch.as_tensor(session.run(["action"], inputs)[0])

    return run


def write_torchscript(deployed: Deployed, path: Path, metadata: dict) -> None:
    """TorchScript with the metadata as its extra file metadata.json."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = tuple(value[:3] for value in random_observations(deployed).values())
        traced = torch.jit.trace(deployed, example)
        assert isinstance(traced, torch.jit.ScriptModule)
        shapes = {name: [*shape] for name, shape in observation_shapes(deployed.policy.settings.beams).items()}
        checked = torch.jit.script(ShapesChecked(traced, shapes))
    torch.jit.save(checked, path, _extra_files={"metadata.json": json.dumps(metadata)})


def verified(path: Path, deployed: Deployed, other: Callable[..., Tensor]) -> None:
    """Say how far the policy in the file `path`, which is run by `other`, is from ours; remove it if it is wrong."""
    worst = difference(deployed, other)
    if not worst < TOLERANCE:
        path.unlink()
        sys.exit(f"error: {path} differs from the policy by {worst:.2g} m/s and was removed")
    if not guarded(deployed, other):
        path.unlink()
        sys.exit(f"error: {path} does not answer NaN and infinity with zero velocity and was removed")
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB, differs from the policy by at most {worst:.1e} m/s")


@torch.no_grad()
def difference(deployed: Deployed, other: Callable[..., Tensor]) -> float:
    """Largest difference to the policy, m/s, over 1000 random observations, together and the first few one by one."""
    seen = random_observations(deployed)
    expected = deployed.policy.mean_velocity(**seen)
    one_by_one = [other(*(value[k : k + 1] for value in seen.values())) for k in range(8)]
    stretched = {**seen, "direction": seen["direction"] * 3.0 + torch.tensor([0.0, 0.0, 1.0])}  # long and tilted
    gaps = [other(*seen.values()) - expected, torch.cat(one_by_one) - expected[:8]]
    gaps += [other(*stretched.values()) - expected]
    return float(torch.stack([gap.abs().max() for gap in gaps]).max())  # NaN if there is one


@torch.no_grad()
def guarded(deployed: Deployed, other: Callable[..., Tensor]) -> bool:
    """Whether rows with NaN or infinity give exactly zero, and all other rows what they give without them."""
    seen = random_observations(deployed)
    expected = deployed.policy.mean_velocity(**seen)
    rows = torch.arange(len(expected))
    for part, value in enumerate(seen.values()):  # every eighth row for each of the four inputs; the rest stays good
        values, bad = value.view(len(rows), -1), rows[part::8]
        place, kind = bad // 8 % values.shape[1], bad // 24 % 3
        values[bad, place] = torch.tensor([torch.nan, torch.inf, -torch.inf])[kind]
        expected[bad] = 0.0
    got = other(*seen.values())
    return not got[rows % 8 < len(seen)].any() and bool(((got - expected).abs() < TOLERANCE).all())


if __name__ == "__main__":
    main()
