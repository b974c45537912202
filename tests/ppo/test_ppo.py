"""The update against a plain double-precision statement of the same losses; determinism; the guard against NaN."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Beta
from torchrl.collectors import Collector

from conftest import make_learner
from navrl.ppo.batch import Batch
from navrl.ppo.networks import ENCODERS
from navrl.ppo.ppo import ADVANTAGE, PPO, NotFinite
from navrl.schema import NETWORK_INPUTS

DRONES, STEPS = 16, 8


@pytest.fixture
def make_ppo() -> Callable[..., PPO]:
    def make(encoder: str = "fast", **settings) -> PPO:
        return make_learner(encoder, seed=1, **({"num_minibatches": 4} | settings))

    return make


@pytest.fixture
def collect(make_env, scene) -> Callable[..., TensorDict]:
    """A batch of real flights, among them some that crash and some whose time runs out."""

    def batch(ppo: PPO, batches: int = 4, **sim) -> TensorDict:
        # Short flights in a narrow band of heights: many end by themselves, many by the clock.
        task = {"max_episode_length": 40, "height_limits": (0.6, 2.4)}
        env = make_env(scene, DRONES, task=task, decimation=4, **sim)
        collector = Collector(env, ppo.actor, frames_per_batch=DRONES * STEPS, total_frames=-1, trust_policy=True,
                              auto_register_policy_transforms=False)  # fmt: skip
        data = iter(collector)
        for _ in range(batches):
            out = next(data)
        return out.clone()

    return batch


def prepared(ppo: PPO, frames: TensorDict) -> Batch:
    return Batch.prepared(frames, ppo.policy.encoder.prepare)


def test_the_average_does_not_remember_how_it_came_about(make_ppo, collect) -> None:
    """It once did: every update added to a graph that was never freed, 10 kB each."""
    ppo = make_ppo()
    batch = prepared(ppo, collect(ppo))
    for _ in range(3):
        ppo.update(batch)
    assert all(p.grad_fn is None and not p.requires_grad for p in ppo.ema_policy.parameters())


def test_collected_batch_knows_its_policy(make_ppo, collect) -> None:
    ppo = make_ppo()
    batch = collect(ppo)
    assert batch.batch_size == (DRONES, STEPS)
    seen = batch["agents", "observation"]
    alpha, beta, value = ppo.policy(ppo.policy.encoder.prepare(*(seen[name].flatten(0, 1) for name in NETWORK_INPUTS)))
    log_prob = Beta(alpha, beta).log_prob(batch["raw_action"].flatten(0, 1)).sum(-1)
    assert torch.allclose(batch["log_prob"].view(-1), log_prob, atol=1e-4)
    assert torch.allclose(batch["value"].view(-1), ppo.value_norm.denormalize(value), atol=1e-5)
    velocity = (2 * batch["raw_action"] - 1) * 2.0
    ahead = seen["direction"].squeeze(-2)
    assert torch.allclose((batch["agents", "action"] * ahead).sum(-1), velocity[..., 0], atol=1e-5)


def plain_losses(ppo: PPO, batch: TensorDict) -> dict[str, Any]:
    """Losses over a whole batch in double precision, one drone and one step at a time where it matters."""
    s = ppo.settings
    policy, norm = copy.deepcopy(ppo.policy).double(), copy.deepcopy(ppo.value_norm).double()
    batch = batch.double()

    def values(observation: TensorDict) -> torch.Tensor:
        rows = policy.encoder.prepare(*(observation[name].flatten(0, 1) for name in NETWORK_INPUTS))
        return norm.denormalize(policy(rows)[2]).view(batch.batch_size).detach()

    # Where one step follows another, the next value is the one stored with it; only ends are evaluated again.
    value, following = batch["value"], values(batch["next", "agents", "observation"])
    ended = (batch["next", "done"].squeeze(-1) > 0)[:, :-1]
    following[:, :-1] = torch.where(ended, following[:, :-1], value[:, 1:])
    reward = batch["next", "agents", "reward"].squeeze(-1)
    done, terminated = batch["next", "done"].squeeze(-1) > 0, batch["next", "terminated"].squeeze(-1) > 0
    advantage = torch.zeros_like(value)
    for drone in range(DRONES):
        trace = 0.0
        for t in reversed(range(STEPS)):
            ahead = 0.0 if terminated[drone, t] else s.gamma * following[drone, t]
            trace = 0.0 if done[drone, t] else trace
            trace = reward[drone, t] + ahead - value[drone, t] + s.gamma * s.gae_lambda * trace
            advantage[drone, t] = trace
    returns = advantage + value
    norm.update(returns.mean(), returns.square().mean())

    seen = batch.get(("agents", "observation"))
    rows = policy.encoder.prepare(*(seen[name].flatten(0, 1) for name in NETWORK_INPUTS))
    alpha, beta, predicted = policy(rows)
    known = Beta(alpha, beta)
    ratio = (known.log_prob(batch["raw_action"].flatten(0, 1)).sum(-1) - batch.get("log_prob").flatten()).exp()
    a = advantage.flatten()
    a = (a - a.mean()) / (a.std() + 1e-8)
    policy_loss = -torch.minimum(ratio * a, ratio.clamp(1 - s.clip_ratio, 1 + s.clip_ratio) * a).mean()
    old, target = norm.normalize(value).flatten(), norm.normalize(returns).flatten()
    clipped = old + (predicted - old).clamp(-s.value_clip, s.value_clip)
    value_loss = torch.maximum((predicted - target) ** 2, (clipped - target) ** 2).mean()
    entropy = known.entropy().sum(-1).mean()
    loss = policy_loss + s.value_coef * value_loss - s.entropy_coef * entropy
    gradient = torch.autograd.grad(loss, list(policy.parameters()))
    return {"surrogate": policy_loss, "value": value_loss, "entropy": entropy, "gradient": gradient}


@pytest.mark.parametrize("encoder", list(ENCODERS))
def test_losses_and_gradients(make_ppo, collect, encoder: str) -> None:
    ppo = make_ppo(encoder)
    batch = collect(ppo)
    assert batch["next", "terminated"].any() and batch["next", "truncated"].any(), "both kinds of ends are in it"
    with torch.no_grad():  # the policy has moved on since, so that ratios and clips matter
        for parameter in ppo.policy.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    batch["value"] += 0.3 * torch.randn(batch.batch_size)
    expected = plain_losses(ppo, batch)
    held = prepared(ppo, batch)
    targets, _ = ppo.compute_targets(held)
    advantages = targets[:, ADVANTAGE]
    parts = ppo._losses(held.rows.tensor(), targets, len(targets), advantages.mean(), advantages.std())
    s = ppo.settings
    loss = parts["surrogate"] + s.value_coef * parts["value"] - s.entropy_coef * parts["entropy"]
    gradient = torch.autograd.grad(loss, list(ppo.policy.parameters()))
    for name in ("surrogate", "value", "entropy"):
        assert torch.isclose(parts[name].double(), expected[name], rtol=1e-4, atol=1e-5), name
    for (name, _), ours, theirs in zip(ppo.policy.named_parameters(), gradient, expected["gradient"], strict=True):
        scale = theirs.abs().max().clamp(min=1e-3)
        assert torch.allclose(ours.double() / scale, theirs / scale, atol=2e-3), name


def test_same_seed_same_weights_whatever_the_threads(make_ppo, make_env, scene) -> None:
    def train(threads: int) -> dict[str, torch.Tensor]:
        ppo = make_ppo()
        env = make_env(scene, 64, decimation=4, threads=threads)
        assert len(env._after_step) == threads, "drones are split across the threads"
        collector = Collector(env, ppo.actor, frames_per_batch=64 * STEPS, total_frames=64 * STEPS * 5,
                              trust_policy=True, auto_register_policy_transforms=False)  # fmt: skip
        for batch in collector:
            ppo.update(prepared(ppo, batch))
        return ppo.policy.state_dict()

    one, again, two = train(1), train(1), train(2)
    for name, value in one.items():
        assert torch.equal(value, again[name]) and torch.equal(value, two[name]), name


def test_state_goes_on_to_the_bit(make_ppo, collect) -> None:
    ppo = make_ppo()
    batch = prepared(ppo, collect(ppo))
    ppo.update(batch)
    saved = copy.deepcopy(ppo.state())
    ppo.update(batch)
    other = make_ppo()
    other.load_state(saved)
    other.update(batch)
    for name, value in ppo.policy.state_dict().items():
        assert torch.equal(value, other.policy.state_dict()[name])
    assert ppo.lr_scale == other.lr_scale


def test_bfloat16_products_learn_nearly_the_same(make_ppo, collect) -> None:
    plain, mixed = make_ppo(), make_ppo(amp=True)
    batch = prepared(plain, collect(plain))
    a, b = plain.update(batch), mixed.update(batch)
    for name in ("losses/policy_loss", "losses/value_loss", "losses/entropy"):
        assert a[name] == pytest.approx(b[name], abs=0.05), name


def test_rates(make_ppo, collect) -> None:
    ppo = make_ppo(encoder_lr=1e-3, actor_lr=2e-3, critic_lr=3e-3, schedule="constant", anneal=0.5)
    batch = prepared(ppo, collect(ppo))
    for progress, left in ((0.0, 1.0), (0.5, 1.0), (0.75, 0.5)):
        ppo.update(batch, progress)
        rates = [group["lr"] for group in ppo.optimizer.param_groups]
        assert rates == pytest.approx([1e-3 * left, 2e-3 * left, 3e-3 * left])
    steered = make_ppo(target_kl=1e-6)
    steered.update(batch)
    steered.update(batch)
    assert steered.lr_scale < 1.0, "the policy moved further than asked for"


@pytest.mark.parametrize(
    "key",
    [("agents", "observation", "lidar"), ("next", "agents", "observation", "state"), ("next", "agents", "reward")],
)
def test_nan_in_a_batch_is_named(make_ppo, collect, key: tuple[str, ...]) -> None:
    ppo = make_ppo()
    batch = collect(ppo, batches=1)
    batch[key].view(-1)[5] = torch.nan
    before = copy.deepcopy(ppo.state())
    with pytest.raises(NotFinite, match="/".join(key)) as error:
        ppo.update(held := prepared(ppo, batch))
    assert error.value.data is held
    assert torch.equal(before["policy"]["critic.weight"], ppo.policy.critic.weight)


def test_nan_in_the_learner_is_named_and_can_be_replayed(make_ppo, collect) -> None:
    ppo = make_ppo()
    batch = collect(ppo, batches=1)
    ppo.update(prepared(ppo, batch))  # so that Adam has something to lose
    batch["log_prob"][7, 3] -= 200.0  # a ratio of e^200 is infinite; it is met in some minibatch, not in the first
    before = copy.deepcopy(ppo.state())
    for _ in range(2):
        with pytest.raises(NotFinite, match=r"losses/|gradient of"):
            ppo.update(prepared(ppo, batch))
        after = ppo.state()
        for name, value in before["policy"].items():
            assert torch.equal(value, after["policy"][name]), "everything is as before the update"
        for value, now in zip(before["adam"]["exp_avg"], after["adam"]["exp_avg"], strict=True):
            assert torch.equal(value, now)


def test_nan_seen_while_acting_is_named(make_ppo, make_env, scene) -> None:
    ppo = make_ppo()
    data = make_env(scene, DRONES).reset()
    data["agents", "observation", "state"][3, 2] = torch.nan
    with pytest.raises(NotFinite, match="agents/observation/state") as error:
        ppo.actor(data)
    assert error.value.data is data


def test_solves_an_empty_field(make_env) -> None:
    """A short flight with nothing in the way is learned to 100 % in seconds."""
    from navrl.sim.scene import Scene, generate_scene
    from navrl.task.evaluation import fly_all, summarize

    empty = generate_scene(0, num_maps=1, num_static=0, num_moving=0, starts_per_map=256)
    starts = torch.as_tensor(empty.starts)
    near = starts + torch.tensor([5.0, 0.0, 0.0])
    fields = {name: getattr(empty, name) for name in Scene.__dataclass_fields__} | {"goals": near.numpy()}
    reward = {"progress": 0.1, "goal": 1.0, "collision": 1.0, "time": 0.03}
    task = {"reward": reward, "max_episode_length": 500}
    env = make_env(Scene(**fields), 256, task=task, decimation=4)
    ppo = make_learner(seed=0, num_minibatches=8)
    collector = Collector(env, ppo.actor, frames_per_batch=256 * 32, total_frames=256 * 32 * 40, trust_policy=True,
                          auto_register_policy_transforms=False)  # fmt: skip
    for batch in collector:
        ppo.update(prepared(ppo, batch))
    check = make_env(Scene(**fields), 256, task=task | {"starts_in_order": True}, decimation=4)
    flights = fly_all(check, lambda seen: ppo.ema_policy.act(**seen))
    assert flights is not None and summarize(flights)["success"] == 1.0
