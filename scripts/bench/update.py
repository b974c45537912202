# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportReturnType=false
"""How fast does the learner learn on this machine, and how fast do others? One run; JSON on the last line.

    python scripts/bench/update.py [rounds=5] [drones=1024] [steps=32]

Every trainer gets the same real batch, the same network (NavRL's, from the same weights) and 4 epochs of 16
minibatches, and runs its own complete update: advantages and all epochs. Filling its storage is not timed. It is set up
to do the same work as ours, in the cheaper way where it offers two; NavRL's numbers are its own. Where the work still
differs, the table says how. Trainers take turns and the best of several rounds counts, because other people's work on
the machine only ever adds time. The default network and whole training iterations are measured beside them.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Beta, Distribution, Independent
from torch.nn import functional
from torchrl.modules import ActorValueOperator, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from navrl.cli import fail, options
from navrl.ppo.batch import Batch
from navrl.ppo.networks import ActorCritic
from navrl.ppo.ppo import PPO, PPOSettings
from navrl.ppo.returns import ValueNorm
from navrl.schema import ACTIONS, NEAREST
from navrl.schema import NETWORK_INPUTS as OBSERVATION
from navrl.train.build import Training, make_training

EPOCHS, MINIBATCHES = 4, 16
WARM_UP = 3  # batches flown before the one that is kept


def collect(training: Training) -> Batch:
    """A batch to keep, flown when the drones are on their way."""
    for _ in range(WARM_UP):
        next(training.batches)
    frames = next(training.batches).frames.clone()  # the collector writes the next one over it
    return Batch.prepared(frames, training.ppo.policy.encoder.prepare)


# --- what trainers have in common -----------------------------------------------------------------------------------


class Trainer:
    """`prepare` stores a batch the trainer's own way, outside the clock; `update` learns from it, inside."""

    needs: str | None = None  # a package that may be missing
    differs = ""  # where its work is not ours
    stock_convolutions = True  # peers run the network as their users would write it, with nn.Conv2d

    def __init__(self, policy: ActorCritic, settings: PPOSettings, batch: Batch) -> None:
        self.policy, self.settings, self.size = copy.deepcopy(policy), settings, batch.frames.batch_size
        if self.stock_convolutions and hasattr(self.policy.encoder, "fused"):
            self.policy.encoder.fused = False
        self.columns = batch.rows.shape[1]
        self.build(settings)

    def build(self, s: PPOSettings) -> None:
        """Make the learner."""

    def prepare(self, batch: Batch) -> None:
        """Store the batch as if this trainer had collected it."""
        self.batch, self.data = batch, to_tensordict(batch.frames)

    def update(self) -> None:
        """One whole update."""


class Trunk(nn.Module):
    """The encoder on separate observations with any leading dimensions, for modules that read a TensorDict."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *observation: Tensor) -> Tensor:
        lead = observation[0].shape[:-1]  # of the state, a plain vector
        rows = self.encoder.prepare(*(x.flatten(0, len(lead) - 1) for x in observation))
        return self.encoder(rows).unflatten(0, lead)


class BetaHead(nn.Module):
    """Features to the two parameters of a Beta distribution."""

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__()
        self.actor = policy.actor

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        layers = self.actor.alpha_layer, self.actor.beta_layer
        return tuple(functional.softplus(layer(features)) + (1.0 + 1e-6) for layer in layers)


class IndependentBeta(Independent):
    """torch's Beta over all action axes, as TorchRL wants to build it."""

    def __init__(self, alpha: Tensor, beta: Tensor) -> None:
        super().__init__(Beta(alpha, beta), 1)


def to_tensordict(batch: TensorDictBase) -> TensorDict:
    """The batch (N, T) in the layout of TorchRL's examples."""

    def seen(data: TensorDictBase) -> dict[str, Tensor]:
        return {name: data["agents", "observation", name] for name in OBSERVATION}

    after, size = batch["next"], batch.batch_size
    follows = {name: after[name] for name in ("done", "terminated", "truncated")} | {
        "reward": after["agents", "reward"]
    }
    acted = {"action": batch["raw_action"], "action_log_prob": batch["log_prob"]}
    return TensorDict({**seen(batch), **acted, "next": TensorDict({**seen(after), **follows}, size)}, size)


