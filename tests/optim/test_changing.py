"""RigL, SET and AC/DC: the laws by which their masks change."""

import math

import pytest
import torch
from torch import nn

from optim.attached_methods import OPTIMIZERS, generator, loss_of, network, train
from secateurs.errors import ArgumentError, TrainingError
from secateurs.masks import select
from secateurs.optim import ACDC, SET, PowerPropagation, RigL


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rigl_exchanges_the_smallest_weights_for_the_largest_gradients(optimizer):
    model = network()
    made = OPTIMIZERS[optimizer](model.parameters())
    steps, every = 60, 10
    rigl = RigL(model, made, sparsity=0.7, steps=steps, every=every, generator=generator())
    count = {name: int(mask.sum()) for name, mask in rigl.masks.items()}
    assert sum(count.values()) == round(0.3 * 108) and rigl.end == 45
    for step in range(steps):
        made.zero_grad()
        loss_of(model, step).backward()
        masks, bias = rigl.masks, model[0].bias.clone()
        weights = {n: model.get_parameter(n).detach().clone() for n in masks}
        grads = {n: model.get_parameter(n).grad.clone() for n in masks}
        made.step()
        assert {n: int(m.sum()) for n, m in rigl.masks.items()} == count
        due = step in (10, 20, 30, 40)
        assert due or all(torch.equal(rigl.masks[n], m) for n, m in masks.items())
        # Where masks change, nothing else does.
        assert torch.equal(bias, model[0].bias) == due
        if not due:
            continue
        for name, mask in masks.items():
            share = 0.3 / 2 * (1 + math.cos(math.pi * step / 45))
            number = int(share * count[name])
            assert number > 0 or step == 40
            order = weights[name].abs().masked_fill(~mask, math.inf).flatten().argsort()
            kept = mask.clone()
            kept.view(-1)[order[:number]] = False
            chances = grads[name].abs().masked_fill(kept, -1).flatten().argsort(descending=True)
            expected = kept.clone()
            expected.view(-1)[chances[:number]] = True
            assert torch.equal(rigl.masks[name], expected)
            p, new = model.get_parameter(name), expected & ~mask
            assert torch.equal(p.detach(), weights[name] * expected) and not p[new].any()
            for value in made.state[p].values():
                if isinstance(value, torch.Tensor) and value.shape == p.shape:
                    assert not value[new].any()


def test_grown_weights_move_at_the_next_step():
    model = network()
    made = torch.optim.SGD(model.parameters(), lr=0.05)
    rigl = RigL(model, made, density=0.3, steps=100, every=10, generator=generator())
    before = {}
    train(model, made, end=10, each=lambda step: before.update(rigl.masks))
    train(model, made, begin=10, end=12)
    new = rigl.masks["0.weight"] & ~before["0.weight"]
    assert new.any() and model[0].weight[new].all()


def test_set_drops_from_both_signs_and_grows_anywhere():
    grown = torch.zeros(30, 40)
    for seed in range(60):
        torch.manual_seed(seed)
        model = nn.Linear(40, 30, bias=False)
        made = torch.optim.SGD(model.parameters(), lr=0.0)
        changing = SET(model, made, density=0.25, steps=3, every=1, fraction=0.4)
        mask, weight = changing.masks["weight"], model.weight.detach().clone()
        model(torch.randn(2, 40)).sum().backward()
        made.step()
        now = changing.masks["weight"]
        assert int(now.sum()) == int(mask.sum()) == 300
        # Re-grown entries keep their weight: what is zero now among the old ones was dropped.
        left = now & mask
        for sign in (weight > 0, weight < 0):
            own = mask & sign
            dropped = own & ~left
            limit = weight[own].abs().sort().values[int(0.4 * int(own.sum())) - 1]
            assert dropped.any() and float(weight[dropped].abs().max()) <= float(limit)
        grown += (now & ~mask).float()
    # 60 × about 120 draws over 1200 places, of which a quarter is taken: 6 at each in the mean.
    # 1200 places with a Poisson of that mean: beyond 22 by chance 1e-4.
    assert 5.0 < float(grown.mean()) < 6.5 and float(grown.max()) < 22


def test_what_set_drops_and_draws_at_once_keeps_its_value_and_its_momentum():
    model = nn.Linear(40, 30, bias=False)
    made = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    changing = SET(model, made, density=0.9, steps=9, every=2, fraction=0.9)
    mask = changing.masks["weight"]
    for _ in range(2):
        made.zero_grad()
        model(torch.ones(2, 40)).sum().backward()
        made.step()
    now, momentum = changing.masks["weight"], made.state[model.weight]["momentum_buffer"]
    # Nearly all is dropped, and nearly all drawn again.
    assert int((mask & now).sum()) > 900
    assert model.weight[mask & now].all() and momentum[mask & now].all()
    assert not model.weight[now & ~mask].any() and not momentum[now & ~mask].any()


def test_set_changes_after_every_epoch_but_the_last():
    model = network()
    made = torch.optim.Adam(model.parameters(), lr=0.01)
    changing = SET(model, made, density=0.3, steps=20, every=5, generator=generator())
    seen, last = [], [changing.masks]

    def look(step):
        if any(not torch.equal(m, last[0][n]) for n, m in changing.masks.items()):
            seen.append(step + 1)
        last[0] = changing.masks

    train(model, made, end=20, each=look)
    assert seen == [5, 10, 15]


