"""Theorems H.1, G.1, G.2, Lemmas G.1, G.2: the printed exponent fails, the corrected one holds."""

import math
from itertools import pairwise, product

import pytest
import torch
from scipy import integrate
from torch import nn

from secateurs.errors import DomainError
from secateurs.graph import capture
from secateurs.paths import lifting
from secateurs.theory import covering
from secateurs.theory.covering import lemma_g1, theorem_g1, theorem_g2_factor, theorem_h1
from secateurs.theory.partition import partition


def one_layer(inputs, outputs):
    model = nn.Linear(inputs, outputs)
    return partition(model, capture(model, torch.zeros(1, inputs)))


def test_theorem_h1_as_printed_is_false_for_two_outputs():
    """One biased layer, d_in = 1, d_out = 2: Φ is the ℓ¹ ball of R⁴, which needs (r/t)⁴ balls.

    Print: 2^#rescalings (24·2·r/t)^3 with #rescalings = 2 (its N_ℓ are the two outputs).
    """
    ratio = 442_369.0
    volume = 4 * math.log(ratio)
    printed = 2 * math.log(2) + 3 * math.log(48 * ratio)
    assert printed < volume
    assert 2 * math.log(2) + 3 * math.log(48 * (ratio - 2)) > 4 * math.log(ratio - 2)
    found = one_layer(1, 2)
    assert (found.coordinates, found.hidden, found.exponent) == (4, 0, 4)
    assert theorem_h1(found, radius=ratio, scale=1.0) >= volume


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e9, 1e30])
def test_theorem_h1_never_falls_below_the_volume(inputs, outputs, ratio):
    """One layer: Φ(Θ) is the ball of radius r in R^P, so N ≥ (r/t)^P."""
    found = one_layer(inputs, outputs)
    bound = theorem_h1(found, radius=ratio, scale=1.0)
    assert bound >= found.coordinates * math.log(ratio)
    # And the exponent is the true dimension: no more than a constant per coordinate is lost.
    assert bound <= found.coordinates * (math.log(ratio) + math.log(24 * found.width)) + 1e-9


def test_theorem_h1_against_a_packing_of_a_network_with_a_hidden_layer(generator):
    """Points of Φ(Θ) further than 2t apart need one ball each."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    graph = capture(model, torch.zeros(1, 2, dtype=torch.float64))
    found, points = partition(model, graph), []
    for _ in range(60):
        for parameter in model.parameters():
            parameter.data.uniform_(0, 1, generator=generator)
        phi = lifting(model, torch.ones(1, 2, dtype=torch.float64), graph=graph).phi
        points.append(phi / phi.norm(1) * torch.rand((), generator=generator))
    for scale in (0.02, 0.05, 0.2):
        apart = []
        for phi in points:
            if all(float((phi - other).norm(1)) > 2 * scale for other in apart):
                apart.append(phi)
        assert math.log(len(apart)) <= theorem_h1(found, radius=1.0, scale=scale)


def test_lemma_g2_signs_do_not_change_distances(generator):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    x = torch.ones(1, 2, dtype=torch.float64)

    def phi(values):
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.data.copy_(value)
        return lifting(model, x).phi

    shapes = [p.shape for p in model.parameters()]
    signs = [torch.randint(0, 2, s, generator=generator).double() * 2 - 1 for s in shapes]
    a, b = ([torch.rand(s, generator=generator).double() for s in shapes] for _ in range(2))
    plain = (phi(a) - phi(b)).norm(1)
    signed = phi([s * v for s, v in zip(signs, a, strict=True)]) - phi(
        [s * v for s, v in zip(signs, b, strict=True)]
    )
    assert float(signed.norm(1)) == pytest.approx(float(plain), rel=1e-12)


@pytest.mark.parametrize("samples", [1, 2, 5, 9])
def test_theorem_g1_on_a_class_of_two_functions(samples):
    """Two constants ±1, fair labels, loss |ŷ − y|/2: the error of the best by enumeration."""
    gaps = [0.5 - min(sum(y), samples - sum(y)) / samples for y in product((0, 1), repeat=samples)]
    exact = sum(gaps) / len(gaps)
    diameter = 2 * math.sqrt(samples)
    bound = theorem_g1(
        lambda t: math.log(2), loss_lipschitz=0.5, samples=samples, diameter=diameter
    )
    assert exact <= bound
    assert bound == pytest.approx(
        24 * math.sqrt(2) * 0.5 / samples * diameter * math.sqrt(math.log(2))
    )


def test_the_factor_of_theorem_g2_is_its_parts_put_together():
    """Theorem G.1 over Lemma G.1 over Theorem H.1, integrated, against the closed form."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = partition(model, capture(model, torch.zeros(1, 3)))
    radius, samples, bound = 3.0, 50, 2.0
    dudley = lemma_g1(
        lambda u: theorem_h1(found, radius=radius, scale=max(u, 1e-12)),
        radius=radius,
        spread=math.sqrt(samples) * bound,
        log_signs=found.coordinates * math.log(2),
    )
    whole = 24 * math.sqrt(2) / samples * dudley
    closed = bound / math.sqrt(samples) * theorem_g2_factor(found) * radius
    assert whole <= closed <= 1.3 * whole


@pytest.mark.parametrize("wide", [1, 3, 8])
def test_erratum_the_end_of_the_integral_of_theorem_g2(wide):
    """∫_0^{2r} √ln(24Mr/u) du at r = 1 ends at t = 1/12M after u = 24Mr·t, not at 1/24M."""
    whole, _ = integrate.quad(lambda u: math.sqrt(math.log(24 * wide / u)), 0, 2)
    assert 24 * wide * covering._log_integral(1 / (12 * wide)) == pytest.approx(whole)
    printed = 24 * wide * covering._log_integral(1 / (24 * wide))
    assert printed < 0.6 * whole
    if wide == 1:
        assert (round(whole, 2), round(printed, 2)) == (3.7, 2.03)


@pytest.mark.parametrize("widths", [(1, 1), (3, 1), (4, 5, 2), (7, 3, 3, 3)])
def test_544_survives_the_corrected_exponent(widths):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    found = partition(model, capture(model, torch.zeros(1, widths[0])))
    assert theorem_g2_factor(found) <= 544 * found.width * math.sqrt(found.parameters)


def test_errors():
    found = one_layer(1, 1)
    with pytest.raises(DomainError, match="scale=0"):
        theorem_h1(found, radius=1.0, scale=0)
    with pytest.raises(DomainError, match="radius=-1"):
        theorem_h1(found, radius=-1, scale=1.0)
    with pytest.raises(DomainError, match="samples=0"):
        theorem_g1(lambda t: 0.0, loss_lipschitz=1.0, samples=0, diameter=1.0)
