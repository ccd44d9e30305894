"""Theorem 2 by its parts and conditions."""

import itertools
import math
from collections import Counter

import pytest

from secateurs.base.singular_values import spectral_norms
from secateurs.errors import TheoryError
from secateurs.theory import (
    NormBounds,
    NormConstants,
    theorem_1,
    theorem_1_explicit,
    theorem_1_width,
    theorem_2,
    theorem_2_width,
)
from secateurs.theory.random_matrices import largest_alpha, load_conditions
from theory.monte_carlo import assert_at_least, mean_margin, refuted
from theory.networks import SQUARE, batches, random_claim, stated_2
from theory.random_networks import linear_errors, prune_drawn, uniform_layer


def test_theorem_2_by_its_parts(generator):
    """The two parts of the proof: the expectation of the pruned part, given loads within 3N/n, and
    the loads.
    """
    d, alpha, batch = 96, 0.25, 300
    count = math.floor((d * d) ** (1 - alpha))
    inner = uniform_layer(d, d, batch, generator)
    removed = inner - prune_drawn(inner, count, generator)
    zeroed = removed != 0
    within = (zeroed.sum(1).amax(1) <= 3 * count / d) & (zeroed.sum(2).amax(1) <= 3 * count / d)
    cut = spectral_norms(removed, tolerance=1e-4).values
    c2 = 2 / 3 * (2 * math.sqrt(3 / 3) + (1 / 5) ** 0.25)
    assert_at_least(int(within.sum()), batch, (1 - d**-0.2958) ** 2)
    largest = math.sqrt(count / d)  # Frobenius: at most `count` entries of at most 1/√d
    assert float(cut.mean()) + mean_margin(cut.numpy(), largest) < c2 * d ** (-alpha / 2)
    # Markov's inequality, for entries half as large: at K = 1 it would promise nothing.
    step = d ** (-alpha / 4)
    assert 1 - c2 / 2 * step > 0.3
    assert_at_least(int((cut / 2 <= step).sum()), batch, 1 - c2 / 2 * step)
    assert refuted(int((cut / 2 <= step / 6).sum()), batch, 1 - c2 / 2 * step)


def test_theorem_2_where_it_says_something():
    """At 10^60 neurons the formulas give a probability near 1; default at least as strong as
    print.
    """
    widths = [10**60] * 4
    printed, default = (random_claim(widths, 0.4, as_printed=value) for value in (True, False))
    assert 0.9 < printed.probability <= default.probability <= 1
    assert default.error <= printed.error and not default.vacuous


def test_conditions_3_and_4_are_named_with_their_numbers():
    with pytest.raises(
        TheoryError,
        match=r"\(3\) floor\(D_2\^\(1-alpha\)\) >= d_2 log d_2: 1024 < needed 7097\.83",
    ):
        random_claim([784, 1024, 1024, 10], 0.5)
    limit = largest_alpha([784, 1024, 1024, 10])
    assert all(c.holds for c in load_conditions([784, 1024, 1024, 10], limit - 1e-6))
    assert not all(c.holds for c in load_conditions([784, 1024, 1024, 10], limit + 1e-3))


def test_condition_5_is_strict():
    norms = NormBounds(bounds=(1.0,) * 3, failures=(0.02,) * 3)
    with pytest.raises(
        TheoryError, match=r"condition \(5\) fails: delta0 = delta - 0\.08 = -0\.03"
    ):
        theorem_2_width(depth=3, alpha=0.5, epsilon=0.1, delta=0.05, norms=norms, k1=1, k2=3)
    norms = NormBounds(bounds=(1.0,) * 3, failures=(0.0,) * 3)
    needed = theorem_2_width(depth=3, alpha=0.5, epsilon=0.1, delta=0.05, norms=norms, k1=1, k2=3)
    assert (
        needed.binding == "probability of the pruned part (27)"
        and needed.log10[needed.binding] > 15
    )


