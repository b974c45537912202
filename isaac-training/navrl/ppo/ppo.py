"""Proximal policy optimisation: acts while a batch is collected, then learns from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from navrl.io.snapshot import Live
from navrl.ppo import beta as beta_policy
from navrl.ppo.networks import ACTIONS, ActorCritic
from navrl.ppo.returns import ValueNorm, gae

OBSERVATION = ("state", "lidar", "dynamic_obstacle")  # what encoders look at
SEEN = [("agents", "observation", name) for name in OBSERVATION]
LEARNED_FROM = [
    *SEEN,
    *(("next", *key) for key in SEEN),
    ("next", "agents", "reward"),
    ("value",),
    ("log_prob",),
    ("unit",),
]
MEASURED = ("policy", "value", "entropy", "clipped")  # per minibatch, averaged over an update
MOMENTS = ("exp_avg", "exp_avg_sq")  # what Adam remembers of every parameter; its rates are set at every update
SCHEDULES = ("adaptive", "constant")


@dataclass(frozen=True)
class PPOSettings:
    """Numbers of the algorithm; section `algo` of cfg/train.yaml says what each does."""

    epochs: int = 2
    minibatches: int = 16
    gamma: float = 0.98
    gae_lambda: float = 0.95
    clip: float = 0.2  # of the probability ratio
    value_clip: float = 0.2  # in standard deviations of the return
    value_weight: float = 0.5
    entropy_weight: float = 1e-3
    max_grad_norm: float = 0.5
    learning_rates: tuple[float, float, float] = (1e-3, 1e-3, 1e-3)  # encoder, actor, critic
    schedule: str = "adaptive"
    target_kl: float = 0.015
    anneal: float = 0.4  # last share of the run over which the rates fall to a hundredth
    averaging: float = 0.99  # how slowly the averaged weights follow
    amp: bool = False  # bfloat16 products


class NotFinite(RuntimeError):
    """A tensor holds NaN or infinity. `name` says which; `data` is what was being acted on or learned from."""

    def __init__(self, name: str, data: TensorDictBase | None = None) -> None:
        super().__init__(name)
        self.name, self.data = name, data


class Rows(Protocol):
    """The network's input for a whole batch, one row a frame, drone after drone."""

    shape: torch.Size
    ahead: int  # minibatches that are best selected together

    def __len__(self) -> int: ...
    def select(self, index: Tensor, out: Tensor) -> None: ...


class PlainRows:
    """All rows in one tensor."""

    ahead = 1

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.shape = rows, rows.shape

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, index: Tensor, out: Tensor) -> None:
        torch.index_select(self.rows, 0, index, out=out)


@dataclass
class HeldBatch:
    """A batch (N, T) ready to be learned from: the network's input apart from all else, which `small` holds."""

    small: TensorDictBase
    rows: Rows
    ends: Tensor  # network input of where steps led that need a value, drone after drone; see `needs_value`

    def __getitem__(self, key: str | tuple[str, ...]) -> Tensor:
        return self.small[key]

    def bytes(self) -> int:
        return self.small.bytes() + self.ends.nbytes + getattr(self.rows, "nbytes", 0)


def needs_value(batch: TensorDictBase, last: bool = True) -> Tensor:
    """(N, T): steps whose next state has no value yet. Where a step led is where the next one began, except at the end
    of the batch (if this is its `last` part) and where a reset came between; a terminated flight has no future."""
    ask = (batch["next", "done"] & ~batch["next", "terminated"]).squeeze(-1)
    if last:
        ask = ask.clone()
        ask[:, -1] = True
    return ask


