"""NavRL's three convolutions with their ELUs, forward and backward, fused into one CPU kernel.

On images as small as a LiDAR scan (36 × 4) `nn.Conv2d` spends most of its time on overhead instead of arithmetic; it
takes three quarters of an update of NavRL's network. Here sixteen images are interleaved in memory, so that every
instruction works on all of them, and they stay in cache through all layers. Warp compiles the C++ on first use. The
weights belong to `nn.Conv2d` layers, which are also the reference to match and the fallback where this cannot run.
"""

from __future__ import annotations

import logging
import threading
from functools import cache, lru_cache

import torch
import warp as wp
from torch import Tensor, nn

from navrl.native.launch import Recorded, Team
from navrl.native.runtime import FORWARD_ONLY, start_warp

wp.set_module_options(FORWARD_ONLY)

log = logging.getLogger("navrl")

LANES = 16  # images interleaved
KERNEL, PADDING = (5, 3), (2, 1)
# Input channels, output channels, input height and width, strides.
LAYERS = ((1, 4, 36, 4, 1, 1), (4, 16, 36, 4, 2, 1), (16, 16, 18, 4, 2, 2))
PIXELS = (36 * 4, 4 * 36 * 4, 16 * 18 * 4, 16 * 9 * 2)  # values per image before and after each layer
KEPT = sum(PIXELS)
PARAMETERS = sum(outputs * (15 * inputs + 1) for inputs, outputs, *_ in LAYERS)


# --- one block of sixteen images --------------------------------------------------------------------------------------
# Addresses are of floats; a pixel is sixteen of them, one per image.


@wp.func_native("""
    const float* image = (const float*)source;
    float* out = (float*)target;
    for (int p = 0; p < pixels; ++p)
        for (int i = 0; i < 16; ++i) out[p * 16 + i] = i < count ? image[i * stride + p] : 0.0f;
""")
def interleave(source: wp.uint64, stride: int, count: int, pixels: int, target: wp.uint64): ...


@wp.func_native("""
    const float* in = (const float*)source;
    float* image = (float*)target;
    for (int i = 0; i < count; ++i)
        for (int p = 0; p < pixels; ++p) image[i * pixels + p] = in[p * 16 + i];
""")
def separate(source: wp.uint64, count: int, pixels: int, target: wp.uint64): ...


@wp.func_native("""
    typedef float V __attribute__((vector_size(64), aligned(4)));
    const V* in = (const V*)source;
    V* out = (V*)target;
    const float* w = (const float*)weights; // [input][5][3][output], then a bias for every output
    const float* bias = w + inputs * 15 * outputs;
    const int rows = (height - 1) / down + 1, columns = (width - 1) / across + 1, next = rows * columns;
    for (int r = 0; r < rows; ++r)
        for (int q = 0; q < columns; ++q) {
            const int top = r * down - 2, left = q * across - 1;
            const int k0 = top < 0 ? -top : 0, k1 = top + 5 > height ? height - top : 5;
            const int l0 = left < 0 ? -left : 0, l1 = left + 3 > width ? width - left : 3;
            for (int o = 0; o < outputs; o += 4) {
                V a0 = V{} + bias[o], a1 = V{} + bias[o + 1], a2 = V{} + bias[o + 2], a3 = V{} + bias[o + 3];
                for (int c = 0; c < inputs; ++c)
                    for (int k = k0; k < k1; ++k)
                        for (int l = l0; l < l1; ++l) {
                            const V x = in[(c * height + top + k) * width + left + l];
                            const float* f = w + ((c * 5 + k) * 3 + l) * outputs + o;
                            a0 += x * f[0]; a1 += x * f[1]; a2 += x * f[2]; a3 += x * f[3];
                        }
                V* y = out + o * next + r * columns + q;
                y[0] = a0; y[next] = a1; y[2 * next] = a2; y[3 * next] = a3;
            }
        }
    // ELU: exp(x) - 1 below zero. exp(x) = 2^n · exp(s), with a polynomial for the small remainder s.
    float* z = (float*)out;
    const int total = outputs * next * 16;
    for (int i = 0; i < total; ++i) {
        float x = z[i] < 0.0f ? z[i] : 0.0f;
        x = x > -80.0f ? x : -80.0f;
        const float n = (float)(signed)(x * 1.44269504f - 0.5f);
        const float s = (x - n * 0.693359375f) + n * 2.12194440e-4f;
        float p = 1.9875691500e-4f;
        p = p * s + 1.3981999507e-3f; p = p * s + 8.3334519073e-3f; p = p * s + 4.1665795894e-2f;
        p = p * s + 1.6666665459e-1f; p = p * s + 5.0000001201e-1f;
        p = p * s * s + s + 1.0f;
        union { signed bits; float value; } power;
        power.bits = ((signed)n + 127) << 23;
        const float low = p * power.value - 1.0f;
        z[i] = z[i] <= 0.0f ? low : z[i]; // NaN stays NaN
    }
""")
def convolve(
    source: wp.uint64, target: wp.uint64, weights: wp.uint64,
    inputs: int, outputs: int, height: int, width: int, down: int, across: int,
): ...  # fmt: skip