def to_rows(policy: ActorCritic, data: TensorDictBase) -> Tensor:
    """Observations (N, T) as rows of numbers (N, T, columns), for trainers whose observation is a vector."""
    rows = policy.encoder.prepare(*(data[name].flatten(0, 1) for name in OBSERVATION))
    return rows.unflatten(0, data.batch_size)


def minibatches(data: TensorDictBase) -> Iterator[TensorDictBase]:
    """All epochs of a TensorDict (N, T), by indexing it."""
    flat = data.reshape(-1)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(flat)).reshape(MINIBATCHES, -1):
            yield flat[index]


# --- the trainers -------------------------------------------------------------------------------------------------


class Ours(Trainer):
    """This project's learner."""

    stock_convolutions = False

    def build(self, s: PPOSettings) -> None:
        self.ppo = PPO(self.policy, s)

    def update(self) -> None:
        prepare = self.policy.encoder.prepare  # network input is made while collecting; others make it while learning
        self.ppo.update(Batch.prepared(self.batch.frames, prepare))


class NavRL(Trainer):
    """NavRL's published update, restated with TensorDict modules and torch.distributions."""

    differs = "values every next observation too; torch.distributions, three Adams, Huber loss"
    CLIP, DELTA, RATE, MAX_NORM, ENTROPY, GAMMA, LAMBDA = 0.1, 10.0, 5e-4, 5.0, 1e-3, 0.99, 0.95

    def build(self, s: PPOSettings) -> None:
        self.features = TensorDictModule(Trunk(self.policy.encoder), [*OBSERVATION], ["feature"])
        self.actor = TensorDictModule(BetaHead(self.policy), ["feature"], ["alpha", "beta"])
        self.critic = TensorDictModule(self.policy.critic, ["feature"], ["state_value"])
        parts = self.features, self.actor, self.critic
        self.optimizers = [torch.optim.Adam(part.parameters(), lr=self.RATE) for part in parts]
        self.value_norm, self.huber = ValueNorm(), nn.HuberLoss(delta=self.DELTA)

    @torch.no_grad()
    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        self.critic(self.features(self.data))  # it stores normalised values
        del self.data["feature"]

    def update(self) -> None:
        self._advantages()
        for data in minibatches(self.data):
            self._learn(data)

    @torch.no_grad()
    def _advantages(self) -> None:
        """Add normalised advantages and normalised returns to the data."""
        following = self.data["next"].select(*OBSERVATION)
        next_value = self.value_norm.denormalize(self.critic(self.features(following))["state_value"])
        value = self.value_norm.denormalize(self.data["state_value"])
        reward, going = self.data["next", "reward"], 1.0 - self.data["next", "terminated"].float()
        advantage, trace = torch.zeros_like(value), torch.zeros_like(value[:, 0])
        for t in range(value.shape[1] - 1, -1, -1):
            delta = reward[:, t] + self.GAMMA * next_value[:, t] * going[:, t] - value[:, t]
            advantage[:, t] = trace = delta + self.GAMMA * self.LAMBDA * going[:, t] * trace
        returns = advantage + value
        self.value_norm.update(returns.mean(), returns.square().mean())
        self.data["advantage"] = (advantage - advantage.mean()) / advantage.std().clamp(min=1e-7)
        self.data["returns"] = self.value_norm.normalize(returns)

    def _learn(self, data: TensorDictBase) -> None:
        old_value, returns, advantage = data["state_value"], data["returns"], data["advantage"]
        self.actor(self.features(data))
        distribution = IndependentBeta(data["alpha"], data["beta"])
        log_prob, entropy = distribution.log_prob(data["action"]), distribution.entropy().mean()
        ratio = (log_prob - data["action_log_prob"]).exp().unsqueeze(-1)
        gain = torch.min(ratio * advantage, ratio.clamp(1 - self.CLIP, 1 + self.CLIP) * advantage)
        actor_loss = -gain.mean() * ACTIONS
        value = self.critic(data)["state_value"]
        near = old_value + (value - old_value).clamp(-self.CLIP, self.CLIP)
        critic_loss = torch.max(self.huber(near, returns), self.huber(value, returns))
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        (actor_loss + critic_loss - self.ENTROPY * entropy).backward()
        for part in (self.actor, self.critic):
            nn.utils.clip_grad_norm_(part.parameters(), self.MAX_NORM)
        for optimizer in self.optimizers:
            optimizer.step()