class PPO(nn.Module):
    """An actor-critic and all that trains it. Calling it explores; `update` learns; `averaged` is what to evaluate.

    `averaged` follows the weights slowly. It flies better than the weights of any one moment, at any moment, so that
    stopping a run early costs little.
    """

    def __init__(self, policy: ActorCritic, settings: PPOSettings, seed: int = 0) -> None:
        super().__init__()
        self.policy, self.settings, self.seed = policy, settings, seed
        self.averaged = copy.deepcopy(policy).requires_grad_(False)
        self.device = next(policy.parameters()).device
        self.value_norm = ValueNorm().to(self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        parts = (policy.encoder, policy.actor, policy.critic)
        groups = [{"params": [*p.parameters()], "lr": r} for p, r in zip(parts, settings.learning_rates, strict=True)]
        self.optimizer = torch.optim.Adam(groups, eps=1e-5, fused=True)
        self.rate_scale, self.updates = 1.0, 0
        self._buffers_for: dict[str, Tensor] = {}
        # What `state` gathers, once: it takes longer than copying it does.
        self._live: dict | None = None

    # --- acting -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, data: TensorDictBase) -> TensorDictBase:
        """Explore: add an action to `data` (N), and what the update needs to know about it."""
        seen = data["agents", "observation"]
        rows = self.policy.encoder.prepare(*(seen[name] for name in OBSERVATION))
        if not _finite(rows.sum()):
            check_numbers(data, SEEN)
        alpha, beta, value = self._forward(rows)
        unit = beta_policy.sample(alpha, beta, self.generator)
        data["agents", "action"] = self.policy.velocity(unit, seen["direction"])
        data["unit"] = unit
        data["log_prob"] = beta_policy.log_prob(alpha, beta, unit)
        data["value"] = self.value_norm.denormalize(value)
        return data

    def _forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self.settings.amp:
            return self.policy(rows)
        with torch.autocast(self.device.type, torch.bfloat16):
            alpha, beta, value = self.policy(rows)
        return alpha.float(), beta.float(), value.float()

    def acting_copy(self, seed: int, device: torch.device | None = None) -> PPO:
        """One more that can act, with weights and random numbers of its own."""
        return PPO(copy.deepcopy(self.policy).to(device or self.device), self.settings, seed)

    def acting_weights(self) -> dict:
        """What a copy needs to act as this one does now, and how many updates that took."""
        parts = {name: getattr(self, name).state_dict() for name in ("policy", "value_norm")}
        return {"version": self.updates, **{name: copy.deepcopy(dict(part)) for name, part in parts.items()}}

    def fly_with(self, weights: dict) -> None:
        """Act with `acting_weights` of another."""
        for name in ("policy", "value_norm"):
            getattr(self, name).load_state_dict(weights[name])

    # --- learning -----------------------------------------------------------------------------------------------

    def update(self, batch: TensorDictBase | HeldBatch, progress: float = 0.0) -> dict[str, float]:
        """Learn from a batch (N, T) at `progress` (0 to 1) through the run; returns metrics.

        Raises `NotFinite` with everything as it was before the update, so that the same call fails again.
        """
        if isinstance(batch, HeldBatch):  # what was seen was checked while acting
            check_numbers(batch.small, LEARNED_FROM[-4:])
        else:
            check_numbers(batch, LEARNED_FROM)
        before = copy.deepcopy(self.state())
        try:
            metrics = self._learn(batch, progress)
            broken = [name for name, value in metrics.items() if not _finite(value)]
            if not broken:
                return metrics
            self.load_state(before)
            self._learn(batch, progress, watch=True)  # once more, looking at every step: which tensor was it?
            raise NotFinite(broken[0])
        except NotFinite as error:
            self.load_state(before)
            raise NotFinite(error.name, batch) from None

    def _learn(self, batch: TensorDictBase | HeldBatch, progress: float, watch: bool = False) -> dict[str, float]:
        s = self.settings
        rows, columns, explained = self.lay_out(batch)
        self._set_rates(progress)
        size = len(rows) // s.minibatches
        sums = torch.zeros(len(MEASURED) + 1, device=self.device)
        for _ in range(s.epochs):
            kl = torch.zeros((), device=self.device)
            order = torch.randperm(len(rows), generator=self.generator, device=self.device)
            for picked in self._minibatches(order, size, rows, columns):
                parts = self._losses(*picked)
                loss = parts["policy"] + s.value_weight * parts["value"] - s.entropy_weight * parts["entropy"]
                self.optimizer.zero_grad()
                loss.backward()
                if watch:
                    self._watch(parts)
                norm = nn.utils.clip_grad_norm_(self.policy.parameters(), s.max_grad_norm)
                self.optimizer.step()
                kl += parts["kl"].detach()
                sums += torch.stack([*(parts[name].detach() for name in MEASURED), norm])
        kl_of_last_epoch = float(kl) / s.minibatches
        self._steer(kl_of_last_epoch)
        self._average()
        policy, value, entropy, clipped, norm = (sums / (s.epochs * s.minibatches)).tolist()
        return {
            "losses/policy_loss": policy,
            "losses/value_loss": value,
            "losses/entropy": entropy,
            "losses/approx_kl": kl_of_last_epoch,
            "losses/clipfrac": clipped,
            "losses/explained_variance": explained,
            "losses/grad_norm": norm,
            "charts/learning_rate": self.optimizer.param_groups[0]["lr"],
        }

    def _minibatches(self, order: Tensor, size: int, rows: Rows, columns: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and columns of one minibatch after the other, in memory that is used again."""
        ahead = min(rows.ahead, len(order) // size)
        input_rows, input_columns = (
            self._buffer(f"picked {name}", ahead * size, what.shape[1])
            for name, what in (("rows", rows), ("columns", columns))
        )
        for some in order.split(ahead * size):
            rows.select(some, input_rows[: len(some)])
            torch.index_select(columns, 0, some, out=input_columns[: len(some)])
            yield from zip(input_rows[: len(some)].split(size), input_columns[: len(some)].split(size), strict=True)

    def _losses(self, rows: Tensor, columns: Tensor) -> dict[str, Tensor]:
        """Terms of the loss over a minibatch, and what is measured on the way."""
        s = self.settings
        log_unit, log_rest, rest = columns.split([ACTIONS, ACTIONS, 4], dim=1)
        old_log_prob, advantage, returns, old_value = rest.unbind(1)
        alpha, beta, value = self._forward(rows)
        log_prob, entropy = beta_policy.log_prob_entropy(alpha, beta, log_unit, log_rest)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - s.clip, 1.0 + s.clip) * advantage)
        near = old_value + (value - old_value).clamp(-s.value_clip, s.value_clip)
        value_error = torch.maximum((value - returns).square(), (near - returns).square())
        with torch.no_grad():
            kl = (ratio - 1.0 - log_ratio).mean()
            clipped = ((ratio - 1.0).abs() > s.clip).float().mean()
        parts = {"policy": -gain.mean(), "value": value_error.mean(), "entropy": entropy.mean()}
        return parts | {"kl": kl, "clipped": clipped}

    @torch.no_grad()
    def lay_out(self, batch: TensorDictBase | HeldBatch) -> tuple[Rows, Tensor, float]:
        """The batch as one row of network input a frame, one row of all else the losses need, explained variance."""
        s = self.settings
        held = batch if isinstance(batch, HeldBatch) else self._hold(batch)
        rows, batch = held.rows, held.small

        def by_time(x: Tensor) -> Tensor:
            return x.reshape(batch.batch_size).T.contiguous()  # (T, N)

        value, reward = by_time(batch["value"]), by_time(batch["next", "agents", "reward"])
        done, terminated = by_time(batch["next", "done"]), by_time(batch["next", "terminated"])
        next_value = torch.empty_like(value)
        next_value[:-1] = value[1:]
        next_value.T[needs_value(batch)] = self.value_norm.denormalize(self._forward(held.ends)[2])

        advantage, returns = gae(reward, value, next_value, done, terminated, s.gamma, s.gae_lambda)
        if not _finite(returns.square().mean()):  # what the normaliser takes in
            raise NotFinite("returns")
        self.value_norm.update(returns)
        explained = 1.0 - float((returns - value).var() / returns.var().clamp(min=1e-8))
        unit = batch["unit"].flatten(0, 1)
        scaled = self.value_norm.normalize(returns), self.value_norm.normalize(value)
        by_drone = [x.T.reshape(-1, 1) for x in (advantage, *scaled)]
        columns = torch.cat([unit.log(), torch.log1p(-unit), batch["log_prob"].reshape(-1, 1), *by_drone], dim=1)
        return rows, columns, explained

    def _hold(self, batch: TensorDictBase) -> HeldBatch:
        prepare, ask = self.policy.encoder.prepare, needs_value(batch)
        seen, then = batch["agents", "observation"], batch["next", "agents", "observation"]
        rows = PlainRows(prepare(*(seen[name].flatten(0, 1) for name in OBSERVATION)))
        return HeldBatch(batch, rows, prepare(*(then[name][ask] for name in OBSERVATION)))

    def _set_rates(self, progress: float) -> None:
        left = min(1.0, max(0.0, 1.0 - progress) / self.settings.anneal) if self.settings.anneal else 1.0
        for group, rate in zip(self.optimizer.param_groups, self.settings.learning_rates, strict=True):
            group["lr"] = rate * self.rate_scale * max(left, 0.01)

    def _steer(self, kl: float) -> None:
        """Learn faster while the policy changes less than asked for, slower when it changes more."""
        if self.settings.schedule == "adaptive":
            low, high = self.settings.target_kl / 1.5, self.settings.target_kl * 1.5
            factor = 1.2 if kl < low else 1 / 1.2 if kl > high else 1.0
            self.rate_scale = min(max(self.rate_scale * factor, 0.01), 3.0)

    def _average(self) -> None:
        self._live = self._live if self.updates else None  # Adam has its moments from the first update on
        self.updates += 1
        weight = max(1.0 - self.settings.averaging, 1.0 / (1.0 + 0.2 * self.updates))  # quicker at first
        torch._foreach_lerp_([*self.averaged.parameters()], [*self.policy.parameters()], weight)

    def _watch(self, parts: dict[str, Tensor]) -> None:
        for name, value in parts.items():
            if not torch.isfinite(value).all():
                raise NotFinite(f"losses/{name}")
        for name, parameter in self.policy.named_parameters():
            if not torch.isfinite(parameter.grad).all():
                raise NotFinite(f"gradient of {name}")

    def _buffer(self, name: str, *shape: int) -> Tensor:
        """Memory that is kept from update to update."""
        if name not in self._buffers_for or self._buffers_for[name].shape != shape:
            self._buffers_for[name] = torch.empty(shape, device=self.device)
        return self._buffers_for[name]

    # --- state --------------------------------------------------------------------------------------------------

    def state(self) -> dict:
        """All that is needed to go on learning exactly from here; live tensors, copy them to keep."""
        if self._live is None:
            self._live = {name: Live(getattr(self, name).state_dict()) for name in ("policy", "averaged", "value_norm")}
            adam = [self.optimizer.state[p] for p in self.policy.parameters()] if self.updates else []
            moments = {name: [moment[name] for moment in adam] for name in MOMENTS}
            self._live["adam"] = Live(moments | {"step": adam[0]["step"] if adam else None})  # the same for all
        numbers = {"rate_scale": self.rate_scale, "updates": self.updates, "generator": self.generator.get_state()}
        return self._live | numbers

    def load_state(self, state: dict) -> None:
        """Go on from `state()`."""
        for name in ("policy", "averaged", "value_norm"):
            getattr(self, name).load_state_dict(state[name])
        self._live = None
        self.optimizer.state.clear()
        adam = state["adam"]
        for p, *moments in zip(self.policy.parameters(), *(adam[name] for name in MOMENTS), strict=False):
            copies = [moment.to(p.device, copy=True) for moment in (adam["step"], *moments)]  # Adam changes what it has
            self.optimizer.state[p] = dict(zip(("step", *MOMENTS), copies, strict=True))
        self.rate_scale, self.updates = state["rate_scale"], state["updates"]
        if len(state["generator"]) == len(self.generator.get_state()):  # a CPU's and a GPU's differ
            self.generator.set_state(state["generator"])


def check_numbers(data: TensorDictBase, keys: Sequence[tuple[str, ...]]) -> None:
    """Raise `NotFinite` if a number under `keys` is NaN or infinite."""
    for key in keys:
        tensor = data.get(key)
        if not _finite(tensor.sum()) and not torch.isfinite(tensor).all():  # a sum is fast; only it may overflow
            raise NotFinite("/".join(key), data)


def _finite(value: float | Tensor) -> bool:
    return bool(torch.isfinite(torch.as_tensor(value)))