@wp.func_native("""
    const float* y = (const float*)output;
    float* g = (float*)grad;
    for (int i = 0; i < pixels * 16; ++i) g[i] *= y[i] > 0.0f ? 1.0f : y[i] + 1.0f;
""")
def elu_backward(output: wp.uint64, pixels: int, grad: wp.uint64):
    """Multiply `grad` by the slope of the ELU, computed from its output."""
    ...


@wp.func_native("""
    typedef float V __attribute__((vector_size(64), aligned(4)));
    const V* in = (const V*)source;
    const V* g = (const V*)grad;
    float* dw = (float*)sums; // [output][input][5][3], then a bias for every output
    float* db = dw + outputs * inputs * 15;
    const int rows = (height - 1) / down + 1, columns = (width - 1) / across + 1, next = rows * columns;
    auto sum = [](const V& v) {
        float s = 0.0f;
        for (int i = 0; i < 16; ++i) s += v[i];
        return s;
    };
    for (int o = 0; o < outputs; ++o) {
        V a = V{};
        for (int p = 0; p < next; ++p) a += g[o * next + p];
        db[o] += sum(a);
    }
    for (int c = 0; c < inputs; ++c)
        for (int k = 0; k < 5; ++k)
            for (int l = 0; l < 3; ++l) {
                // Outputs whose window has an input at (k, l).
                const int r0 = k < 2 ? (2 - k + down - 1) / down : 0, q0 = l < 1 ? (1 - l + across - 1) / across : 0;
                int r1 = (height + 1 - k) / down + 1, q1 = (width - l) / across + 1;
                r1 = r1 < rows ? r1 : rows;
                q1 = q1 < columns ? q1 : columns;
                for (int o = 0; o < outputs; o += 4) {
                    V a0 = V{}, a1 = V{}, a2 = V{}, a3 = V{};
                    for (int r = r0; r < r1; ++r)
                        for (int q = q0; q < q1; ++q) {
                            const V x = in[(c * height + r * down - 2 + k) * width + q * across - 1 + l];
                            const V* y = g + o * next + r * columns + q;
                            a0 += x * y[0]; a1 += x * y[next]; a2 += x * y[2 * next]; a3 += x * y[3 * next];
                        }
                    float* f = dw + (o * inputs + c) * 15 + k * 3 + l;
                    const int step = inputs * 15;
                    f[0] += sum(a0); f[step] += sum(a1); f[2 * step] += sum(a2); f[3 * step] += sum(a3);
                }
            }
""")
def weight_gradient(
    source: wp.uint64, grad: wp.uint64, sums: wp.uint64,
    inputs: int, outputs: int, height: int, width: int, down: int, across: int,
): ...  # fmt: skip


@wp.func_native("""
    typedef float V __attribute__((vector_size(64), aligned(4)));
    const V* g = (const V*)grad;
    V* out = (V*)target;
    const float* w = (const float*)weights; // [output][5][3][input]
    const int rows = (height - 1) / down + 1, columns = (width - 1) / across + 1, next = height * width;
    for (int h = 0; h < height; ++h)
        for (int x = 0; x < width; ++x)
            for (int c = 0; c < inputs; c += 4) {
                V a0 = V{}, a1 = V{}, a2 = V{}, a3 = V{};
                for (int k = 0; k < 5; ++k) {
                    const int t = h + 2 - k, r = t / down;
                    if (t < 0 || t % down || r >= rows) continue;
                    for (int l = 0; l < 3; ++l) {
                        const int u = x + 1 - l, q = u / across;
                        if (u < 0 || u % across || q >= columns) continue;
                        for (int o = 0; o < outputs; ++o) {
                            const V y = g[(o * rows + r) * columns + q];
                            const float* f = w + ((o * 5 + k) * 3 + l) * inputs + c;
                            a0 += y * f[0]; a1 += y * f[1]; a2 += y * f[2]; a3 += y * f[3];
                        }
                    }
                }
                V* z = out + c * next + h * width + x;
                z[0] = a0; z[next] = a1; z[2 * next] = a2; z[3 * next] = a3;
            }
""")
def input_gradient(
    grad: wp.uint64, target: wp.uint64, weights: wp.uint64,
    inputs: int, outputs: int, height: int, width: int, down: int, across: int,
): ...  # fmt: skip


