"""Run again the update that met NaN or infinity, from the file train.py left, and say where it appears.

python scripts/replay.py runs/<date>/<time>/not_finite.pt
"""

from __future__ import annotations

import sys

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

from navrl import config
from navrl.io.files import BadCheckpoint, load_checkpoint
from navrl.ppo.networks import ENCODERS, ActorCritic
from navrl.ppo.ppo import PPO, HeldBatch, NotFinite, PlainRows


def main(path: str) -> int:
    try:
        saved = load_checkpoint(path)
    except BadCheckpoint as error:
        sys.exit(f"error: {error}")
    if "batch_size" not in saved:
        sys.exit(f"error: {path} is not a not_finite.pt that train.py left")
    cfg = OmegaConf.create(saved["config"])
    print(f"iteration {saved['iteration']}: {saved['name']} was not finite")
    on_gpu = len(saved["ppo"]["generator"]) != len(torch.Generator().get_state())
    if on_gpu:
        print("that was on a GPU; replayed on the CPU with other random numbers, so it may go another way")
        saved["ppo"]["generator"] = torch.Generator().get_state()
    lidar = config.lidar_spec(cfg)
    cfg.algo.amp = False
    encoder = ENCODERS[cfg.encoder](lidar.shape, lidar.range)
    ppo = PPO(ActorCritic(encoder, cfg.drone.action_limit), config.ppo_settings(cfg, "cpu"))
    ppo.load_state(saved["ppo"])
    data = TensorDict({}, batch_size=saved["batch_size"])
    for key, value in saved["data"].items():
        data[tuple(key.split("|"))] = value
    if saved["packed"]:
        data = HeldBatch(data, PlainRows(saved["packed"]["rows"]), saved["packed"]["ends"])
    try:
        if saved["packed"]:
            ppo.update(data, saved["progress"])
        elif data.ndim == 1:  # it happened while acting
            ppo(data)
        else:
            ppo.update(data, saved["progress"])
    except NotFinite as error:
        print(f"again: {error.name} is not finite")
        return 0
    print("this time every number is finite")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]) if len(sys.argv) == 2 else __doc__)
