"""An environment with the task's interface and no simulator behind it: random observations, flights of fixed length."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

from navrl.schema import ACTIONS, STATS, observation_shapes
from navrl.sim.scene import SceneSettings
from navrl.sim.simulator import SimSettings
from navrl.task.env import DONE_KEYS, TaskSettings

FLIGHT = 5  # steps


class DummyEnv(EnvBase):
    """Rewards flying along x."""

    def __init__(self, scene: SceneSettings, sim: SimSettings, task: TaskSettings) -> None:
        n = sim.num_envs
        super().__init__(device="cpu", batch_size=(n,))
        self.num_envs, self.closed = n, 0
        self._shapes = observation_shapes(sim.lidar.shape)
        self._state = {"clock": torch.arange(n) % FLIGHT, "draws": torch.zeros((), dtype=torch.int64)}

        def batch(**content) -> Composite:
            return Composite(content, shape=(n,))

        def floats(*shape: int) -> Unbounded:
            return Unbounded(torch.Size((n, *shape)))

        observation = batch(**{name: floats(*shape) for name, shape in self._shapes.items()})
        stats = batch(**{name: floats(1) for name in STATS})
        self.observation_spec = batch(agents=batch(observation=observation), stats=stats)
        self.action_spec = batch(agents=batch(action=floats(ACTIONS)))
        self.reward_spec = batch(agents=batch(reward=floats(1)))
        self.done_spec = batch(**{key: Binary(1, torch.Size((n, 1)), dtype=torch.bool) for key in DONE_KEYS})

    def _observe(self) -> TensorDict:
        """Observations that follow from the state alone: the same after a reset, so that a restored one continues."""
        draw = torch.Generator().manual_seed(int(self._state["draws"]))
        seen = {name: torch.rand(self.num_envs, *shape, generator=draw) for name, shape in self._shapes.items()}
        stats = {name: torch.zeros(self.num_envs, 1) for name in STATS}
        n = [self.num_envs]
        return TensorDict(
            {"agents": TensorDict({"observation": TensorDict(seen, n)}, n), "stats": TensorDict(stats, n)}, n
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **_) -> TensorDict:
        out = self._observe()
        for key in DONE_KEYS:
            out[key] = torch.zeros(self.num_envs, 1, dtype=torch.bool)
        return out

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self._state["clock"] += 1
        self._state["draws"] += 1
        done = (self._state["clock"] % FLIGHT == 0).view(-1, 1)
        out = self._observe()
        out["agents", "reward"] = tensordict["agents", "action"][:, :1].clone()
        out["stats", "success"] = done.float()
        for key, value in zip(DONE_KEYS, (done, done, torch.zeros_like(done)), strict=True):
            out[key] = value
        return out

    def _set_seed(self, seed: int | None) -> None: ...

    def state_dict(self, *_, **__) -> dict:
        return self._state

    def load_state_dict(self, state: dict, *_, **__) -> None:
        for name, tensor in self._state.items():
            tensor.copy_(state[name])

    def close(self, *, raise_if_closed: bool = True) -> None:
        self.closed += 1
        super().close(raise_if_closed=False)