def test_depth_without_end():
    """Two thousand layers: infinite errors and widths, not an overflow; at depth 40 what the plain
    formulas give.
    """
    deep = {"depth": 2_000, "alpha": 0.5}
    assert theorem_1_width(epsilon=0.1, delta=0.1, **deep).width == math.inf
    assert all(
        theorem_1(64, as_printed=p, **deep).error == math.inf and theorem_1(64, **deep).vacuous
        for p in (True, False)
    )
    assert theorem_1_explicit([64] * 2_001, alpha=0.5, delta=0.1).error == math.inf
    needed = theorem_1_width(
        depth=40,
        alpha=0.5,
        epsilon=0.1,
        delta=0.1,
        constants=NormConstants(c0=1.2, delta0=0.1),
    )
    assert needed.log10["error epsilon (33)"] == pytest.approx(
        2 * math.log10((2**38 - 1) * 1.2**39 / 0.1)
    )
    assert needed.binding == "error epsilon (33)"


@pytest.mark.parametrize(("as_printed", "probability"), [(False, 0.54), (True, 0.33)])
def test_theorem_2_as_stated(as_printed, probability, generator):
    """d = 128, K = 0.36, α = 0.33: not vacuous, of positive probability, and true in 500 networks.
    Had none or a third of them met the bound, the statement would be refuted; so would a bound an
    80th as large.
    """
    claim = stated_2(128, alpha=0.33, scale=0.36, as_printed=as_printed)
    assert not claim.vacuous and claim.probability > probability
    draws = math.floor((128 * 128) ** 0.67)
    errors = batches(500, 250, lambda n: linear_errors(SQUARE, draws, n, generator, scale=0.36))
    assert_at_least(int((errors <= claim.error).sum()), 500, claim.probability)
    assert refuted(0, 500, claim.probability) and refuted(500 // 5, 500, claim.probability)
    assert refuted(int((errors <= claim.error / 80).sum()), 500, claim.probability)


def most_likely_2(width, as_printed):
    """The largest probability of a statement that is not vacuous, over K and α."""
    top = largest_alpha([width] * 4) - 1e-9
    wishes = [(top * i / 20, k / 200) for i in range(10, 21) for k in range(20, 140)]
    claims = [stated_2(width, alpha=a, scale=k, as_printed=as_printed) for a, k in wishes]
    return max((c.probability for c in claims if not c.vacuous), default=0.0)


def test_erratum_zero_entries_of_rows_and_columns_are_not_independent():
    """Two positions of four: by entries ½ against ¾², by draws the product exactly."""
    places = list(itertools.product(range(2), range(2)))
    draws = list(itertools.product(places, repeat=2))

    def chances(seen):
        held = [
            [max(Counter(place[k] for place in seen(drawn)).values()) <= 1 for k in (0, 1)]
            for drawn in draws
        ]
        rows, columns = (sum(pair[k] for pair in held) / 16 for k in (0, 1))
        return rows, columns, sum(map(all, held)) / 16

    rows, columns, both = chances(set)
    assert (rows, columns, both) == (0.75, 0.75, 0.5) and both < rows * columns
    rows, columns, both = chances(list)
    assert both == rows * columns == 0.25


def test_where_theorem_2_as_stated_reaches_one_half():
    """Over all K and α: printed from a width of about 710, default at every width.
    docs/guarantees.md.
    """
    assert most_likely_2(700, True) < 0.5 < most_likely_2(720, True)
    assert min(most_likely_2(d, False) for d in (3, 16, 64, 256)) > 0.5


def test_error_and_trivial_bound_grow_with_the_constant_of_the_activations():
    norms = NormBounds(bounds=(1.5, 2.0, 0.5), failures=(0.001,) * 3)
    one, three = (
        theorem_2([10**60] * 4, alpha=0.4, norms=norms, k1=1.0, k2=1.0, lipschitz=lipschitz)
        for lipschitz in (1.0, 3.0)
    )
    assert one.trivial == pytest.approx(1.5 * 2.0 * 0.5)
    assert three.trivial == pytest.approx(3 * one.trivial)
    assert three.error == pytest.approx(3 * one.error)
