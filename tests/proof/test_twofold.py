"""Sums of two float64 numbers against 400 bits."""

import mpmath as mp
import pytest
import torch
from torch import nn

from secateurs.base.random import generator
from secateurs.graph import Affine, capture
from secateurs.proof.forms import linear
from secateurs.proof.twofold import DEEP, Twofold, mapped


def exact(t):
    return [mp.mpf(v) for v in t.flatten().tolist()]


def total(value):
    return [a + b for a, b in zip(exact(value.hi), exact(value.lo), strict=True)]


def wild(*shape, g):
    """Numbers of both signs and of all sizes."""
    size = torch.randn(*shape, generator=g, dtype=torch.float64).mul(4).exp()
    return size * torch.randn(*shape, generator=g, dtype=torch.float64)


def test_products_and_sums_keep_a_hundred_bits():
    g = generator(0)
    a, b, c = (wild(500, g=g) for _ in range(3))
    value = Twofold(hi=a, lo=a * 2.0**-55)
    found = value.times(b).plus(c)
    with mp.workprec(400):
        for x, y, z, got in zip(total(value), exact(b), exact(c), total(found), strict=True):
            assert abs(x * y + z - got) <= DEEP * (abs(x * y) + abs(z))
    assert bool((found.lo.abs() <= 2.0**-52 * found.hi.abs()).all())


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_a_map_lies_within_its_error_and_the_error_is_small(scale):
    g = generator(1, str(scale))
    layer = nn.Linear(300, 5, bias=False).double()
    weight = wild(5, 300, g=g) * scale
    x = Twofold(hi=wild(1, 1, 300, g=g), lo=torch.zeros(1, 1, 300, dtype=torch.float64))
    x = x.plus(x.hi * 2.0**-56)
    node = next(n for n in capture(layer, x.hi[0]).nodes if isinstance(n, Affine))
    found, far = mapped(node, x, weight)
    with mp.workprec(400):
        for row, got, most in zip(weight, total(found), exact(far), strict=True):
            true = mp.fdot(exact(row), total(x))
            assert abs(true - got) <= most
    # Slices are taken of the largest entry: of entries of one size nothing is left.
    x, weight = (torch.randn(*shape, generator=g).double() for shape in ((1, 1, 300), (5, 300)))
    _, far = mapped(node, Twofold(hi=x, lo=torch.zeros_like(x)), weight)
    assert bool((far <= 2.0**-60 * linear(node, x.abs(), weight.abs())).all())


def test_an_overflow_is_not_a_number():
    node = next(
        n
        for n in capture(nn.Linear(2, 1, bias=False).double(), torch.ones(1, 2).double()).nodes
        if isinstance(n, Affine)
    )
    x = Twofold(hi=torch.tensor([[[torch.inf, 1.0]]]).double(), lo=torch.zeros(1, 1, 2).double())
    found, far = mapped(node, x, torch.ones(1, 2, dtype=torch.float64))
    assert not bool((found.hi.isfinite() & far.isfinite()).any())
