"""Convolutions as matrix products give what `nn.Conv2d` gives, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from navrl.ppo.networks import NavRLEncoder
from navrl.ppo.row_convolution import RowConvolution


@pytest.mark.parametrize("inputs, outputs, stride", [(1, 4, (1, 1)), (4, 16, (2, 1)), (16, 16, (2, 2))])
def test_one_layer(inputs: int, outputs: int, stride: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(inputs, outputs, (5, 3), stride, (2, 1)).double()
    image = torch.randn(3, inputs, 18, 4, dtype=torch.float64, requires_grad=True)
    expected = layer(image)
    rows = RowConvolution(layer, 4)(image.permute(0, 2, 3, 1).flatten(2))
    ours = rows.unflatten(2, (-1, outputs)).permute(0, 3, 1, 2)
    assert torch.allclose(ours, expected)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weight).sum(), [image, layer.weight, layer.bias])
    given = torch.autograd.grad((ours * weight).sum(), [image, layer.weight, layer.bias])
    for a, b in zip(given, wanted, strict=True):
        assert torch.allclose(a, b)


def test_the_whole_encoder_with_and_without() -> None:
    torch.manual_seed(0)
    encoder = NavRLEncoder().double()
    rows = encoder.prepare(torch.randn(64, 8), 4 * torch.rand(64, 1, 36, 4), torch.randn(64, 1, 5, 10)).double()
    weight = torch.randn(64, 256, dtype=torch.float64)
    results = []
    for encoder.row_products in (True, False):
        out = encoder(rows)
        results.append([out, *torch.autograd.grad((out * weight).sum(), list(encoder.parameters()))])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b)
    assert len(encoder.state_dict()) == len(NavRLEncoder().state_dict()) == 26, "no parameter of its own"
