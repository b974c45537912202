"""Run again the update that met NaN or infinity, from the file train.py left, and say where it appears.

python scripts/replay.py runs/<date>/<time>/not_finite.pt
"""

from __future__ import annotations

import sys

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

from navrl import config
from navrl.ppo.networks import ENCODERS, ActorCritic
from navrl.ppo.ppo import PPO, NotFinite


def main(path: str) -> int:
    saved = torch.load(path, weights_only=True)
    cfg = OmegaConf.create(saved["config"])
    cfg.device = "cpu"
    lidar = config.lidar_spec(cfg)
    ppo = PPO(ActorCritic(ENCODERS[cfg.encoder](lidar.shape, lidar.range)), config.ppo_settings(cfg))
    ppo.load_state(saved["ppo"])
    batch = TensorDict({}, batch_size=saved["batch_size"])
    for key, value in saved["batch"].items():
        batch[tuple(key.split("|"))] = value
    print(f"iteration {saved['iteration']}, batch {list(batch.batch_size)}, {saved['name']} was not finite")
    try:
        ppo.update(batch)
    except NotFinite as error:
        print(f"again: {error.name} is not finite")
        return 0
    print("this time every number is finite")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]) if len(sys.argv) == 2 else __doc__)
