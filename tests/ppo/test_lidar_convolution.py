"""The fused convolutions match `nn.Conv2d` and ELU in values and gradients."""

from __future__ import annotations

import pytest
import torch

from navrl.ppo.lidar_convolution import _builds, lidar_convolution, supports
from navrl.ppo.networks import NavRLEncoder, NetworkSettings

NAVRL = NetworkSettings("navrl")


@pytest.mark.parametrize("batch", [1, 16, 50, 2048])
def test_values_and_gradients(batch: int) -> None:
    torch.manual_seed(batch)
    encoder = NavRLEncoder(NAVRL)
    layers = encoder.convolutions
    assert supports(layers)
    wide = torch.randn(batch, 202) * 2.0  # rows of a larger matrix, as in training
    images = wide[:, :144]
    weight = torch.randn(batch, 288)
    parameters = [p for layer in layers for p in layer.parameters()]
    ours = lidar_convolution(images, layers)
    given = torch.autograd.grad((ours * weight).sum(), parameters)
    plain = NavRLEncoder(NAVRL).double()
    plain.load_state_dict(encoder.state_dict())
    expected = plain.lidar[:7](images.double().reshape(-1, 1, 36, 4))
    parameters = [p for layer in plain.convolutions for p in layer.parameters()]
    wanted = torch.autograd.grad((expected * weight.double()).sum(), parameters)
    assert torch.allclose(ours.double(), expected, atol=2e-6)
    for a, b in zip(given, wanted, strict=True):
        assert torch.allclose(a.double() / b.abs().max(), b / b.abs().max(), atol=1e-5)


def test_encoder_with_and_without_fused_convolutions() -> None:
    torch.manual_seed(0)
    encoder = NavRLEncoder(NAVRL)
    rows = encoder.prepare(torch.randn(64, 8), 4 * torch.rand(64, 1, 36, 4), torch.randn(64, 1, 5, 10))
    fused = encoder(rows)
    encoder.fused = False
    assert torch.allclose(fused, encoder(rows), atol=1e-5)


def test_elu_over_its_whole_range() -> None:
    """A kernel with a single weight makes the convolution the identity on its first channel."""
    encoder = NavRLEncoder(NAVRL)
    with torch.no_grad():
        for layer in encoder.convolutions:
            layer.weight.zero_()
            assert layer.bias is not None
            layer.bias.zero_()
            layer.weight[0, 0, 2, 1] = 1.0
    x = torch.linspace(-100, 20, 144 * 64).view(64, 144)
    seen = lidar_convolution(x, encoder.convolutions).view(64, 16, 9, 2)[:, 0]
    elu = torch.nn.functional.elu
    expected = elu(elu(elu(x.double()))).view(64, 36, 4)[:, ::4, ::2]
    assert torch.allclose(seen.double(), expected, atol=1e-6)


def test_first_use_under_no_grad() -> None:
    _builds.cache_clear()
    with torch.no_grad():
        assert supports(NavRLEncoder(NAVRL).convolutions)


def test_unsupported_layers() -> None:
    assert not supports(NavRLEncoder(NAVRL).double().convolutions)
    assert not supports(NavRLEncoder(NAVRL).convolutions[:2])
