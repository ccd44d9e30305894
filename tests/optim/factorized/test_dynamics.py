"""The recorder: penalties that add up to that of the factors kept, one sample per step, every layer
with its λ.
"""

import math

import pytest
import torch
from torch import nn

from optim.factorized.nets import regression
from secateurs.errors import ArgumentError
from secateurs.optim import Dynamics, FactorizedSGD

OPTIONS = [{}, {"depth": 2}, {"depth": 4, "momentum": 0.0}]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))


def run(model, optimizer, dynamics, steps=3):
    for seed in range(steps):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        dynamics.record(loss)


def cost(optimizer):
    """(λ/D) Σ‖ω‖²."""
    return sum(
        group["strength"] / group["depth"] * float(optimizer.factors(p).double().square().sum())
        for group, p in optimizer.factorized()
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_minimal_and_excess_penalty_are_the_penalty_of_the_factors(options):
    model = net()
    optimizer = FactorizedSGD(model.named_parameters(), lr=0.1, strength=1e-2, **options)
    dynamics = Dynamics(optimizer)
    run(model, optimizer, dynamics)
    sample = dynamics.samples[-1]
    assert sample.minimal_penalty + sample.excess_penalty == pytest.approx(
        cost(optimizer), rel=1e-9
    )
    assert min(sample.minimal_penalty, sample.misalignment) >= 0
    assert sample.excess_penalty > 0


def test_every_layer_has_its_own_strength():
    model = net()
    strengths = (0.03, 0.0, 1e-3, 0.02)
    groups = [
        {"params": [p], "strength": s} for p, s in zip(model.parameters(), strengths, strict=True)
    ]
    optimizer = FactorizedSGD(groups, lr=0.1)
    dynamics = Dynamics(optimizer, model=model)
    run(model, optimizer, dynamics, 1)
    (sample,) = dynamics.samples
    assert tuple(layer.strength for layer in sample.layers.values()) == strengths
    assert sample.strength == 0.03
    for layer in sample.layers.values():
        assert layer.excess_penalty == layer.strength * layer.misalignment
    assert sample.minimal_penalty == sum(layer.minimal_penalty for layer in sample.layers.values())


def test_a_skipped_step_leaves_no_sample():
    model = net()
    optimizer = FactorizedSGD(model.named_parameters(), lr=0.1)
    dynamics = Dynamics(optimizer)
    for broken in (True, False, True, False):
        model(torch.full((2, 8), math.nan if broken else 1.0)).sum().backward()
        optimizer.step()
        dynamics.record(math.nan if broken else 1.0)
        optimizer.zero_grad()
    dynamics.record(2.0)  # the step before was a scaler's, say, and has changed nothing
    assert [(sample.step, sample.loss) for sample in dynamics.samples] == [
        (1, 1.0),
        (2, 1.0),
    ]


def test_sparsity_sets_in_where_it_exceeds_the_share():
    layer = nn.Linear(4, 2, bias=False)
    optimizer = FactorizedSGD(layer.named_parameters(), lr=0.1)
    dynamics = Dynamics(optimizer)
    for dead in (0, 2, 4):
        with torch.no_grad():
            factors = optimizer.factors("weight").clone()
            factors.view(len(factors), -1)[:, :dead] = 0
            optimizer.set_factors("weight", factors)
        layer(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        dynamics.record(1.0)
    assert [sample.sparsity for sample in dynamics.samples] == [0, 0.25, 0.5]
    # Exactly a quarter is not more than a quarter.
    assert [dynamics.onset(share) for share in (0.2, 0.25, 0.5)] == [2, 3, None]


def test_a_weight_at_the_threshold_is_no_zero():
    weight = nn.Parameter(torch.tensor([0.25, -0.5, 1.0]))
    optimizer = FactorizedSGD([weight], init="pretrained")
    for threshold, share in ((0.5, 1 / 3), (0.5 + 1e-9, 2 / 3)):
        dynamics = Dynamics(optimizer, threshold=threshold)
        dynamics.record(0.0)
        assert dynamics.samples[0].sparsity == pytest.approx(share)


def test_an_empty_parameter_has_no_zeros():
    empty, full = nn.Parameter(torch.empty(0)), nn.Parameter(torch.ones(3))
    dynamics = Dynamics(FactorizedSGD([empty, full], init="pretrained"))
    dynamics.record(0.0)
    assert dynamics.samples[0].sparsity == 0
    assert dynamics.samples[0].layers["0"].sparsity == 0


def test_an_optimizer_without_factors_is_refused():
    with pytest.raises(ArgumentError, match="SGD has none"):
        Dynamics(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))


def test_dynamics_sees_misalignment_vanish_and_sparsity_set_in():
    x, y = regression()
    layer = nn.Linear(12, 1, bias=False, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    optimizer = FactorizedSGD(
        layer.parameters(), lr=0.05, depth=3, strength=0.1, generator=generator
    )
    dynamics = Dynamics(optimizer, every=5, model=layer)
    for _ in range(1500):
        optimizer.zero_grad()
        loss = (layer(x)[:, 0] - y).square().mean()
        loss.backward()
        optimizer.step()
        dynamics.record(loss)
    first, last = dynamics.samples[0], dynamics.samples[-1]
    assert len(dynamics.samples) == 300
    assert last.misalignment < 1e-10 < first.misalignment
    assert last.excess_penalty == pytest.approx(0.1 * last.misalignment, abs=1e-15)
    assert last.minimal_penalty == pytest.approx(0.1 * float(layer.weight.abs().pow(2 / 3).sum()))
    onset = dynamics.onset()
    assert onset is not None
    assert first.sparsity == 0 < last.sparsity
    phases = dynamics.phases()
    assert phases[-1].name == "sparsification"
    assert phases[-1].start == onset
    assert [p.start for p in phases] == sorted(p.start for p in phases)
    assert dynamics.rows()[0]["layers"]["weight"]["sparsity"] == 0
    assert Dynamics(optimizer).phases() == ()
    with pytest.raises(ArgumentError, match="every=0"):
        Dynamics(optimizer, every=0)
    with pytest.raises(ArgumentError, match="threshold=0: give a positive number"):
        Dynamics(optimizer, threshold=0)