class TorchRL(Trainer):
    """TorchRL's own loss and advantages, on modules that share a trunk."""

    differs = "values every observation and next observation again; torch.distributions; returns not normalised"

    def build(self, s: PPOSettings) -> None:
        trunk = TensorDictModule(Trunk(self.policy.encoder), [*OBSERVATION], ["feature"])
        beta = TensorDictModule(BetaHead(self.policy), ["feature"], ["alpha", "beta"])
        head = ProbabilisticActor(beta, ["alpha", "beta"], ["action"], distribution_class=IndependentBeta)
        model = ActorValueOperator(trunk, head, ValueOperator(self.policy.critic, in_keys=["feature"]))
        self.gae = GAE(gamma=s.gamma, lmbda=s.gae_lambda, value_network=model.get_value_operator())
        # The value head alone reads the features that the actor left behind: the documented way to run the trunk once.
        # With get_value_operator() it would run twice.
        self.loss = ClipPPOLoss(
            model.get_policy_operator(), model.get_value_head(), normalize_advantage=True, loss_critic_type="l2",
            clip_epsilon=s.clip_ratio, clip_value=s.value_clip, critic_coeff=s.value_coef, entropy_coeff=s.entropy_coef,
        )  # fmt: skip
        self.loss.set_keys(sample_log_prob="action_log_prob")
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=s.encoder_lr)

    def update(self) -> None:
        with torch.no_grad():
            self.gae(self.data)
        for data in minibatches(self.data):
            losses = self.loss(data)
            self.optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            nn.utils.clip_grad_norm_(self.loss.parameters(), self.settings.max_grad_norm)
            self.optimizer.step()


class RslRl(Trainer):
    """rsl_rl's PPO on its storage."""

    needs = "rsl_rl"
    differs = "trunk twice: its actor and critic are separate networks; Gaussian head; returns not normalised"

    def build(self, s: PPOSettings) -> None:
        from rsl_rl.algorithms import PPO as Learner
        from rsl_rl.models import MLPModel
        from rsl_rl.storage import RolloutStorage

        encoder, (n, t) = self.policy.encoder, self.size

        class Model(MLPModel):
            """Its model with our trunk and one linear layer instead of its layers."""

            def __init__(self, observation: TensorDict, kind: str, outputs: int, head: dict | None) -> None:
                super().__init__(observation, {kind: ["rows"]}, kind, outputs, [1], distribution_cfg=head)
                self.encoder, self.mlp = copy.deepcopy(encoder), nn.Linear(encoder.size, outputs)

            def get_latent(self, *args, **kwargs) -> Tensor:
                return self.encoder(super().get_latent(*args, **kwargs))

        example = TensorDict({"rows": torch.zeros(n, self.columns)}, [n])
        gaussian = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution"}
        actor, critic = Model(example, "actor", ACTIONS, gaussian), Model(example, "critic", 1, None)
        self.learner = Learner(
            actor, critic, RolloutStorage("rl", n, t, example, [ACTIONS]), EPOCHS, MINIBATCHES, s.clip_ratio, s.gamma,
            s.gae_lambda, s.value_coef, s.entropy_coef, s.encoder_lr, s.max_grad_norm,
            desired_kl=s.target_kl, normalize_advantage_per_mini_batch=True,
        )  # fmt: skip

    @torch.inference_mode()
    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        seen, then, after = to_rows(self.policy, self.data), to_rows(self.policy, self.data["next"]), self.data["next"]
        for t in range(self.size[1]):  # its own way of collecting, but with the actions that were flown
            self.learner.act(TensorDict({"rows": seen[:, t]}, self.size[:1]))
            step = self.learner.transition
            step.actions = self.data["action"][:, t]
            step.actions_log_prob = self.learner.actor.get_output_log_prob(step.actions)
            self.last = TensorDict({"rows": then[:, t]}, self.size[:1])
            reward, done, truncated = (after[key][:, t, 0] for key in ("reward", "done", "truncated"))
            self.learner.process_env_step(self.last, reward, done, {"time_outs": truncated})

    def update(self) -> None:
        with torch.inference_mode():  # as its runner does
            self.learner.compute_returns(self.last)
        self.learner.update()


