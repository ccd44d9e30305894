"""How errors of layers add up: exactly on a chain of numbers, as a bound on random networks with
biases.
"""

import math
from itertools import pairwise

import pytest
import torch

from secateurs.errors import ArgumentError
from secateurs.theory import (
    Between,
    ConvSetting,
    LayerBound,
    theorem_1_explicit,
    theorem_1_global,
    theorem_2_explicit,
    theorem_3_explicit,
    theorem_3_magnitude,
)
from secateurs.theory.guarantee import telescope


def links(norms, changes, kept):
    layers = [LayerBound(norm=n, change=c) for n, c in zip(norms, changes, strict=True)]
    return layers, list(kept)


def test_a_chain_of_positive_numbers_attains_the_bound():
    """x -> 2x + 3 -> 5·(6 - 6) … : width one, positive weights and biases, layer 2 loses all of its
    6.
    """
    layers = links((2.0, 6.0, 5.0), (0.0, 6.0, 0.0), (2.0, 0.0, 5.0))
    between = (Between(), Between(bias=3.0), Between(bias=7.0), Between(bias=11.0))
    bounds, moved = telescope((1, 1, 1, 1), *layers, between, reach=1.0)
    outputs = [5 * (w * (2 * 1.0 + 3) + 7) + 11 for w in (6, 0)]
    assert sum(b.contribution for b in bounds) == outputs[0] - outputs[1] == 150
    assert moved == 5 * 6 * 2
    (_, plain, _), _ = telescope((1, 1, 1, 1), *layers, None, reach=1.0)
    assert plain.contribution == 60 < 150


def test_lipschitz_constants_stand_where_the_functions_do():
    """σ_1 doubles, σ_2 triples, what precedes layer 1 and follows layer 3 multiplies by 5 and by
    7.
    """
    layers = links((2.0, 6.0, 5.0), (0.0, 6.0, 0.0), (2.0, 0.0, 5.0))
    between = [Between(lipschitz=c) for c in (5.0, 2.0, 3.0, 7.0)]
    bounds, moved = telescope((1, 1, 1, 1), *layers, between, reach=0.5)
    assert sum(b.contribution for b in bounds) == moved == 0.5 * 5 * 2 * 2 * 6 * 3 * 5 * 7


def norm(matrix):
    return float(torch.linalg.matrix_norm(matrix, 2))


@pytest.mark.parametrize(
    "activation",
    [torch.relu, torch.tanh, torch.sigmoid, lambda x: 3 * torch.sin(x) + 2],
)
def test_networks_with_biases_stay_within(activation, generator):
    """Two inner layers changed at random; the largest difference at 2,000 points of the unit
    sphere.
    """
    widths = (6, 9, 12, 8, 4)
    draw = [
        torch.randn(b, a, generator=generator).double() / math.sqrt(a) for a, b in pairwise(widths)
    ]
    biases = [torch.randn(b, generator=generator).double() for b in widths[1:]]
    changed = [
        draw[0],
        *(w * (torch.rand(w.shape, generator=generator) < 0.7) for w in draw[1:3]),
        draw[3],
    ]
    x = torch.nn.functional.normalize(torch.randn(2_000, 6, generator=generator).double())
    outputs = []
    for weights in (draw, changed):
        y = x
        for w, b in zip(weights[:-1], biases[:-1], strict=True):
            y = activation(y @ w.T + b)
        outputs.append(y @ weights[-1].T + biases[-1])
    bounds, _ = telescope(
        widths,
        *links(
            [max(norm(a), norm(b)) for a, b in zip(draw, changed, strict=True)],
            [norm(a - b) for a, b in zip(draw, changed, strict=True)],
            map(norm, changed),
        ),
        [
            Between(),
            *(Between(lipschitz=3.0, bias=float(activation(b).norm())) for b in biases),
        ],
        reach=1.0,
    )
    assert (
        0
        < float((outputs[0] - outputs[1]).norm(dim=1).max())
        <= sum(b.contribution for b in bounds)
    )


