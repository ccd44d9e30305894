"""Plans for convolutions: maps, paddings, strides, widths."""

import math

import pytest
import torch
from torch import nn

from secateurs.theory import (
    ConvSetting,
    RandomLayer,
    conv_operator_norm,
    masked_norm_bound,
    plan,
    theorem_3_explicit,
)
from secateurs.theory.chain import read_chain
from secateurs.theory.random_matrices import half_spectrum
from theory.monte_carlo import assert_at_least, refuted
from theory.plan.networks import small_conv
from theory.random_networks import filters, prune_drawn


def test_plan_reads_convolutions_like_theorem_3():
    """A circular network of equal ranges is the one of `theorem_3_explicit`, up to the units of the
    input and of K.
    """
    model = nn.Sequential(
        *(nn.Conv2d(c, 16, 3, padding=1, padding_mode="circular", bias=False) for c in (3, 16)),
        nn.Flatten(),
        nn.Linear(16 * 64, 10, bias=False),
    )
    for parameter, fan in zip(model.parameters(), (9 * 16, 9 * 16, 16 * 64), strict=True):
        nn.init.constant_(parameter, 1 / math.sqrt(fan))
    found = plan(model, alpha=0.3, scheme="filters", input_size=8, delta=0.01, law="uniform")
    claim = theorem_3_explicit(
        ConvSetting(depth=3, channels=16, kernel=3, map_size=8), alpha=0.3, delta=0.01
    )
    assert found.widths == (3, 16, 16, 10) and found.printed is None and not found.vacuous
    assert found.error / found.trivial == pytest.approx(claim.error / claim.trivial, rel=1e-6)
    # Entries on ±1/(q√d) here and on ±1/(p√d) there, twice; ‖x‖ ≤ 1 here and ≤ p√d0 there.
    assert found.trivial == pytest.approx(
        claim.trivial * (8 / 3) ** 2 / (8 * math.sqrt(3)), rel=1e-6
    )


@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1},
        {"padding": 0},
        {"padding": "same"},
        {"padding": 1, "stride": 2},
    ],
)
def test_plans_for_zero_padding_and_strides_hold(options, generator):
    """What is removed from the inner layer, as torch convolves it, in 60 draws at 80 %; a fifth is
    refuted.
    """
    stride, pad = options.get("stride", 1), 0 if options["padding"] == 0 else 1
    inner = (10 + 2 * pad - 3) // stride + 1
    last = (inner + 2 * pad - 3) // stride + 1
    convs = (
        nn.Conv2d(3, 16, 3, bias=False, **options),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, bias=False, **options),
    )
    model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(16 * last**2, 4))
    found = plan(
        model,
        alpha=0.3,
        scheme="filters",
        input_size=10,
        delta=0.2,
        scale=1.0,
        law="uniform",
    )
    layer = RandomLayer(
        rows=16,
        columns=16,
        bound=1 / 12,
        taps=9,
        frequencies=half_spectrum(inner + 2 * pad, 9),
    )
    assert found.layers[1].norm == masked_norm_bound(layer, failure=0.2 / 3)
    bound = found.layers[1].change
    w = filters(60, 16, 16, 3, generator) / 12
    cut = w - prune_drawn(w, math.floor(16**1.7), generator)
    true = torch.tensor(
        [conv_operator_norm(k, inner, padding=pad, stride=stride).lower for k in cut]
    )
    assert_at_least(int((true <= bound).sum()), 60, 0.8)
    assert refuted(int((true <= bound / 5).sum()), 60, 0.8)
    twice = plan(
        model,
        alpha=0.3,
        scheme="filters",
        input_size=(10, 10),
        delta=0.2,
        scale=2.0,
        law="uniform",
    )
    assert twice.error == pytest.approx(8 * found.error)


def test_the_maps_that_are_read():
    """Frequencies of the padded map (circular: of the map itself); sizes behind strides, pools and
    dilation.
    """
    shapes = (
        {"padding": 1, "stride": 2},
        {"padding": 2, "dilation": 2},
        {"padding": 1, "padding_mode": "circular"},
    )
    convs = [nn.Conv2d(4, 4, 3, **options) for options in shapes]
    model = nn.Sequential(
        *convs[:2],
        nn.MaxPool2d(2),
        convs[2],
        nn.AvgPool2d((1, 2)),
        nn.Flatten(),
        nn.Linear(32, 3),
    )
    chain = read_chain(model, (16, 16))
    # 16 -> 8 -> 8 -> pooled 4 -> 4 -> 4×2
    assert [layer.frequencies for layer in chain.layers[:3]] == [
        half_spectrum(size, 9) for size in (18, 12, 4)
    ]
    assert chain.widths == (4, 4, 4, 4, 3) and chain.convs == 3 and chain.last_map == 8
    assert [layer.taps for layer in chain.layers] == [9, 9, 9, 1]
    largest = max(float(m.weight.detach().abs().max()) * math.sqrt(9 * 4) for m in convs)
    assert max(layer.scale for layer in chain.layers) == pytest.approx(
        max(largest, float(model[-1].weight.detach().abs().max()) * math.sqrt(32))
    )


def test_a_wider_convolution_is_named():
    model, options = (
        small_conv(padding=1),
        {"alpha": 0.5, "scheme": "filters", "input_size": 8, "law": "uniform"},
    )
    wish = 0.35 * plan(model, **options).trivial
    found = plan(model, epsilon=wish, **options)
    assert 16 < found.smallest_width < 10_000 and found.binding.startswith("error")
    assert "filters pruning of 1 inner layer(s), widths 3-16-16-10" in str(found)
