"""The training loss: its bound holds, falls under descent, and its changes are what they say."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError
from secateurs.graph import propagate
from secateurs.proof import certified_gap, certified_loss, masked, rounded
from secateurs.proof.forms import ParameterPair
from secateurs.proof.interval import Interval
from secateurs.proof.training import Coarse, changed
from tiny_networks import KINDS, randomize


@pytest.mark.parametrize("change", [masked(0.4), rounded(3)], ids=["mask", "grid"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds_for_the_change_drawn(kind, change, generator):
    make, shape = KINDS[kind]
    model = randomize(make().double(), generator).eval()
    x = torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    graph = sc.capture(model, x[:1])
    for radius in (0.0, 0.3):
        seed = torch.Generator().manual_seed(7)
        gap = certified_gap(model, graph, x, radius=radius, change=change, generator=seed)
        state = graph.state(model)
        other = changed(graph, state, change, torch.Generator().manual_seed(7))
        share = 2 * torch.rand(60, *x.shape, generator=generator).double() - 1
        share[::2] = share[::2].sign()
        points = (x + radius * share).flatten(0, 1)
        f, g = (sc.graph.evaluate(graph, [points], s) for s in (state, other))
        seen = (f - g).abs().reshape(60, 5, -1).amax(0)
        assert bool((seen <= gap + 1e-10).all())
        if radius == 0 and "pool" not in kind:  # a point is not a box
            assert bool((gap <= seen + 1e-9).all())
        gap.sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        model.zero_grad()


def test_coarse_intervals_hold_the_finer_ones(generator):
    """Without a box around g the bound is looser, never tighter."""
    make, shape = KINDS["max-pool"]
    model = randomize(make().double(), generator).eval()
    x = torch.randn(4, 1, *shape, generator=generator, dtype=torch.float64)
    graph = sc.capture(model, x[0])
    state = graph.state(model)
    pair = ParameterPair(f=state, g=changed(graph, state, masked(0.5), generator))
    r = torch.full_like(x, 0.2)
    with torch.no_grad():
        coarse = propagate(graph, Coarse(), [(x, r)], pair).largest
        fine = propagate(graph, Interval(), [(x - r, x + r)], pair).bounds.largest
    assert bool((coarse >= fine - 1e-12).all()) and bool((coarse <= 20 * fine).all())


def test_descent_lowers_what_is_certified(generator):
    torch.manual_seed(0)
    model = nn.Sequential(
        *[m for _ in range(3) for m in (nn.Linear(8, 8), nn.ReLU())], nn.Linear(8, 2)
    )
    x = torch.randn(64, 8, generator=generator)
    y = (x[:, 0] > 0).long()
    graph = sc.capture(model.eval(), x[:1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = []
    for _ in range(60):
        gap = certified_gap(model, graph, x, radius=0.3, change=masked(0.5), generator=generator)
        output = model(x)
        loss = certified_loss(output, y, gap)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        margin = (output[:, 1] - output[:, 0]).abs()
        seen.append(float((margin > gap.sum(1)).float().mean()))
    assert seen[-1] > seen[0] + 0.3


def test_the_loss_is_cross_entropy_against_the_worst(generator):
    outputs = torch.randn(5, 3, generator=generator)
    labels = torch.tensor([0, 1, 2, 1, 0])
    gap = torch.rand(5, 3, generator=generator)
    plain = nn.functional.cross_entropy(outputs, labels)
    assert torch.equal(certified_loss(outputs, labels, gap, share=0.0), plain)
    assert certified_loss(outputs, labels, gap, share=1.0) > plain
    nothing = certified_loss(outputs, labels, 0 * gap)
    torch.testing.assert_close(nothing, plain)
    with pytest.raises(ArgumentError, match="share=1.5"):
        certified_loss(outputs, labels, gap, share=1.5)


def test_changes_are_what_they_say(generator):
    weight = torch.randn(40, 25, generator=generator)
    cut = masked(0.2, jitter=0.0)(weight, generator)
    assert int((cut == 0).sum()) == 200
    assert cut[cut != 0].abs().min() > weight[cut == 0].abs().max()
    drawn = [masked(0.2)(weight, generator) for _ in range(2)]
    assert not torch.equal(*drawn) and int((drawn[0] == 0).sum()) == 200
    any_mask = masked(0.5, jitter=float("inf"))(weight, generator)
    assert weight[any_mask == 0].abs().mean() > 0.6
    step = weight.abs().max() / 127
    grid = rounded(8)(weight, generator) / step
    torch.testing.assert_close(grid, grid.round(), rtol=0, atol=1e-3)
    assert (grid * step - weight).abs().max() <= step * 1.001
    with pytest.raises(ArgumentError, match="sparsity=1.0"):
        masked(1.0)
    with pytest.raises(ArgumentError, match="bits=1"):
        rounded(1)


def test_batch_norm_must_stand_still():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    graph = sc.capture(model.eval(), torch.zeros(1, 2))
    with pytest.raises(ArgumentError, match="training mode"):
        certified_gap(model.train(), graph, torch.zeros(3, 2), radius=0.1, change=masked(0.2))