@pytest.mark.parametrize("theorem", [theorem_1_explicit, theorem_2_explicit])
def test_the_parts_of_the_theorems_add_up(theorem):
    found = theorem([10, 20, 30, 40, 5], counts=[50, 60], delta=0.06, scale=2.0, lipschitz=3.0)
    assert found.error == pytest.approx(sum(layer.contribution for layer in found.layers))
    assert sum(layer.failure for layer in found.layers) == pytest.approx(0.06)
    assert [layer.removed for layer in found.layers] == [0, 50, 60, 0]
    assert math.prod(layer.norm for layer in found.layers) * 3 == pytest.approx(found.trivial)
    biased = theorem(
        [10, 20, 30, 40, 5],
        counts=[50, 60],
        delta=0.06,
        between=[Between(bias=1.0)] * 5,
    )
    plain = theorem([10, 20, 30, 40, 5], counts=[50, 60], delta=0.06)
    assert biased.error > 1.5 * plain.error and biased.trivial == plain.trivial


def test_one_between_for_each_layer_and_the_input():
    with pytest.raises(
        ArgumentError,
        match="between has 3 entries; expected 4, one for the input and one for each",
    ):
        theorem_2_explicit([4] * 4, counts=[1], delta=0.1, between=[Between()] * 3)


WIDTHS = [10, 20, 30, 25, 40, 5]
CONVS = ConvSetting(depth=6, channels=8, kernel=3, map_size=8)
MOST = {
    "magnitude": (theorem_1_explicit, WIDTHS, {"counts": [600, 750, 999]}),
    "signs": (
        theorem_1_explicit,
        WIDTHS,
        {"counts": [600, 750, 999], "law": "bounded", "thresholds": [1.0] * 3},
    ),
    "global": (theorem_1_global, WIDTHS, {"counts": [600, 750, 999]}),
    "random": (theorem_2_explicit, WIDTHS, {"counts": [600, 750, 999]}),
    "without": (
        theorem_2_explicit,
        WIDTHS,
        {"counts": [600, 750, 999], "replacement": False},
    ),
    "filters": (theorem_3_explicit, CONVS, {"counts": [60] * 4}),
    "smallest filters": (theorem_3_magnitude, CONVS, {"counts": [60] * 4}),
}


@pytest.mark.parametrize("theorem, network, options", MOST.values(), ids=MOST)
def test_no_error_exceeds_what_the_sizes_of_both_networks_allow(theorem, network, options):
    found = theorem(network, delta=0.01, **options)
    assert found.error <= 2 * found.trivial * (1 + 1e-12)
    # The sum over the layers, which the limit cuts short, was larger.
    assert found.vacuous and found.error > 1.9 * found.trivial
    assert found.error == pytest.approx(sum(part.contribution for part in found.layers))
    # Fewer entries, the same chances: below the limit the sum stands as it was.
    little = theorem(
        network,
        delta=0.01,
        **options | {"counts": [0, 3, 0, 0][: len(options["counts"])]},
    )
    assert 0 < little.error <= little.trivial * 1.001


def test_the_limit_with_biases_and_infinite_changes():
    """Sizes count the biases in front of a layer; nothing but the share of the layers is lost."""
    layers = links((1.0, 2.0, 3.0, 1.0), (0.0, math.inf, 0.5, 0.0), (1.0, 2.0, 3.0, 1.0))
    behind = [
        Between(),
        Between(bias=4.0),
        Between(lipschitz=2.0),
        Between(),
        Between(),
    ]
    bounds, moved = telescope((1,) * 5, *layers, behind, reach=1.0)
    # 2 L N R = 2 · 2 · 2 · 5 = 40 behind layer 2. Layer 3 makes 3 · 40 + 0.5 · 20 of it, and is
    # limited to 2 · 3 · 20, which both layers share as they did.
    assert [b.contribution for b in bounds] == pytest.approx(
        [0.0, 120 * 120 / 130, 120 * 10 / 130, 0.0]
    )
    assert moved == 1 * 2 * 2 * 3


def test_the_trivial_bound_once_would_be_too_little():
    """Two pruned layers: each matrix, what is kept and what goes have norm at most N, and yet the
    product moves by more than N_3 N_2.
    """
    whole = [
        torch.tensor([[-1.0, 1.0], [-1.0, -1.0]]).double(),
        torch.tensor([[-2.0, -1.0], [2.0, -2.0]]).double(),
    ]
    kept = [
        torch.tensor([[-1.0, 0.0], [-1.0, 0.0]]).double(),
        torch.tensor([[0.0, 0.0], [0.0, -2.0]]).double(),
    ]
    n2, n3 = (max(norm(w), norm(k), norm(w - k)) for w, k in zip(whole, kept, strict=True))
    moved = norm(whole[1] @ whole[0] - kept[1] @ kept[0])
    assert 1.2 * n2 * n3 < moved <= 2 * n2 * n3
