"""Which entries of a window can lead: by enumeration."""

import pytest
import torch
from torch import nn

from secateurs.graph import Pool, capture
from secateurs.proof.forms import lift
from secateurs.proof.interval import Interval, Intervals
from secateurs.proof.planes import can_lead, chosen, runner_up


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (2, 1), (3, 2), (3, 1), (5, 1), (6, 1)])
def test_windows_by_enumeration(size, stride, generator):
    """The leader, the best of the others, and who can lead; on the safe side where more than 27
    windows share an entry.
    """
    model = nn.MaxPool2d(size, stride=stride)
    x = torch.randn(3, 1, 2, 13, 13, generator=generator, dtype=torch.float64)
    told = size < 6
    node = next(n for n in capture(model, x[0]).nodes if isinstance(n, Pool))
    high = x + torch.rand(x.shape, generator=generator, dtype=torch.float64)
    other = torch.randn(x.shape, generator=generator, dtype=torch.float64)

    def windows(values):
        # 6, entries, windows
        return nn.functional.unfold(values.reshape(6, 1, 13, 13), size, stride=stride)

    flat, leader = windows(high), windows(x).argmax(1, keepdim=True)
    picked = windows(other).gather(1, leader).flatten()
    torch.testing.assert_close(chosen(node, x, other).flatten(), picked)
    best = flat.scatter(1, leader, -torch.inf).amax(1).flatten()
    found = runner_up(node, x, high).flatten()
    assert bool((found >= best).all())
    assert torch.equal(found, best) == told
    may = windows(can_lead(node, x, high).double()).bool()
    truth = flat >= windows(x).amax(1, keepdim=True)
    assert bool((may >= truth).all())
    # An entry that can lead one of its windows is a candidate in all of them.
    assert torch.equal(may, truth) == (stride >= size)
    assert torch.equal(lift(node.maximum, x), chosen(node, x, x))


def pool_node(*options: int) -> Pool:
    graph = capture(nn.MaxPool1d(*options), torch.zeros(1, 1, 6))
    return next(node for node in graph.nodes if isinstance(node, Pool))


def points(f: torch.Tensor, g: torch.Tensor) -> Intervals:
    zero = torch.zeros_like(f)
    return Intervals(cf=f, rf=zero, cg=g, rg=zero, cd=f - g, rd=zero)


@pytest.mark.parametrize("options", [(2,), (3,), (3, 1)])
def test_a_leader_without_width_can_lead(options, generator):
    """Its upper end is the threshold itself: without equality nobody would lead."""
    node = pool_node(*options)
    z = torch.randn(2, 1, 1, 6, generator=generator, dtype=torch.float64)
    top = torch.func.vmap(node.maximum)(z)
    led = torch.func.vmap(node.maximum)(torch.where(can_lead(node, z, z), z, -torch.inf))
    assert torch.equal(led, top)


@pytest.mark.parametrize("options", [(2,), (3,), (3, 1)])
def test_the_difference_of_two_points_is_what_it_is(options, generator):
    node = pool_node(*options)
    f, g = torch.randn(2, 4, 1, 1, 6, generator=generator, dtype=torch.float64)
    f[0], g[1] = 1.0, -1.0  # ties in f, ties in g
    found = Interval().pool(node, points(f, g)).bounds
    pooled = torch.func.vmap(node.maximum)
    exact = pooled(f) - pooled(g)
    for end in (found.dl, found.dh):
        assert torch.allclose(end, exact, rtol=1e-12, atol=1e-12)