class StableBaselines3(Trainer):
    """Stable-Baselines3's PPO on its rollout buffer."""

    needs = "stable_baselines3"
    differs = "Gaussian head; storage in NumPy; returns not normalised"

    def build(self, s: PPOSettings) -> None:
        from gymnasium.spaces import Box
        from stable_baselines3 import PPO as Learner
        from stable_baselines3.common.logger import Logger
        from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

        encoder, (n, t) = self.policy.encoder, self.size

        class Features(BaseFeaturesExtractor):
            """Our trunk."""

            def __init__(self, space: Box) -> None:
                super().__init__(space, encoder.size)
                self.encoder = copy.deepcopy(encoder)

            def forward(self, rows: Tensor) -> Tensor:
                return self.encoder(rows)

        self.learner = Learner(
            "MlpPolicy", None, s.encoder_lr, n_steps=t, batch_size=n * t // MINIBATCHES, n_epochs=EPOCHS,
            gamma=s.gamma, gae_lambda=s.gae_lambda, clip_range=s.clip_ratio, clip_range_vf=s.value_clip,
            ent_coef=s.entropy_coef, vf_coef=s.value_coef, max_grad_norm=s.max_grad_norm, device="cpu",
            policy_kwargs={"net_arch": [], "features_extractor_class": Features, "ortho_init": False},
            _init_setup_model=False,
        )  # fmt: skip
        # Set up without an environment, as its `load` does: it would only be asked for these.
        self.learner.observation_space = Box(-math.inf, math.inf, (self.columns,))
        self.learner.action_space, self.learner.n_envs = Box(0.0, 1.0, (ACTIONS,)), n
        self.learner._setup_model()
        self.learner.set_logger(Logger(None, []))

    @torch.no_grad()
    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        buffer, rows = self.learner.rollout_buffer, to_rows(self.policy, self.data)
        done, begins = self.data["next", "done"][..., 0].numpy(), torch.zeros(self.size[0]).numpy()
        buffer.reset()  # learning leaves it flattened
        for t in range(self.size[1]):
            step = rows[:, t], self.data["action"][:, t], self.data["next", "reward"][:, t, 0]
            value, log_prob, _ = self.learner.policy.evaluate_actions(*step[:2])
            # It would add a value to rewards at timeouts here, while collecting: no part of the update.
            buffer.add(*(x.numpy() for x in step), begins, value, log_prob)
            begins = done[:, t]
        self.last, self.ended = to_rows(self.policy, self.data["next"])[:, -1], done[:, -1]

    def update(self) -> None:
        with torch.no_grad():
            value = self.learner.policy.predict_values(self.last)
        self.learner.rollout_buffer.compute_returns_and_advantage(value, self.ended)
        self.learner.train()


PEERS = {"navrl": NavRL, "torchrl": TorchRL, "rsl_rl": RslRl, "sb3": StableBaselines3}
OURS, DEFAULT = "ours", "ours, default network"


# --- measuring ----------------------------------------------------------------------------------------------------

# How often a layer is applied to one frame, if not once: to each obstacle, or at each place of the LiDAR image.
TIMES = {"obstacle.0": NEAREST, "obstacle.2": NEAREST, "lidar.0": 36 * 4, "lidar.2": 18 * 4, "lidar.4": 9 * 2}
FIRST = {"obstacle.0", "first", "lidar.0", "obstacles.0"}  # see the observation itself: no gradient goes there
GEMM = 2048  # rows and columns of the product that shows what the machine can do


def flops_per_frame(policy: ActorCritic, steps: int) -> float:
    """What the matrix products of an update need for one frame of the batch, from the sizes of the layers."""
    weights = {name.removesuffix(".weight"): w for name, w in policy.named_parameters() if w.dim() > 1}
    layers = {name.removeprefix("encoder."): w.numel() for name, w in weights.items()}
    forward = {name: 2 * size * TIMES.get(name, 1) for name, size in layers.items()}
    learning = sum(flops * (2 if name in FIRST else 3) for name, flops in forward.items())
    return EPOCHS * learning + sum(forward.values()) / steps  # values are asked for after the last step only


def make_trainers(trainings: dict[str, Training], batches: dict[str, Batch], settings: PPOSettings) -> dict:
    """All that are installed, each with the batch it learns from."""
    trainers = {}
    for name, kind in {OURS: Ours, **PEERS, DEFAULT: Ours}.items():
        if kind.needs and find_spec(kind.needs) is None:
            print(f"{name}: not measured, {kind.needs} is not installed (pip install -e '.[bench]')")
            continue
        encoder = "fast" if name == DEFAULT else "navrl"
        trainers[name] = kind(trainings[encoder].ppo.policy, settings, batches[encoder]), batches[encoder]
    return trainers


