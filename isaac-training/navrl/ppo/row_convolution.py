"""NavRL's convolutions as plain matrix products, which a CPU does several times faster than small convolutions.

A LiDAR image is 36 azimuths by 4 elevations. Its kernels span 3 of the 4 elevations, so nothing much is lost by
connecting all of them: an azimuth with all elevations and channels becomes one row, and a convolution one product of
windows of 5 neighbouring rows with a matrix made from its weights. Windows overlap in memory and are only copied once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WINDOW, PAD = 5, 2  # azimuths a kernel spans, and zeros at both ends


class RowConvolution(nn.Module):
    """What a `Conv2d` with kernel (5, 3) and padding (2, 1) computes, on rows. Uses that layer's own parameters."""

    def __init__(self, convolution: nn.Conv2d, elevations: int) -> None:
        super().__init__()
        self.convolution = (convolution,)  # in a tuple: its parameters belong to the encoder, not to this module
        self.stride, across = convolution.stride
        outputs, inputs = convolution.weight.shape[:2]
        self.elevations_out = (elevations - 1) // across + 1
        # Where each entry of the matrix (5 · elevations · inputs, elevations_out · outputs) comes from; the last place
        # of the flattened weights is a zero.
        place = torch.arange(convolution.weight.numel()).view(outputs, inputs, WINDOW, 3)
        index = torch.full((WINDOW, elevations, inputs, self.elevations_out, outputs), convolution.weight.numel())
        for out in range(self.elevations_out):
            for k in range(3):
                seen = out * across + k - 1
                if 0 <= seen < elevations:
                    index[:, seen, :, out, :] = place[..., k].permute(2, 1, 0)
        self.columns = self.elevations_out * outputs
        self.register_buffer("index", index.flatten(), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """(B, azimuths, elevations · inputs) to (B, fewer azimuths, fewer elevations · outputs)."""
        (convolution,) = self.convolution
        weights = functional.pad(convolution.weight.flatten(), (0, 1))
        matrix = weights.index_select(0, self.index).view(-1, self.columns)
        return _WindowProduct.apply(rows, matrix, convolution.bias.repeat(self.elevations_out), self.stride)


class _WindowProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor, matrix: Tensor, bias: Tensor, stride: int) -> Tensor:
        batch, height, width = rows.shape
        padded = functional.pad(rows, (0, 0, PAD, PAD))
        count = (height + 2 * PAD - WINDOW) // stride + 1
        windows = padded.as_strided((batch, count, WINDOW * width), (padded.stride(0), stride * width, 1))
        windows = windows.reshape(batch * count, WINDOW * width)
        ctx.save_for_backward(windows, matrix)
        ctx.shape = batch, height, width, count, stride
        return torch.addmm(bias, windows, matrix).view(batch, count, -1)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        windows, matrix = ctx.saved_tensors
        batch, height, width, count, stride = ctx.shape
        grad = grad.reshape(batch * count, -1)
        rows_grad = None
        if ctx.needs_input_grad[0]:
            spread = (grad @ matrix.T).view(batch, count, WINDOW, width)
            rows_grad = grad.new_zeros(batch, height + 2 * PAD, width)
            for k in range(WINDOW):
                rows_grad[:, k : k + stride * (count - 1) + 1 : stride] += spread[:, :, k]
            rows_grad = rows_grad[:, PAD:-PAD]
        return rows_grad, windows.T @ grad, grad.sum(0), None
