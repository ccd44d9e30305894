"""Planes above maxima and their differences, by sampling what they must cover."""

import pytest
import torch
from torch import nn

from secateurs.graph import Pool, capture
from secateurs.proof import planes
from secateurs.proof.forms import Bounds, lift
from secateurs.proof.planes import chosen, maximum_above, pooled_difference_above


def pool(stride):
    example = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    graph = capture(nn.MaxPool2d(2, stride=stride), example)
    return next(node for node in graph.nodes if isinstance(node, Pool))


def bounds(generator, scale):
    """40 boxes of 2 × 4 × 4 entries, some of width 0, some surely larger than all others."""
    shape = (40, 1, 2, 4, 4)

    def drawn(size=1.0):
        return size * torch.rand(shape, generator=generator, dtype=torch.float64)

    l = 2 * drawn() + 2 * (drawn() > 0.8)
    h = l + drawn() * (drawn() > 0.2)
    dl = scale * (drawn() - 0.5)
    dh = dl + drawn(scale)
    return Bounds(l=l, h=h, gl=l - dh, gh=h - dl, dl=dl, dh=dh).consistent()


def points(b, generator, count=30):
    """Pairs (z, δ), corners and inner points, that keep z' within its bounds."""
    for k in range(count):
        u, v = (torch.rand(b.l.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        if k % 2:
            u, v = u.round(), v.round()
        z = b.l + u * (b.h - b.l)
        low, high = torch.maximum(b.dl, z - b.gh), torch.minimum(b.dh, z - b.gl)
        yield z, low + v * (high - low)


@pytest.mark.parametrize("scale", [1e-3, 0.5, 4.0])
@pytest.mark.parametrize("stride", [2, 1])
def test_every_plane_lies_above(stride, scale, generator, monkeypatch):
    # Only derivatives of tapes are right; with `chosen` for `pick` their values are too.
    monkeypatch.setattr(planes, "pick", chosen)
    node, b = pool(stride), bounds(generator, scale)
    for z, d in points(b, generator):
        top, other = lift(node.maximum, z), lift(node.maximum, z - d)
        plane = maximum_above(node, b.l, b.h, z, lambda value: value)
        assert bool((plane.tape >= top - 1e-12).all())
        plane = pooled_difference_above(node, b, z, d, lambda value: value)
        assert bool((plane.tape >= top - other - 1e-12).all())
        turned = pooled_difference_above(node, b.exchanged(), z - d, -d, lambda value: value)
        assert bool((-turned.tape <= top - other + 1e-12).all())


def test_what_is_sure_is_exact(generator, monkeypatch):
    """One entry above all others in both networks: the maximum is that entry."""
    monkeypatch.setattr(planes, "pick", chosen)
    node, b = pool(2), bounds(generator, 0.1)
    lead = torch.zeros_like(b.l)
    lead[..., ::2, ::2] = 9
    b = Bounds(l=b.l + lead, h=b.h + lead, gl=b.gl + lead, gh=b.gh + lead, dl=b.dl, dh=b.dh)
    for z, d in points(b, generator, 20):
        top, other = lift(node.maximum, z), lift(node.maximum, z - d)
        plane = maximum_above(node, b.l, b.h, z, lambda value: value)
        torch.testing.assert_close(plane.tape, top)
        plane = pooled_difference_above(node, b, z, d, lambda value: value)
        torch.testing.assert_close(plane.tape, top - other)
