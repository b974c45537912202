"""Proximal policy optimization: `Actor` explores while a batch is collected, `PPO.update` learns from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from navrl.io.contents import Array, Number, OneOf, check, like, refuse_others
from navrl.io.snapshot import Live, Snapshot
from navrl.ppo import beta as beta_policy
from navrl.ppo.batch import Batch, Rows, needs_bootstrap
from navrl.ppo.networks import LARGEST_WEIGHT, ActorCritic, NetworkSettings
from navrl.ppo.noise import Noise
from navrl.ppo.returns import ValueNorm, gae
from navrl.ranks import ALONE, RankFailed, Ranks
from navrl.schema import ACTIONS, NETWORK_INPUTS, OBSERVED
from navrl.settings import setting

SEEN = [(*OBSERVED, name) for name in NETWORK_INPUTS]
LEARNED_FROM = [
    *SEEN,
    *(("next", *key) for key in SEEN),
    ("next", "agents", "reward"),
    ("value",),
    ("log_prob",),
    ("raw_action",),
]
MEASURED = ("surrogate", "value", "entropy", "clipfrac", "approx_kl")  # terms of `_losses` that are reported
MOMENTS = ("exp_avg", "exp_avg_sq")  # what Adam remembers of every parameter; its rates are set at every update
ADVANTAGE = 2 * ACTIONS + 1  # its column of the targets
COUNT = Number(0, 1e12, whole=True)


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """Numbers of the algorithm; section `algo` of cfg/train.yaml explains each."""

    epochs: int = setting("algo.training_epoch_num", 1, 100)
    num_minibatches: int = setting("algo.num_minibatches", 1, 1 << 20)
    gamma: float = setting("algo.gamma", 0.0, 1.0)
    gae_lambda: float = setting("algo.gae_lambda", 0.0, 1.0)
    clip_ratio: float = setting("algo.actor.clip_ratio", 1e-3, 1.0)
    value_clip: float = setting("algo.critic.clip_ratio", 1e-3, 100.0)  # in standard deviations of the return
    value_coef: float = setting("algo.value_loss_coefficient", 0.0, 100.0)
    entropy_coef: float = setting("algo.entropy_loss_coefficient", 0.0, 1.0)
    max_grad_norm: float = setting("algo.max_grad_norm", 1e-6)
    encoder_lr: float = setting("algo.feature_extractor.learning_rate", 0.0, 1.0)
    actor_lr: float = setting("algo.actor.learning_rate", 0.0, 1.0)
    critic_lr: float = setting("algo.critic.learning_rate", 0.0, 1.0)
    schedule: str = setting("algo.schedule", options=("adaptive", "constant"))
    target_kl: float = setting("algo.target_kl", 1e-6, 10.0)
    anneal: float = setting("algo.anneal", 0.0, 1.0)  # last share of the run over which the rates fall to a hundredth
    ema_decay: float = setting("algo.averaging", 0.0, 0.99999)
    amp: bool = setting("algo.amp")  # bfloat16 products


class NotFinite(RuntimeError):
    """A tensor holds NaN or infinity. `name` says which; `data` is the batch, or what was being acted on."""

    def __init__(self, name: str, data: Batch | TensorDictBase | None = None) -> None:
        super().__init__(name)
        self.name, self.data = name, data


class Actor(nn.Module):
    """An exploring policy: what a collector flies with. Adds the action, and what the update must know about it."""

    def __init__(self, policy: ActorCritic, value_norm: ValueNorm, noise: Noise, amp: bool) -> None:
        super().__init__()
        self.policy, self.value_norm, self.noise, self.amp = policy, value_norm, noise, amp

    @torch.no_grad()
    def forward(self, data: TensorDictBase) -> TensorDictBase:
        """Explore: add an action to `data` (N)."""
        seen = data.get(OBSERVED)
        rows = self.policy.encoder.prepare(*(seen[name] for name in NETWORK_INPUTS))
        if not _finite(rows.sum()):
            check_finite(data, SEEN)
        alpha, beta, value = self.evaluate(rows)
        raw_action = self.noise.draw(alpha, beta)  # (N, 3) in (0, 1)
        data["agents", "action"] = self.policy.velocity(raw_action, seen["direction"])
        data["raw_action"] = raw_action
        data["log_prob"] = beta_policy.log_prob(alpha, beta, raw_action)
        data["value"] = self.value_norm.denormalize(value)
        return data

    def evaluate(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Network input (B, columns) to alpha (B, 3), beta (B, 3) and normalized value (B)."""
        if not self.amp:
            return self.policy(rows)
        with torch.autocast(rows.device.type, torch.bfloat16):
            alpha, beta, value = self.policy(rows)
        return alpha.float(), beta.float(), value.float()

    def copy(self, device: torch.device) -> Actor:
        """Another actor with weights and a count of decisions of its own."""
        parts = copy.deepcopy(self.policy).to(device), copy.deepcopy(self.value_norm).to(device)
        return Actor(*parts, Noise(self.noise.seed, self.noise.first), self.amp)

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """A copy of all that decides how this actor flies, for `load_weights` of another."""
        parts = {"policy": self.policy, "value_norm": self.value_norm}
        return {name: copy.deepcopy(dict(part.state_dict())) for name, part in parts.items()}

    def load_weights(self, weights: dict[str, dict[str, Tensor]]) -> None:
        """Fly as the actor with these `weights()`."""
        self.policy.load_state_dict(weights["policy"])
        self.value_norm.load_state_dict(weights["value_norm"])


