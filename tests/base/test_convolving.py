"""Convolutions in float64, a part at a time, are those of torch."""

import pytest
import torch
from torch import nn

from secateurs.base import convolving
from secateurs.base.convolving import convolving_in_parts

CONVOLUTIONS = [
    nn.Conv2d(4, 6, 3, padding=1),
    nn.Conv2d(4, 6, (3, 2), stride=(2, 3), padding=(0, 2), dilation=(2, 1)),
    nn.Conv2d(4, 4, 3, padding=1, groups=4),
    nn.Conv2d(4, 4, (5, 3), stride=(1, 2), padding=2, dilation=(1, 2), groups=4, bias=False),
    nn.Conv2d(4, 8, 3, groups=2),
    nn.Conv2d(4, 8, 1, groups=4),
    nn.Conv2d(4, 6, 3, padding="same"),
]


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
def test_convolutions_in_parts_are_the_same(layer, monkeypatch):
    monkeypatch.setattr(convolving, "_COPIED", 300)
    monkeypatch.setattr(convolving, "_ALONE", 40)
    layer, x = layer.double(), torch.randn(2, 4, 13, 11, dtype=torch.float64)
    wanted = layer(x)
    with convolving_in_parts():
        found = layer(x)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)
    wanted.sum().backward()
    grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    found.sum().backward()
    for parameter, grad in zip(layer.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-12, atol=1e-13)


def test_convolutions_in_single_precision_are_those_of_torch(monkeypatch):
    monkeypatch.setattr(convolving, "_in_parts", lambda x, *_: pytest.fail() if x.is_cuda else None)
    layer, x = nn.Conv2d(4, 4, 3, groups=4), torch.randn(1, 4, 9, 9)
    with convolving_in_parts():
        found = layer(x)
    assert torch.equal(found, layer(x))


def test_only_the_rows_of_a_part_are_copied(monkeypatch):
    """However large the image, no part has more windows than fit."""
    sizes = []
    plain = torch.conv2d
    monkeypatch.setattr(
        torch, "conv2d", lambda x, *rest: sizes.append(x.shape[2]) or plain(x, *rest)
    )
    monkeypatch.setattr(convolving, "_COPIED", 9 * 4 * 20 * 5)
    weight, x = torch.randn(6, 4, 3, 3).double(), torch.randn(1, 4, 22, 22).double()
    with convolving_in_parts():
        torch.nn.functional.conv2d(x, weight)
    assert sizes == [7] * 4


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_a_convolution_that_does_not_fit_is_refused_by_torch(channels):
    layer = nn.Conv2d(4, 4, 3, groups=4).double()
    with convolving_in_parts(), pytest.raises(RuntimeError, match="channels"):
        layer(torch.randn(1, channels, 9, 9, dtype=torch.float64))
