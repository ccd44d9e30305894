"""Theorem 1 against simulated networks whose sup-error is exact (identity activations) or bounded
layer by layer.

Theorems 2 and 3 by the parts of their proofs and their forms; whole networks:
test_random_theorems.py.
"""

import math

import pytest
import torch

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory import (
    ConvSetting,
    NormBounds,
    NormConstants,
    lemma_3,
    plan,
    spectral_norms,
    theorem_1,
    theorem_1_explicit,
    theorem_1_width,
    theorem_2,
    theorem_2_width,
    theorem_3,
    uniform_norm_bound,
)
from secateurs.theory.pruning.theorem_2 import largest_alpha, load_conditions
from theory.monte_carlo import assert_at_least, mean_margin, refuted
from theory.random_networks import prune_drawn, uniform_layer

NETWORKS = 1_000


def prune_smallest(weights, count):
    """The magnitude scheme of Theorem 1 on a batch: the `count` smallest entries of each matrix
    become zero.
    """
    flat = weights.flatten(1).clone()
    flat.scatter_(1, flat.abs().topk(count, dim=1, largest=False).indices, 0.0)
    return flat.view_as(weights)


@pytest.fixture(scope="module")
def errors():
    """sup_{‖x‖≤1}‖f − F‖ of 1,000 linear networks 32-128-128-8, α = ½, exactly: a spectral norm of
    the difference.
    """
    g = torch.Generator().manual_seed(0)
    found = []
    for _ in range(NETWORKS // 100):
        first, inner, last = (
            uniform_layer(*shape, 100, g)
            for shape in ((128, 32), (128, 128), (8, 128))
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
        assert_at_least(
            int((errors <= claim.error).sum()), NETWORKS, claim.probability
        )


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


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_theorem_1_explicit_holds_at_real_sparsities(alpha, generator):
    """Two inner layers of unequal widths, up to 66 % pruned, ReLU errors bounded layer by layer:
    still within.
    """
    widths, delta, batch = [16, 64, 48, 80, 4], 0.05, 200
    claim = theorem_1_explicit(widths, alpha=alpha, delta=delta)
    layers = [
        uniform_layer(a, b, batch, generator)
        for a, b in zip(widths[1:], widths[:-1], strict=True)
    ]
    counts = [math.floor((widths[k] * widths[k + 1]) ** (1 - alpha)) for k in (1, 2)]
    norms = [spectral_norms(w, tolerance=1e-4).values for w in layers]
    cut = [
        spectral_norms(w - prune_smallest(w, n), tolerance=1e-4).values
        for w, n in zip(layers[1:3], counts, strict=True)
    ]
    error = (
        norms[0]
        * norms[3]
        * ((norms[1] + cut[0]) * (norms[2] + cut[1]) - norms[1] * norms[2])
    )
    assert_at_least(int((error <= claim.error).sum()), batch, 1 - delta)
    assert float(error.max()) > claim.error / 60


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
    assert claim.probability == pytest.approx(
        1 - 2 * 0.01 * (2 * math.sqrt(2) + 24**0.25)
    )


def test_the_sufficient_width_suffices_and_the_binding_condition_binds():
    wish = {"depth": 4, "alpha": 0.6, "constants": lemma_3(slack=0.5)}
    needed = theorem_1_width(epsilon=0.05, delta=0.1, **wish)
    claim = theorem_1(int(needed.width), as_printed=True, **wish)
    assert claim.error <= 0.05 * (1 + 1e-9) and claim.probability >= 0.9
    assert needed.binding in {
        "error epsilon (33)",
        "probability of the pruned part (34)",
    }
    assert (
        theorem_1_width(depth=9, alpha=0.001, epsilon=1e-3, delta=0.01).width
        == math.inf
    )


def random_claim(widths, alpha, **options):
    failure = 0.001
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    bounds = [
        uniform_norm_bound(*s, bound=1 / math.sqrt(max(s)), failure=failure)
        for s in shapes
    ]
    norms = NormBounds(bounds=tuple(bounds), failures=(failure,) * len(bounds))
    return theorem_2(widths, alpha=alpha, norms=norms, k1=1 / 3, k2=1 / 5, **options)


def test_theorem_2_by_its_parts(generator):
    """The two parts of the proof: the expectation of the pruned part, given loads within 3N/n, and
    the loads.
    """
    d, alpha, batch = 96, 0.25, 300
    count = math.floor((d * d) ** (1 - alpha))
    inner = uniform_layer(d, d, batch, generator)
    removed = inner - prune_drawn(inner, count, generator)
    zeroed = removed != 0
    within = (zeroed.sum(1).amax(1) <= 3 * count / d) & (
        zeroed.sum(2).amax(1) <= 3 * count / d
    )
    cut = spectral_norms(removed, tolerance=1e-4).values
    c2 = 2 / 3 * (2 * math.sqrt(3 / 3) + (1 / 5) ** 0.25)
    assert_at_least(int(within.sum()), batch, (1 - d**-0.2958) ** 2)
    largest = math.sqrt(
        count / d
    )  # Frobenius: at most `count` entries of at most 1/√d
    assert float(cut.mean()) + mean_margin(cut.numpy(), largest) < c2 * d ** (
        -alpha / 2
    )
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
    printed, default = (
        random_claim(widths, 0.4, as_printed=value) for value in (True, False)
    )
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
    assert not all(
        c.holds for c in load_conditions([784, 1024, 1024, 10], limit + 1e-3)
    )


def test_condition_5_is_strict():
    norms = NormBounds(bounds=(1.0,) * 3, failures=(0.02,) * 3)
    with pytest.raises(
        TheoryError, match=r"condition \(5\) fails: delta0 = delta - 0\.08 = -0\.03"
    ):
        theorem_2_width(
            depth=3, alpha=0.5, epsilon=0.1, delta=0.05, norms=norms, k1=1, k2=3
        )
    norms = NormBounds(bounds=(1.0,) * 3, failures=(0.0,) * 3)
    needed = theorem_2_width(
        depth=3, alpha=0.5, epsilon=0.1, delta=0.05, norms=norms, k1=1, k2=3
    )
    assert (
        needed.binding == "probability of the pruned part (27)"
        and needed.log10[needed.binding] > 15
    )


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


def test_depth_without_end():
    """Two thousand layers: infinite errors and widths, not an overflow; at depth 40 what the plain
    formulas give.
    """
    deep = {"depth": 2_000, "alpha": 0.5}
    assert theorem_1_width(epsilon=0.1, delta=0.1, **deep).width == math.inf
    assert all(
        theorem_1(64, as_printed=p, **deep).error == math.inf
        and theorem_1(64, **deep).vacuous
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


CONV = ConvSetting(depth=3, channels=64, kernel=3, map_size=32, input_channels=3)


def test_theorem_3_by_its_parts(generator):
    """Circular convolutions: E‖W‖ ≤ C3 q²/p and E‖W* − W‖ ≤ C4 (q²/p) d^{−α/4}, with room."""
    from secateurs.theory import conv_operator_norm

    d, p, alpha, c1, c2 = 24, 8, 0.5, 1.0, 3.0
    weights = torch.randn(20, d, d, 3, 3, generator=generator) / (p * math.sqrt(d))
    drawn = torch.randint(
        d * d, (20, math.floor(d ** (2 - alpha))), generator=generator
    )
    gone = torch.zeros(20, d * d).scatter_(1, drawn, 1.0).view(20, d, d, 1, 1)
    full = torch.tensor([conv_operator_norm(w, (p, p)).value for w in weights])
    cut = torch.tensor([conv_operator_norm(w, (p, p)).value for w in weights * gone])
    c3, c4 = (2 / 3 * (2 * math.sqrt(a * c1) + c2**0.25) for a in (1, 3))
    assert float(full.max()) < c3 * 9 / p and float(cut.max()) < c4 * 9 / p * d ** (
        -alpha / 4
    )


def test_theorem_3_forms():
    options = {
        "alpha": 0.5,
        "beta1": 0.2,
        "beta2": 0.05,
        "c1": 1.0,
        "c2": 3.0,
        "c5": 1.0,
        "constant": 2 / 3,
    }
    printed, default = (
        theorem_3(CONV, as_printed=True, **options),
        theorem_3(CONV, **options),
    )
    # √d for √d0.
    assert printed.error == pytest.approx(default.error * math.sqrt(64 / 3))
    # By hand.
    assert default.vacuous and default.probability == pytest.approx(
        1 - 0.65612 - 2.54955, abs=2e-3
    )
    norm, step = 32**-0.2, 64**-0.05
    assert default.error == pytest.approx(norm * 32 * math.sqrt(3) * norm * step)
    with pytest.raises(
        TheoryError, match=r"floor\(d\^\(2-alpha\)\) >= d log d: 128 < needed 266"
    ):
        theorem_3(CONV, **{**options, "alpha": 5 / 6})


def test_the_last_layer_of_theorem_3_needs_smaller_entries(generator):
    """With E w² = 1/(p² d), as for the filters, the norm of the linear layer stays near 1: no C5/p
    for any p.
    """
    d, norms = 4, {}
    for p in (4, 16):
        last = torch.randn(50, 10, p * p * d, generator=generator) / (
            p * math.sqrt(d)
        )
        norms[p] = float(spectral_norms(last, tolerance=1e-4).values.mean())
    assert min(norms.values()) > 1 and norms[16] > norms[4] / 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: theorem_1_explicit([4, 4, 4, 4], delta=0.1),
            "give alpha= or counts=",
        ),
        (
            lambda: theorem_1_explicit([4, 4, 4, 4], delta=0.1, counts=[17]),
            "17 entries cannot be pruned",
        ),
        (
            lambda: theorem_1_explicit([4, 4, 4, 4], delta=0.1, counts=[1, 1]),
            "1 inner layers",
        ),
        (
            lambda: theorem_1_explicit(
                [4, 4, 4, 4], delta=0.1, counts=[1], alpha=0.5
            ),
            "and not both",
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
            lambda: theorem_1_explicit(
                [4] * 4, delta=0.1, alpha=0.5, scale=[1, -1, 1]
            ),
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
            "3 bounds and 3 failures: one of each for each of the 5 layers",
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
            lambda: theorem_3(
                CONV, alpha=0.5, beta1=0.2, beta2=0.1, c1=1.0, c2=0.5, c5=1.0
            ),
            "c1, c2 = 1, 0.5",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((ArgumentError, TheoryError), match=message):
        call()


def test_edges_of_the_explicit_theorem():
    """Nothing pruned: no error. Everything pruned: the trivial bound."""
    assert theorem_1_explicit([4, 8, 8, 4], delta=0.1, counts=[0]).error == 0
    full = theorem_1_explicit([4, 8, 8, 4], delta=0.1, counts=[64])
    assert full.error == pytest.approx(full.trivial) and full.vacuous
