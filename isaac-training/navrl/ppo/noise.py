# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false
"""Exploration noise that depends on nothing but the seed, the drone's number and the decision.

A generator that is drawn from in turn gives a drone other numbers as soon as another drone is added or taken away. Here
every number is computed from its place (Philox, Salmon et al. 2011), so a thousand drones in one process and the same
thousand shared out over several fly alike.
"""

from __future__ import annotations

import torch
import warp as wp
from torch import Tensor

from navrl.native.launch import Recorded, Team
from navrl.native.runtime import FORWARD_ONLY, start_warp
from navrl.schema import ACTIONS

wp.set_module_options(FORWARD_ONLY)

EDGE = 1e-5  # samples stay this far from 0 and 1, where the logarithm is infinite


@wp.func_native("""
    // Two gamma draws (Marsaglia and Tsang 2000) make a beta draw. Each attempt takes one block of four random words:
    // two for a normal draw, one to accept or refuse it. Nineteen of twenty are accepted.
    float gamma[2];
    for (unsigned which = 0; which < 2; ++which) {
        const float shape = which ? beta : alpha;
        const float d = shape - 1.0f / 3.0f, c = 1.0f / sqrtf(9.0f * d);
        gamma[which] = d;
        for (unsigned attempt = 0; attempt < 64; ++attempt) { // bounded: a shape may be NaN
            unsigned c0 = drone, c1 = (unsigned)decision, c2 = (unsigned)(decision >> 32);
            unsigned c3 = attempt << 8 | axis << 1 | which, k0 = seed, k1 = 0x6e6f6973u;
            for (int round = 0; round < 10; ++round) { // Philox 4x32-10
                const unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
                c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
                c1 = (unsigned)p1;
                c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
                c3 = (unsigned)p0;
                k0 += 0x9E3779B9u;
                k1 += 0xBB67AE85u;
            }
            const float unit = 1.0f / 16777216.0f; // of 24 bits, from the middle of each interval: never 0
            const float radius = sqrtf(-2.0f * logf(((c0 >> 8) + 0.5f) * unit));
            const float x = radius * cosf(6.28318530718f * (c1 >> 8) * unit), v1 = 1.0f + c * x;
            if (v1 <= 0.0f) continue;
            const float v = v1 * v1 * v1, u = ((c2 >> 8) + 0.5f) * unit;
            gamma[which] = d * v;
            if (u < 1.0f - 0.0331f * x * x * x * x) break;
            if (logf(u) < 0.5f * x * x + d * (1.0f - v + logf(v))) break;
        }
    }
    return gamma[0] / (gamma[0] + gamma[1]);
""")
def beta_draw(
    seed: wp.uint32, drone: wp.uint32, decision: wp.uint64, axis: wp.uint32, alpha: float, beta: float
) -> float:
    """A number from Beta(alpha, beta), both at least 1."""
    ...


@wp.kernel
def draw_actions(
    offset: int,
    seed: wp.uint32,
    first: wp.uint32,  # number of the first drone in the whole run
    decision: wp.uint64,
    alpha: wp.uint64,  # addresses of (N, ACTIONS)
    beta: wp.uint64,
    out: wp.uint64,
):
    i = offset + wp.tid()
    a = wp.array(ptr=alpha, shape=(i + 1, ACTIONS), dtype=float)
    b = wp.array(ptr=beta, shape=(i + 1, ACTIONS), dtype=float)
    o = wp.array(ptr=out, shape=(i + 1, ACTIONS), dtype=float)
    for k in range(ACTIONS):
        o[i, k] = beta_draw(seed, first + wp.uint32(i), decision, wp.uint32(k), a[i, k], b[i, k])


class Noise:
    """Draws actions of N drones, of which the first is number `first` in the whole run. `decision` counts the calls."""

    def __init__(self, seed: int, first: int = 0) -> None:
        self.seed, self.first, self.decision = seed, first, 0
        self._size, self._slices, self._prepared = -1, [], None

    def draw(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """Draw from Beta(alpha, beta), all (N, ACTIONS)."""
        alpha, beta = alpha.float().contiguous(), beta.float().contiguous()
        out = torch.empty_like(alpha)
        if len(alpha) != self._size:
            self._make_launches(len(alpha), alpha.device)
        values = {"decision": self.decision, "alpha": alpha.data_ptr(), "beta": beta.data_ptr(), "out": out.data_ptr()}
        for [launch] in self._slices:
            for name, value in values.items():
                launch.set(name, value)
        self._team.run(self._slices, self._prepared)
        self.decision += 1
        return out.clamp_(EDGE, 1.0 - EDGE)

    def _make_launches(self, size: int, device: torch.device) -> None:
        start_warp()
        self._size, self._team = size, Team(device)

        def launch(offset: int, count: int) -> list[Recorded]:
            return [Recorded(draw_actions, count, [offset, self.seed, self.first, 0, 0, 0, 0], device)]

        self._slices = [launch(*part) for part in self._team.slices(size)]
        self._prepared = self._team.prepare(self._slices)