# --- kernels: a thread takes one block after another ------------------------------------------------------------------


@wp.func
def at(address: wp.uint64, floats: int) -> wp.uint64:
    return address + wp.uint64(4) * wp.uint64(floats)


@wp.func
def row(address: wp.uint64, index: int, floats: int) -> wp.uint64:
    """Return the address of row `index`, `floats` wide; in 64 bits, because a million images exceed 2^31 floats."""
    return address + wp.uint64(4) * wp.uint64(index) * wp.uint64(floats)


@wp.kernel
def forward_blocks(
    first: int, total: int, images: wp.uint64, stride: int, weights: wp.uint64, kept: wp.uint64, out: wp.uint64,
):  # fmt: skip
    block = first + wp.tid()  # pyright: ignore[reportOperatorIssue]
    count = wp.min(LANES, total - block * LANES)
    x0 = row(kept, block, LANES * KEPT)
    x1 = at(x0, LANES * (36 * 4))
    x2 = at(x1, LANES * (4 * 36 * 4))
    x3 = at(x2, LANES * (16 * 18 * 4))
    w2 = at(weights, 4 * 16)
    w3 = at(w2, 16 * 61)
    interleave(row(images, block * LANES, stride), stride, count, 36 * 4, x0)
    convolve(x0, x1, weights, 1, 4, 36, 4, 1, 1)
    convolve(x1, x2, w2, 4, 16, 36, 4, 2, 1)
    convolve(x2, x3, w3, 16, 16, 18, 4, 2, 2)
    separate(x3, count, 16 * 9 * 2, row(out, block * LANES, 16 * 9 * 2))


@wp.kernel
def backward_blocks(
    first: int, total: int, grad: wp.uint64, weights: wp.uint64, kept: wp.uint64, scratch: wp.uint64, sums: wp.uint64,
):  # fmt: skip
    block = first + wp.tid()  # pyright: ignore[reportOperatorIssue]
    count = wp.min(LANES, total - block * LANES)
    x0 = row(kept, block, LANES * KEPT)
    x1 = at(x0, LANES * (36 * 4))
    x2 = at(x1, LANES * (4 * 36 * 4))
    x3 = at(x2, LANES * (16 * 18 * 4))
    g1 = scratch
    g2 = at(g1, LANES * (4 * 36 * 4))
    g3 = at(g2, LANES * (16 * 18 * 4))
    s2 = at(sums, 4 * 16)
    s3 = at(s2, 16 * 61)
    interleave(row(grad, block * LANES, 16 * 9 * 2), 16 * 9 * 2, count, 16 * 9 * 2, g3)
    elu_backward(x3, 16 * 9 * 2, g3)
    weight_gradient(x2, g3, s3, 16, 16, 18, 4, 2, 2)
    input_gradient(g3, g2, at(weights, 4 * 16 * 15), 16, 16, 18, 4, 2, 2)
    elu_backward(x2, 16 * 18 * 4, g2)
    weight_gradient(x1, g2, s2, 4, 16, 36, 4, 2, 1)
    input_gradient(g2, g1, weights, 4, 16, 36, 4, 2, 1)
    elu_backward(x1, 4 * 36 * 4, g1)
    weight_gradient(x0, g1, sums, 1, 4, 36, 4, 1, 1)


# --- for torch --------------------------------------------------------------------------------------------------------


