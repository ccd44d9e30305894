"""Theorem 1 against simulated networks whose sup-error is exact (identity activations) or bounded
layer by layer.

Theorems 2 and 3 by the parts of their proofs and their forms; whole networks:
test_random_theorems.py.
"""

import math

import pytest
import torch

from secateurs.base.singular_values import spectral_norms
from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory import (
    NormBounds,
    NormConstants,
    lemma_3,
    plan,
    theorem_1,
    theorem_1_explicit,
    theorem_1_width,
    theorem_2_width,
    theorem_3,
)
from theory.monte_carlo import assert_at_least
from theory.networks import CONV, prune_smallest, random_claim
from theory.random_networks import uniform_layer

NETWORKS = 1_000


@pytest.fixture(scope="module")
def errors():
    """sup_{‖x‖≤1}‖f − F‖ of 1,000 linear networks 32-128-128-8, α = ½, exactly: a spectral norm of
    the difference.
    """
    g = torch.Generator().manual_seed(0)
    found = []
    for _ in range(NETWORKS // 100):
        first, inner, last = (
            uniform_layer(*shape, 100, g) for shape in ((128, 32), (128, 128), (8, 128))
        )
        removed = inner - prune_smallest(inner, 128)
        found.append(spectral_norms(last @ removed @ first, tolerance=1e-4).values)
    return torch.cat(found)


def test_theorem_1_holds_in_a_thousand_networks_where_it_is_not_vacuous(errors):
    """At d = 128 the printed and the tight form both say something, and the bound holds as often as
    they say.
    """
    for as_printed in (True, False):
        claim = theorem_1(
            128,
            depth=3,
            alpha=0.5,
            as_printed=as_printed,
            constants=lemma_3(slack=0.7),
        )
        assert not claim.vacuous and claim.probability > 0.5
        assert_at_least(int((errors <= claim.error).sum()), NETWORKS, claim.probability)


def test_plan_names_that_width(errors):
    """The smallest width for ε = 0.05 at 1 − δ = 0.99 is at most 128, and there the bound holds in
    all the networks.
    """
    found = plan([32, 128, 128, 8], alpha=0.5, epsilon=0.05, delta=0.01)
    assert not found.vacuous and found.smallest_width <= 128 and found.error <= 0.05
    assert_at_least(int((errors <= found.error).sum()), NETWORKS, 0.99)
    assert_at_least(int((errors <= 0.05).sum()), NETWORKS, found.probability)
    assert str(int(found.smallest_width)) in str(found)
    narrower = plan(
        [32, *[int(found.smallest_width) - 1] * 2, 8],
        alpha=0.5,
        epsilon=0.05,
        delta=0.01,
    )
    assert narrower.error > 0.05 and narrower.binding.startswith("error")


def test_the_pruned_part_of_theorem_1_is_far_below_c2(generator):
    """E‖W* − W‖ ≤ c2 d^{−2α} holds with room: the printed chain spends a factor of five."""
    inner = uniform_layer(96, 96, 200, generator)
    cut = spectral_norms(inner - prune_smallest(inner, 96), tolerance=1e-4).values
    c2 = 2 / 3 * (2 * math.sqrt(2) + 24**0.25)
    assert 5 * float(cut.mean()) < c2 * 96**-1.0


def test_the_printed_form_is_weaker_than_the_default():
    for width, depth, alpha in ((256, 3, 0.5), (1024, 5, 0.5), (10**6, 7, 0.3)):
        printed = theorem_1(width, depth=depth, alpha=alpha, as_printed=True)
        default = theorem_1(width, depth=depth, alpha=alpha)
        assert (
            default.error <= printed.error * (1 + 1e-12)
            and default.probability >= printed.probability - 1e-12
        )


def test_frozen_printed_values():
    """c0 = 1.2, δ0 = 0.02, d = 10⁴, l = 4, α = ½, C = 1: (2²−1)·0.01·1.2³ and the printed
    product.
    """
    claim = theorem_1(
        10_000,
        depth=4,
        alpha=0.5,
        constants=NormConstants(c0=1.2, delta0=0.02),
        constant=1.0,
        as_printed=True,
    )
    assert claim.error == pytest.approx(0.05184)
    assert claim.probability == pytest.approx(1 - 2 * 0.01 * (2 * math.sqrt(2) + 24**0.25))


def test_the_sufficient_width_suffices_and_the_binding_condition_binds():
    wish = {"depth": 4, "alpha": 0.6, "constants": lemma_3(slack=0.5)}
    needed = theorem_1_width(epsilon=0.05, delta=0.1, **wish)
    claim = theorem_1(int(needed.width), as_printed=True, **wish)
    assert claim.error <= 0.05 * (1 + 1e-9) and claim.probability >= 0.9
    assert needed.binding in {
        "error epsilon (33)",
        "probability of the pruned part (34)",
    }
    assert theorem_1_width(depth=9, alpha=0.001, epsilon=1e-3, delta=0.01).width == math.inf


def needed_2(*, depth=3, bounds=(1.0,) * 3, k1=1.0, k2=3.0, **options):
    norms = NormBounds(bounds=bounds, failures=(0.0,) * 3)
    return theorem_2_width(
        depth=depth,
        alpha=0.5,
        epsilon=0.1,
        delta=0.05,
        norms=norms,
        k1=k1,
        k2=k2,
        **options,
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: theorem_1_explicit([4, 4, 4, 4], delta=0.1),
            "give either alpha= or counts=",
        ),
        (
            lambda: theorem_1_explicit([4, 4, 4, 4], delta=0.1, counts=[17]),
            "cannot prune 17 entries",
        ),
        (
            lambda: theorem_1_explicit([4, 4, 4, 4], delta=0.1, counts=[1, 1]),
            "1 inner layers",
        ),
        (
            lambda: theorem_1_explicit([4, 4, 4, 4], delta=0.1, counts=[1], alpha=0.5),
            ", not both",
        ),
        (
            lambda: theorem_1_explicit([4, 4, 4, 4], delta=0.1, counts=[1.5]),
            "counts holds 1.5",
        ),
        (
            lambda: theorem_1_explicit([4, 4.5, 4, 4], delta=0.1, alpha=0.5),
            "width d_1 = 4.5 is not a whole number",
        ),
        (
            lambda: theorem_1_explicit([4] * 4, delta=0.1, alpha=0.5, scale=[1.0]),
            "scale has 1 entries; there are 3",
        ),
        (
            lambda: theorem_1_explicit([4] * 4, delta=0.1, alpha=0.5, scale=[1, -1, 1]),
            "scale of layer 2 = -1",
        ),
        (
            lambda: theorem_1_explicit([4] * 4, delta=0.1, alpha=0.5, law="bounded"),
            "give law='bounded' and the thresholds",
        ),
        (
            lambda: theorem_1_explicit(
                [4] * 4, delta=0.1, alpha=0.5, law="bounded", thresholds=[2.0]
            ),
            "in \\[0, 1\\]",
        ),
        (
            lambda: theorem_1(64, depth=3.5, alpha=0.5),
            "depth = 3.5 is not a whole number",
        ),
        (lambda: NormConstants(c0=-1.0, delta0=0.1), "c0 = -1 is not positive"),
        (
            lambda: needed_2(depth=5),
            "3 bounds and 3 failures: give one of each for each of the 5 layers",
        ),
        (lambda: needed_2(depth=2), "depth = 2"),
        (lambda: needed_2(constant=-1.0), "constant = -1 is not positive"),
        (
            lambda: needed_2(bounds=(1.0, -1.0, 1.0)),
            "norm bound 2 = -1 is not positive",
        ),
        (
            lambda: needed_2(k1=0.33, k2=0.01),
            "k1, k2 = 0.33, 0.01: .* the second moment is at most 0.1",
        ),
        (
            lambda: random_claim([4] * 4, 0.1, constant=math.nan),
            "constant = nan is not positive",
        ),
        (
            lambda: theorem_3(CONV, alpha=0.5, beta1=0.2, beta2=0.1, c1=1.0, c2=0.5, c5=1.0),
            "c1, c2 = 1, 0.5",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((ArgumentError, TheoryError), match=message):
        call()
