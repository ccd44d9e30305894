"""Exchanging the weights of a tiny net: the surgeon against constrained least squares, curvature
against autograd.
"""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import jacrev, vmap

from experiments.factorization.exchange import (
    SAMPLE,
    Exchange,
    Tiny,
    exchange,
    expected_gains,
    gauss_newton,
    generalised_loss,
    grow_,
    optimal_brain_surgeon,
    train_,
)
from secateurs.errors import ArgumentError


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def data():
    """600 points of four classes in ten dimensions: the class is told by the signs of two sums."""
    x = torch.rand(600, 10, generator=draw())
    return x, (x[:, :3].sum(1) > 1.5).long() + 2 * (x[:, 3:5].sum(1) > 1.0).long()


@pytest.fixture
def net():
    g = draw(1)
    shapes = ((8, 10), (8,), (6, 8), (6,), (4, 6), (4,))
    full = [
        torch.randn(shape, generator=g) * (torch.rand(shape, generator=g) < 0.6) for shape in shapes
    ]
    return Tiny.of(full)


def full_loss(net, x, y, q):
    return generalised_loss(net.forward(x[:, net.pixels])[-1], y, q=q)


def test_cutting_changes_nothing_but_the_size(data):
    x, _ = data
    weights = [
        torch.randn(5, 10, generator=draw(2)),
        torch.randn(4, 5, generator=draw(3)),
    ]
    biases = [torch.ones(5), torch.zeros(4)]
    weights[0][0] = 0.0  # a unit that says 1 to every image
    weights[1][:, 1] = 0.0  # a unit that nobody hears
    weights[0][:, 7] = 0.0  # an input that nobody looks at
    net = Tiny.of([weights[0], biases[0], weights[1], biases[1]])
    wanted = F.relu(x @ weights[0].T + biases[0]) @ weights[1].T + biases[1]
    assert [len(b) for b in net.biases] == [3, 4] and net.pixels.tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        8,
        9,
    ]
    assert torch.allclose(net.forward(x[:, net.pixels])[-1], wanted, atol=1e-5)


def test_a_tiny_net_inside_a_larger_one_gives_the_same_outputs(net, data):
    x, _ = data
    net.weights[0][:, :2] = 0.0  # the pixels read are not the first ones
    net.cut_()
    large = nn.Sequential(nn.Linear(10, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 4))
    net.write_into_(large)
    assert torch.allclose(large(x), net.forward(x[:, net.pixels])[-1], atol=1e-6)
    assert sum(int((p != 0).sum()) for p in large.parameters()) == net.kept


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_surgeon_compensates_like_constrained_least_squares(count):
    root = torch.randn(12, 8, generator=draw(4), dtype=torch.float64)
    curvature, start = (
        root.T @ root,
        torch.randn(8, generator=draw(5), dtype=torch.float64),
    )
    found = optimal_brain_surgeon(start, curvature, count=count, damp=0.0)
    free = found != 0
    assert int((~free).sum()) == count
    wanted = torch.zeros_like(start)  # minimise ½(v − s)ᵀH(v − s) over the free entries
    wanted[free] = torch.linalg.solve(curvature[free][:, free], (curvature @ start)[free])
    assert torch.allclose(found, wanted, atol=1e-9)


def test_the_first_weight_removed_costs_least(data):
    root = torch.randn(9, 6, generator=draw(6), dtype=torch.float64)
    curvature, start = (
        root.T @ root,
        torch.randn(6, generator=draw(7), dtype=torch.float64),
    )

    def cost(i):
        free = [j for j in range(6) if j != i]
        v = torch.zeros_like(start)
        v[free] = torch.linalg.solve(curvature[free][:, free], (curvature @ start)[free])
        return float((v - start) @ curvature @ (v - start))

    gone = (optimal_brain_surgeon(start, curvature, count=1, damp=0.0) == 0).nonzero().item()
    assert gone == min(range(6), key=cost)


@pytest.mark.parametrize("anneal", [False, True])
def test_training_is_adam_on_the_weights_that_are_there(net, data, anneal):
    x, y = data
    how, epochs, masks = (
        Exchange(q=0.4, batch=100),
        3,
        [p != 0 for p in net.parameters],
    )
    wanted = [p.clone().requires_grad_() for p in net.parameters]
    adam, order, total = torch.optim.Adam(wanted, lr=how.rate), draw(9), 6 * epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, total)
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(600, generator=order), 100):
            loss = generalised_loss(
                net.forward(x[chosen][:, net.pixels], wanted)[-1], y[chosen], q=0.4
            )
            for p, g, mask in zip(wanted, torch.autograd.grad(loss, wanted), masks, strict=True):
                p.grad = g * mask
            adam.step()
            if anneal:
                schedule.step()
    train_(net, x, y, epochs, how, draw(9), anneal=anneal)
    for p, q, mask in zip(net.parameters, wanted, masks, strict=True):
        assert torch.allclose(p, q, atol=2e-6) and torch.equal(p != 0, mask)