class _Shared:
    """Launches for a number of blocks, split across threads. Addresses are set before every run."""

    def __init__(self, kernel: wp.Kernel, blocks: int) -> None:
        start_warp()
        cpu = torch.device("cpu")
        self.team = Team(cpu)
        self.slices = self.team.slices(blocks, least=2)
        numbers = len(kernel.adj.args) - 1
        self.launches = [Recorded(kernel, size, [first] + [0] * numbers, cpu) for first, size in self.slices]
        self.prepared = self.team.prepare([[launch] for launch in self.launches])

    def run(self, **arguments: int | list[int]) -> None:
        """Set the arguments and run; a list gives one value per slice."""
        for k, launch in enumerate(self.launches):
            for name, value in arguments.items():
                launch.set(name, value[k] if isinstance(value, list) else value)
        self.team.run([[launch] for launch in self.launches], self.prepared)


@lru_cache(maxsize=256)
def _made(kernel: wp.Kernel, blocks: int, threads: int, caller: int) -> _Shared:
    del threads, caller  # part of the key: torch's thread count may change, and a launch serves one caller
    return _Shared(kernel, blocks)


def _shared(kernel: wp.Kernel, blocks: int) -> _Shared:
    """Return this thread's launches: another may act while this one learns, and addresses are set before a run."""
    return _made(kernel, blocks, torch.get_num_threads(), threading.get_ident())


def supports(layers: list[nn.Conv2d]) -> bool:
    """Return whether `lidar_convolution` can replace these layers and their ELUs."""
    wanted = [(inputs, outputs, KERNEL, (down, across), PADDING) for inputs, outputs, _, _, down, across in LAYERS]
    given = [(c.in_channels, c.out_channels, c.kernel_size, c.stride, c.padding) for c in layers]
    fits = given == wanted and all(c.weight.device.type == "cpu" and c.weight.dtype == torch.float32 for c in layers)
    return fits and _builds()


@cache
def _builds() -> bool:
    """Return whether the kernel compiles and runs here. If not, training is only slower."""
    layers = [nn.Conv2d(i, o, KERNEL, (down, across), PADDING) for i, o, _, _, down, across in LAYERS]
    try:
        with torch.enable_grad():  # the first caller may be acting under no_grad
            lidar_convolution(torch.zeros(1, PIXELS[0]), layers).sum().backward()
    except Exception as error:  # a compiler can fail in any way
        log.warning("the fast LiDAR convolution is not available (%s); torch's own is used", error)
        return False
    return True


def lidar_convolution(images: Tensor, layers: list[nn.Conv2d]) -> Tensor:
    """Apply three convolutions, each with an ELU, to images (B, 144): (B, 288) in order [channel][row][column]."""
    return _LidarConvolution.apply(images, *(p for layer in layers for p in (layer.weight, layer.bias)))


class _LidarConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, images: Tensor, *parameters: Tensor) -> Tensor:
        if images.stride(1) != 1:
            images = images.contiguous()
        total, blocks = len(images), -(-len(images) // LANES)
        pairs = zip(parameters[::2], parameters[1::2], strict=True)
        weights = torch.cat([part for w, b in pairs for part in (w.permute(1, 2, 3, 0).flatten(), b)])
        kept, out = images.new_empty(blocks, KEPT, LANES), images.new_empty(total, PIXELS[-1])
        _shared(forward_blocks, blocks).run(  # pyright: ignore[reportArgumentType]
            total=total, images=images.data_ptr(), stride=images.stride(0), weights=weights.data_ptr(),
            kept=kept.data_ptr(), out=out.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(kept, *parameters)
        ctx.total = total
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept, *parameters = ctx.saved_tensors
        grad = grad.contiguous()
        weights = torch.cat([w.permute(0, 2, 3, 1).flatten() for w in parameters[2::2]])
        shared = _shared(backward_blocks, len(kept))  # pyright: ignore[reportArgumentType]
        slices = len(shared.slices)
        # Every slice writes to its own row; padding keeps the sums of different slices on separate cache lines.
        scratch, sums = kept.new_empty(slices, LANES * (KEPT - PIXELS[0])), kept.new_zeros(slices, PARAMETERS + 64)
        shared.run(
            total=ctx.total, grad=grad.data_ptr(), weights=weights.data_ptr(), kept=kept.data_ptr(),
            scratch=[row.data_ptr() for row in scratch], sums=[row.data_ptr() for row in sums],
        )  # fmt: skip
        pieces = sums.sum(0)[:PARAMETERS].split([p.numel() for p in parameters])
        return None, *(piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True))