def best_times(trainers: dict, trainings: dict[str, Training], rounds: int) -> dict[str, float]:
    """Seconds of every trainer's update, of whole iterations by encoder, and of a large product ("gemm")."""
    a, b, out = (torch.randn(GEMM, GEMM) for _ in range(3))
    best: dict[str, float] = {}

    def clock(name: str, run: Callable[[], object]) -> None:
        start = time.perf_counter()
        run()
        best[name] = min(best.get(name, math.inf), time.perf_counter() - start)

    for number in range(rounds):
        print(f"round {number + 1} of {rounds} ...", flush=True)
        for name, (trainer, batch) in trainers.items():
            trainer.prepare(batch)
            clock(name, trainer.update)
        for encoder, training in trainings.items():
            clock(f"whole {encoder}", training.iterate)
        for _ in range(10):
            clock("gemm", lambda: torch.mm(a, b, out=out))
    return best


def main() -> None:
    args = options(__doc__, rounds=5, drones=1024, steps=32)
    frames = args.drones * args.steps
    if frames % MINIBATCHES or min(frames, args.rounds) < 1:
        fail(f"drones={args.drones}: drones * steps must be a multiple of {MINIBATCHES}, rounds at least 1")
    sizes = ["device=cpu", f"env.num_envs={args.drones}", f"algo.training_frame_num={args.steps}"]
    Distribution.set_default_validate_args(False)  # as rsl_rl does, to the whole process: no checks for anyone

    print(f"drawing maps, collecting {args.drones} × {args.steps} frames with each network ...")
    trainings = {name: make_training(*sizes, f"encoder={name}") for name in ("navrl", "fast")}
    batches = {encoder: collect(training) for encoder, training in trainings.items()}
    settings = replace(trainings["fast"].settings.ppo, epochs=EPOCHS, num_minibatches=MINIBATCHES)
    trainers = make_trainers(trainings, batches, settings)
    best = best_times(trainers, trainings, args.rounds)
    for training in trainings.values():
        training.batches.shutdown()

    rate = {name: frames / seconds for name, seconds in best.items()}
    peak = 2 * GEMM**3 / best["gemm"]
    used = {name: flops_per_frame(trainers[name][0].policy, args.steps) * rate[name] / peak for name in (OURS, DEFAULT)}
    result = {
        "frames_per_s": rate[OURS],
        **{f"ratio_vs_{name}": rate[OURS] / rate[name] if name in rate else None for name in PEERS},
        "gemm_fraction": used[DEFAULT],
        "end_to_end_frames_per_s": rate["whole fast"],
        "end_to_end_frames_per_s_navrl": rate["whole navrl"],
        "frames_per_s_default": rate[DEFAULT],
        "ratio_default_vs_navrl": rate[DEFAULT] / rate["navrl"],
        "gemm_fraction_navrl": used[OURS],
        "gemm_gflops": peak / 1e9,
        **{f"peer_frames_per_s_{name}": rate.get(name) for name in PEERS},
    }
    threads = torch.get_num_threads()
    about = {"drones": args.drones, "steps": args.steps, "threads": threads, "cpu_count": os.cpu_count()}

    print(f"update of {frames} frames, {EPOCHS} epochs of {MINIBATCHES} minibatches, NavRL's network unless said:")
    for name, (trainer, _) in trainers.items():
        ratio = f"ours is {rate[OURS] / rate[name]:4.1f} times as fast" if name in PEERS else ""
        print(f"  {name:22s} {rate[name]:8,.0f} frames/s   {ratio:28s} {trainer.differs}".rstrip())
    print(f"  with the default network ours is {result['ratio_default_vs_navrl']:.1f} times as fast as NavRL's update")
    print(f"matrix products reach {peak / 1e9:.0f} GFLOP/s on {threads} threads; of that ours uses")
    print(f"  {100 * used[DEFAULT]:.0f} % with the default network, {100 * used[OURS]:.0f} % with NavRL's")
    print(f"whole iterations, collecting and {trainings['fast'].settings.ppo.epochs} epochs:")
    for name, encoder in (("default network", "fast"), ("NavRL's network", "navrl")):
        print(f"  {name:22s} {rate[f'whole {encoder}']:8,.0f} frames/s")
    rounded = {key: None if value is None else float(f"{value:.4g}") for key, value in result.items()}
    print(json.dumps(rounded | about))


if __name__ == "__main__":
    main()