@dataclass
class _Order:
    """The rows of one epoch in random order: those of this rank, and where they are in the order of all ranks' rows."""

    index: Tensor  # number of each row in this rank's batch
    here: Tensor | None  # mask of this rank's rows in the whole order; None: all are
    sizes: list[int]  # rows of this rank in each minibatch
    frames: int  # rows of all ranks in each


class PPO:
    """An actor-critic and all that trains it. `actor` explores, `update` learns, `ema_policy` is what to evaluate.

    `ema_policy` is an exponential moving average of the weights. It flies better than the weights of any one moment, so
    that stopping a run early costs little.

    Several ranks learn together what one would learn from all of their batches: every minibatch is drawn from the whole
    batch, each rank computes the gradient of the rows it has, and the sums are those of the whole. `first_drone` is the
    number, in the whole run, of the first drone in this rank's batches.
    """

    def __init__(
        self, policy: ActorCritic, settings: PPOSettings, seed: int = 0, ranks: Ranks = ALONE, first_drone: int = 0
    ) -> None:
        self.policy, self.settings, self.seed, self.ranks = policy, settings, seed, ranks
        self.ema_policy = copy.deepcopy(policy).requires_grad_(False)
        self.device = next(policy.parameters()).device
        self.value_norm = ValueNorm().to(self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.actor = Actor(policy, self.value_norm, Noise(seed, first_drone), settings.amp)
        self._rates = settings.encoder_lr, settings.actor_lr, settings.critic_lr
        parts = (policy.encoder, policy.actor, policy.critic)
        groups = [{"params": [*part.parameters()], "lr": lr} for part, lr in zip(parts, self._rates, strict=True)]
        self.optimizer = torch.optim.Adam(groups, eps=1e-5, fused=True)
        self.lr_scale, self.updates = 1.0, 0
        self._buffers: dict[str, Tensor] = {}
        self._before = Snapshot()  # the state before the last update
        self._live: dict | None = None  # what `state` gathers, once: gathering takes longer than copying

    def update(self, batch: Batch, progress: float = 0.0) -> dict[str, float]:
        """Learn from a batch at `progress` (0 to 1) through the run; returns metrics.

        Whatever it raises, everything is as before the update: the state can be saved, and the same call fails again.
        """
        self._before.take(self.state())  # into memory it already has
        try:
            with self.ranks.together():
                check_finite(batch.frames, LEARNED_FROM)
            metrics = self._learn(batch, progress)
            if broken := [name for name, value in metrics.items() if not _finite(value)]:
                self._undo()
                self._learn(batch, progress, watch=True)  # once more, looking at every step: which tensor was it?
                raise NotFinite(broken[0])
            return metrics
        except NotFinite as error:
            self._undo()
            raise NotFinite(error.name, batch) from None
        except RankFailed as error:
            self._undo()
            raise NotFinite(str(error), batch) if error.kind == "NotFinite" else error from None
        except BaseException:  # out of memory, say
            self._undo()
            raise

    def _undo(self) -> None:
        self._before.wait()
        self.load_state(self._before.content)

    def _learn(self, batch: Batch, progress: float, watch: bool = False) -> dict[str, float]:
        s = self.settings
        targets, explained_variance = self.compute_targets(batch)
        orders = [self._draw_order(len(batch.rows)) for _ in range(s.epochs)]
        moments = self._advantage_moments(orders, targets[:, ADVANTAGE])
        self._set_learning_rates(progress)
        sums = torch.zeros(s.epochs, len(MEASURED), device=self.device)
        grad_norms = torch.zeros((), device=self.device)
        for order, moment, measured in zip(orders, moments, sums, strict=True):
            minibatches = self._minibatches(order, batch.rows, targets)
            for minibatch, (mean, std) in zip(minibatches, moment.unbind(), strict=True):
                losses = self._losses(*minibatch, order.frames, mean, std)
                loss = losses["surrogate"] + s.value_coef * losses["value"] - s.entropy_coef * losses["entropy"]
                self.optimizer.zero_grad()
                loss.backward()
                if watch:
                    with self.ranks.together():
                        self._watch(losses)
                self._sum_gradients()
                grad_norms += nn.utils.clip_grad_norm_(self.policy.parameters(), s.max_grad_norm)
                self.optimizer.step()
                measured += torch.stack([losses[name].detach() for name in MEASURED])
        self.ranks.sum(sums)
        means = sums / s.num_minibatches  # per epoch
        surrogate, value, entropy, clipfrac, _ = means.mean(0).tolist()
        kl_of_last_epoch = float(means[-1, -1])
        self._adapt_learning_rate(kl_of_last_epoch)
        self._update_ema()
        return {
            "losses/policy_loss": surrogate,
            "losses/value_loss": value,
            "losses/entropy": entropy,
            "losses/approx_kl": kl_of_last_epoch,
            "losses/clipfrac": clipfrac,
            "losses/explained_variance": explained_variance,
            "losses/grad_norm": float(grad_norms) / (s.epochs * s.num_minibatches),
            "charts/learning_rate": self.optimizer.param_groups[0]["lr"],
        }

    @torch.no_grad()
    def compute_targets(self, batch: Batch) -> tuple[Tensor, float]:
        """Advantages, returns and the rest the losses need, one row per frame; and the explained variance."""

        def by_time(x: Tensor) -> Tensor:
            return x.reshape(batch.frames.batch_size).T.contiguous()  # (T, N)

        s = self.settings
        values, rewards = by_time(batch["value"]), by_time(batch["next", "agents", "reward"])
        done, terminated = by_time(batch["next", "done"]), by_time(batch["next", "terminated"])
        next_values = torch.empty_like(values)
        next_values[:-1] = values[1:]
        last_values = self.value_norm.denormalize(self.actor.evaluate(batch.last_rows)[2])
        next_values.T[needs_bootstrap(batch.frames)] = last_values

        advantages, returns = gae(rewards, values, next_values, done, terminated, s.gamma, s.gae_lambda)
        error = returns - values
        sums = torch.stack([x.sum(dtype=torch.float64) for x in (returns, returns.square(), error, error.square())])
        self.ranks.sum(sums)
        if not _finite(sums[1]):  # what the normalizer takes in
            raise NotFinite("returns")
        mean, mean_square, error_mean, error_square = sums / (returns.numel() * self.ranks.size)
        self.value_norm.update(mean, mean_square)
        unexplained, variance = error_square - error_mean.square(), mean_square - mean.square()
        explained_variance = 1.0 - float(unexplained / variance.clamp(min=1e-8))
        raw_action = batch["raw_action"].flatten(0, 1)
        normalized = self.value_norm.normalize(returns), self.value_norm.normalize(values)
        by_drone = [x.T.reshape(-1, 1) for x in (advantages, *normalized)]
        log_action = [raw_action.log(), torch.log1p(-raw_action)]
        targets = torch.cat([*log_action, batch["log_prob"].reshape(-1, 1), *by_drone], dim=1)  # (N · T, 10)
        return targets, explained_variance

    def _draw_order(self, rows: int) -> _Order:
        """A random order of all rows of the run, of which this rank has `rows`."""
        total = rows * self.ranks.size
        order = torch.randperm(total, generator=self.generator, device=self.device)
        frames = total // self.settings.num_minibatches
        if self.ranks.size == 1:
            return _Order(order, None, [frames] * self.settings.num_minibatches, frames)
        mine = order - rows * self.ranks.rank
        here = (mine >= 0) & (mine < rows)
        return _Order(mine[here], here, here.view(-1, frames).sum(1).tolist(), frames)

    def _advantage_moments(self, orders: list[_Order], advantages: Tensor) -> Tensor:
        """Mean and standard deviation of the advantages in every minibatch (epochs, minibatches, 2)."""
        whole = torch.zeros(len(orders), orders[0].frames * self.settings.num_minibatches, device=self.device)
        for row, order in zip(whole, orders, strict=True):
            row[... if order.here is None else order.here] = advantages[order.index]
        by_minibatch = whole.double().view(len(orders), -1, orders[0].frames)
        sums = torch.stack([by_minibatch.sum(-1), by_minibatch.square().sum(-1)])
        self.ranks.sum(sums)
        count, (total, squares) = orders[0].frames, sums
        std = ((squares - total.square() / count).clamp(min=0.0) / (count - 1)).sqrt()
        return torch.stack([total / count, std], dim=-1).float()

    def _sum_gradients(self) -> None:
        """Add up the gradients of all ranks, in one piece."""
        if self.ranks.size > 1:
            parameters = [*self.policy.parameters()]
            flat = torch.cat([p.grad.view(-1) for p in parameters if p.grad is not None])
            self.ranks.sum(flat)
            for p, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad = gradient.view_as(p)

    def _minibatches(self, order: _Order, rows: Rows, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and targets of one minibatch after the other, in memory that is reused."""
        sizes = order.sizes
        for first in range(0, len(sizes), rows.ahead):
            begin, some = sum(sizes[:first]), sizes[first : first + rows.ahead]
            index = order.index[begin : begin + sum(some)]
            picked_rows = self._buffer("rows", len(index), rows.shape[1])
            picked_targets = self._buffer("targets", len(index), targets.shape[1])
            rows.select(index, picked_rows)
            torch.index_select(targets, 0, index, out=picked_targets)
            yield from zip(picked_rows.split(some), picked_targets.split(some), strict=True)

    def _losses(self, rows: Tensor, targets: Tensor, frames: int, mean: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Terms of the loss over a minibatch, and what is measured along the way.

        `rows` are this rank's of the minibatch's `frames`; `mean` and `std` are of all their advantages. What the ranks
        compute adds up to the loss.
        """
        s = self.settings
        log_action, log_rest, rest = targets.split([ACTIONS, ACTIONS, 4], dim=1)
        old_log_prob, advantages, returns, old_value = rest.unbind(1)
        alpha, beta, value = self.actor.evaluate(rows)
        log_prob, entropy = beta_policy.log_prob_entropy(alpha, beta, log_action, log_rest)

        # Clipped surrogate objective, with advantages normalized per minibatch.
        advantages = (advantages - mean) / (std + 1e-8)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        surrogate = ratio * advantages
        surrogate_clipped = ratio.clamp(1.0 - s.clip_ratio, 1.0 + s.clip_ratio) * advantages
        surrogate_loss = -torch.minimum(surrogate, surrogate_clipped).sum() / frames

        # Clipped value loss; values and returns are normalized.
        value_clipped = old_value + (value - old_value).clamp(-s.value_clip, s.value_clip)
        value_loss = torch.maximum((value - returns).square(), (value_clipped - returns).square()).sum() / frames

        with torch.no_grad():
            approx_kl = (ratio - 1.0 - log_ratio).sum() / frames
            clipfrac = ((ratio - 1.0).abs() > s.clip_ratio).float().sum() / frames
        losses = {"surrogate": surrogate_loss, "value": value_loss, "entropy": entropy.sum() / frames}
        return losses | {"approx_kl": approx_kl, "clipfrac": clipfrac}

    def _set_learning_rates(self, progress: float) -> None:
        left = min(1.0, max(0.0, 1.0 - progress) / self.settings.anneal) if self.settings.anneal else 1.0
        for group, lr in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = lr * self.lr_scale * max(left, 0.01)

    def _adapt_learning_rate(self, kl: float) -> None:
        """Learn faster while the policy changes less than the target, slower when it changes more."""
        if self.settings.schedule == "adaptive":
            low, high = self.settings.target_kl / 1.5, self.settings.target_kl * 1.5
            factor = 1.2 if kl < low else 1 / 1.2 if kl > high else 1.0
            self.lr_scale = min(max(self.lr_scale * factor, 0.01), 3.0)

    @torch.no_grad()  # or the average would remember how it came about, forever
    def _update_ema(self) -> None:
        self._live = self._live if self.updates else None  # Adam has its moments from the first update on
        self.updates += 1
        weight = max(1.0 - self.settings.ema_decay, 1.0 / (1.0 + 0.2 * self.updates))  # faster at first
        torch._foreach_lerp_([*self.ema_policy.parameters()], [*self.policy.parameters()], weight)  # pyright: ignore[reportPrivateImportUsage]

    def _watch(self, losses: dict[str, Tensor]) -> None:
        for name, value in losses.items():
            if not torch.isfinite(value).all():
                raise NotFinite(f"losses/{name}")
        for name, parameter in self.policy.named_parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise NotFinite(f"gradient of {name}")

    def _buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """Memory that is kept from update to update."""
        if name not in self._buffers or len(self._buffers[name]) < rows or self._buffers[name].shape[1] != columns:
            self._buffers[name] = torch.empty((rows, columns), device=self.device)
        return self._buffers[name][:rows]

    # --- state --------------------------------------------------------------------------------------------------
    # The keys are those of every state on disk, since the first version.

    def state(self) -> dict:
        """Everything needed to resume learning exactly from here; live tensors, copy them to keep."""
        if self._live is None:
            parts = {"policy": self.policy, "averaged": self.ema_policy, "value_norm": self.value_norm}
            self._live = {name: Live(part.state_dict()) for name, part in parts.items()}
            adam = [self.optimizer.state[p] for p in self.policy.parameters()] if self.updates else []
            moments = {name: [moment[name] for moment in adam] for name in MOMENTS}
            self._live["adam"] = Live(moments | {"step": adam[0]["step"] if adam else None})  # the same for all
        numbers = {"rate_scale": self.lr_scale, "updates": self.updates, "decisions": self.actor.noise.decision}
        return self._live | numbers | {"generator": self.generator.get_state()}

    def load_state(self, state: dict) -> None:
        """Resume from `state()`."""
        self.policy.load_state_dict(state["policy"])
        self.ema_policy.load_state_dict(state["averaged"])
        self.value_norm.load_state_dict(state["value_norm"])
        self._live = None
        self.optimizer.state.clear()
        adam = state["adam"]
        for p, *moments in zip(self.policy.parameters(), *(adam[name] for name in MOMENTS), strict=False):
            copies = [moment.to(p.device, copy=True) for moment in (adam["step"], *moments)]  # Adam changes what it has
            self.optimizer.state[p] = dict(zip(("step", *MOMENTS), copies, strict=True))
        self.lr_scale, self.updates = state["rate_scale"], state["updates"]
        self.actor.noise.decision = state.get("decisions", 0)  # states of the first versions have none
        if len(state["generator"]) == len(self.generator.get_state()):  # a CPU's and a GPU's differ
            self.generator.set_state(state["generator"])


def check_learner_state(state: Any, network: NetworkSettings) -> None:
    """Raise Unfit if `state` is not the `PPO.state()` of a learner with this network."""
    with torch.device("meta"):
        policy = ActorCritic(network)
    weights, generator = like(policy.state_dict(), LARGEST_WEIGHT), Array(torch.uint8, (None,))
    numbers = {"rate_scale": Number(1e-3, 10.0), "updates": COUNT, "generator": generator, "decisions?": COUNT}
    parts = {"policy": weights, "averaged": weights, "value_norm": like(ValueNorm().state_dict())}
    check(state, parts | numbers, "ppo")
    for name, part in parts.items():
        refuse_others(state[name], part, f"ppo.{name}")
    moments = [like(p) for p in policy.parameters()] if state["updates"] else []
    step = Array(torch.float32, ()) if state["updates"] else OneOf((None,))
    check(state, {"adam": dict.fromkeys(MOMENTS, moments) | {"step": step}}, "ppo")


def check_finite(data: TensorDictBase, keys: list[tuple[str, ...]]) -> None:
    """Raise `NotFinite` if a number under `keys` is NaN or infinite; keys that are not there were checked before."""
    for key in keys:
        tensor = data.get(key, None)
        if tensor is not None and not _finite(tensor.sum()) and not torch.isfinite(tensor).all():  # a sum may overflow
            raise NotFinite("/".join(key), data)


def _finite(value: float | Tensor) -> bool:
    return bool(torch.isfinite(torch.as_tensor(value)))