@pytest.mark.parametrize("scope", ["global", "layer", "uniform"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_acdc_alternates_and_ends_sparse(optimizer, scope):
    model = network()
    made = OPTIMIZERS[optimizer](model.parameters())
    phases = ACDC(model, made, sparsity=0.8, steps=40, every=4, scope=scope)
    weights = ("0.weight", "2.weight")
    previous = {n: model.get_parameter(n).detach().clone() for n in weights}
    count = sum(int(m.sum()) for m in select(previous, sparsity=0.8, scope=scope).values())
    for step in range(40):
        made.zero_grad()
        loss_of(model, step).backward()
        made.step()
        now = {n: model.get_parameter(n).detach() for n in weights}
        sparse, will = phases.is_sparse_at(step), phases.is_sparse_at(step + 1)
        masks = phases.masks
        if will:
            assert sum(int(m.sum()) for m in masks.values()) == count
        else:
            assert all(m.all() for m in masks.values())
        if sparse and not will:  # an optimizer that has forgotten, and zeros that begin to move
            for n in weights:
                for value in made.state[model.get_parameter(n)].values():
                    if isinstance(value, torch.Tensor) and value.ndim == 2:
                        assert not value.any()
        if not sparse and not will:
            assert sum(int(w.count_nonzero()) for w in now.values()) > 2 * count
        previous = {n: value.clone() for n, value in now.items()}
    assert sum(int(w.count_nonzero()) for w in previous.values()) == count


def test_acdc_keeps_the_largest_magnitudes_of_the_moment():
    def run(steps, **options):
        model = network()
        made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        phases = ACDC(model, made, density=0.25, steps=20, start=5, every=5, **options)
        train(model, made, end=steps)
        return model, phases

    dense = network()
    train(dense, torch.optim.SGD(dense.parameters(), lr=0.05, momentum=0.9), end=5)
    model, phases = run(5)
    weights = {n: dense.get_parameter(n).detach() for n in phases.masks}
    expected = select({n: w.abs() for n, w in weights.items()}, density=0.25)
    for name, mask in phases.masks.items():
        assert torch.equal(mask, expected[name])
        assert torch.equal(model.get_parameter(name).detach(), weights[name] * mask)


def test_phases_of_the_paper():
    model = network()
    made = torch.optim.SGD(model.parameters(), lr=0.05)
    phases = ACDC(model, made, sparsity=0.9, steps=100)
    sparse = [step for step in range(100) if phases.is_sparse_at(step)]
    wanted = {*range(85, 100)} | {s for b in range(10, 75, 10) for s in range(b, b + 5)}
    assert set(sparse) == wanted


def test_values_that_are_not_finite_change_no_mask():
    model = network()
    made = torch.optim.SGD(model.parameters(), lr=0.05)
    rigl = RigL(model, made, density=0.3, steps=100, every=2)
    train(model, made, end=2)
    loss_of(model, 2).backward()
    model[0].weight.grad[0, 0] = float("nan")
    before = rigl.masks
    with pytest.raises(TrainingError, match=r"the gradient of '0.weight' is not finite after 2"):
        made.step()
    assert all(torch.equal(rigl.masks[n], m) for n, m in before.items())


def test_a_layer_without_a_gradient_keeps_its_mask():
    model = network()
    model[0].weight.requires_grad_(False)
    made = torch.optim.SGD(model.parameters(), lr=0.05)
    rigl = RigL(model, made, density=0.4, steps=100, every=3)
    before = rigl.masks
    train(model, made, end=20)
    assert torch.equal(rigl.masks["0.weight"], before["0.weight"])
    assert not torch.equal(rigl.masks["2.weight"], before["2.weight"])


def test_the_same_generator_gives_the_same_training():
    def run(seed):
        model = network()
        made = torch.optim.SGD(model.parameters(), lr=0.05)
        SET(model, made, density=0.3, steps=40, every=3, generator=generator(seed))
        train(model, made)
        return model[0].weight

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


def test_with_power_propagation_zeros_stay():
    model = network()
    made = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    PowerPropagation(model, made)
    phases = ACDC(model, made, sparsity=0.8, steps=40)
    train(model, made)
    assert sum(int(model.get_parameter(n).count_nonzero()) for n in phases.masks) <= 22


@pytest.mark.parametrize("kind", [RigL, SET])
def test_counts_are_taken_again_where_the_held_masks_were_changed(kind):
    model = network()
    made = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"density": 0.5, "steps": 100, "every": 5, "generator": generator()}
    method = kind(model, made, **options)
    train(model, made, end=6)
    smaller = select({n: m.float() for n, m in method.masks.items()}, density=0.2)
    method.held.shrink(smaller)
    count = {name: int(mask.sum()) for name, mask in method.masks.items()}
    train(model, made, begin=6, end=17)
    assert method.kept == count == {name: int(mask.sum()) for name, mask in method.masks.items()}
    method.change({name: torch.ones_like(mask) for name, mask in method.masks.items()})
    assert method.kept == {name: mask.numel() for name, mask in method.masks.items()}
    with pytest.raises(ArgumentError, match="does not say how many entries of '2.weight'"):
        method.held.change(method.masks, kept={"0.weight": 72})