@pytest.mark.parametrize("q", [1e-9, 0.5])
def test_gauss_newton_against_autograd(net, data, q):
    x, y = data
    places = [p.nonzero(as_tuple=True) for p in net.parameters]
    values = torch.cat([p[at] for p, at in zip(net.parameters, places, strict=True)])

    def logits(flat, image):
        parts = torch.split(flat, [len(at[0]) for at in places])
        rebuilt = [
            torch.zeros_like(p).index_put(at, v)
            for p, at, v in zip(net.parameters, places, parts, strict=True)
        ]
        return net.forward(image, rebuilt)[-1]

    inputs = x[:, net.pixels]
    jacobian = vmap(jacrev(logits), in_dims=(None, 0))(values, inputs).double()
    p = vmap(logits, in_dims=(None, 0))(values, inputs).softmax(1).double()
    hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    weight = p.gather(1, y[:, None])[:, 0] ** q
    wanted = torch.einsum("n,nca,ncd,ndb->ab", weight, jacobian, hessian, jacobian) / len(x)
    found = gauss_newton(net, x, y, q=q, generator=draw())
    assert len(x) < SAMPLE and torch.allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("q", [1e-3, 0.7])
def test_promises_rank_absent_weights_by_their_gradient(net, data, q):
    """g of g²/h is the gradient of the loss, at absent weights too; a promise of 0 where the
    gradient is 0.
    """
    x, y = data
    wide = copy.deepcopy(net).widen_(10)
    parameters = [p.clone().requires_grad_() for p in wide.parameters]
    loss = generalised_loss(wide.forward(x, parameters)[-1], y, q=q)
    gradients = torch.autograd.grad(loss, parameters)
    for gradient, promise in zip(
        gradients, expected_gains(wide, x, y, q=q, generator=draw()), strict=True
    ):
        assert torch.equal(gradient == 0, promise == 0)
        assert bool((promise >= 0).all()) and bool(promise.isfinite().all())
    first = expected_gains(wide, x, y, q=q, generator=draw())[0]
    # ≈ h: the same order for all drawings of labels.
    bend = gradients[0] ** 2 / first.clamp_min(1e-30)
    assert float(bend[first > 0].max()) < 10


def test_growing_adds_exactly_so_many_and_changes_nothing(net, data):
    x, y = data
    before, kept = full_loss(net, x, y, 0.5), net.kept
    grow_(net, x, y, count=7, q=0.5, generator=draw())
    assert net.kept == kept + 7
    assert float(full_loss(net, x, y, 0.5)) == pytest.approx(float(before), abs=1e-5)


def test_exchange_improves_at_the_same_count_and_repeats_itself(net, data):
    x, y = data
    how = Exchange(rounds=3, share=0.6, final=20, batch=64, q=0.3)
    untouched = copy.deepcopy(net)
    alone = exchange(
        net,
        x,
        y,
        keep=30,
        how=Exchange(rounds=0, final=20, batch=64, q=0.3),
        generator=draw(),
    )
    found = exchange(net, x, y, keep=30, how=how, generator=draw())
    again = exchange(net, x, y, keep=30, how=how, generator=draw())
    assert found.kept <= 30 and alone.kept <= 30
    assert float(full_loss(found, x, y, 0.3)) < float(full_loss(alone, x, y, 0.3))
    assert all(torch.equal(a, b) for a, b in zip(found.parameters, again.parameters, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters, untouched.parameters, strict=True))


def test_the_generalised_loss_runs_from_cross_entropy_to_the_expected_error():
    logits, y = (
        torch.randn(50, 5, generator=draw()),
        torch.randint(5, (50,), generator=draw(1)),
    )
    assert float(generalised_loss(logits, y, q=1e-4)) == pytest.approx(
        float(F.cross_entropy(logits, y)), rel=1e-3
    )
    wrong = 1 - logits.softmax(1).gather(1, y[:, None]).mean()
    assert float(generalised_loss(logits, y, q=1.0)) == pytest.approx(float(wrong), rel=1e-5)


@pytest.mark.parametrize(
    "bad", [{"q": 0.0}, {"q": 1.5}, {"step": 1.0}, {"share": -1.0}, {"rounds": -1}]
)
def test_bad_settings_are_named(bad):
    with pytest.raises(ArgumentError, match="q and step must lie in"):
        Exchange(**bad)


@pytest.mark.parametrize("keep", [0, 5001])
def test_too_many_or_no_weights_are_refused(net, data, keep):
    with pytest.raises(
        ArgumentError,
        match=f"weights, {keep:,} to keep: between 1 and 5,000 can be exchanged",
    ):
        exchange(net, *data, keep=keep, how=Exchange(rounds=0), generator=draw())


def test_shrinking_takes_small_steps_and_ends_at_the_count(net, data, monkeypatch):
    """A tenth of what is left at a time, one weight at least, and never more than asked."""
    taken = []
    module = importlib.import_module("experiments.factorization.exchange")
    plain = module.remove_

    def watched(*args, count, **more):
        taken.append((args[0].kept, count))
        plain(*args, count=count, **more)

    monkeypatch.setattr(module, "remove_", watched)
    keep = net.kept - 23
    module._shrink_(net, *data, keep, Exchange(step=0.1), draw(5))
    # Units that fall silent take their other weights with them: it may end a little below.
    assert keep - 8 <= net.kept <= keep and len(taken) > 2
    for kept, count in taken:
        assert count == min(kept - keep, max(1, kept // 10))
