"""`plan`: what it reads off a model, which theorem it asks, what it says."""

import json
import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory import (
    ConvSetting,
    RandomLayer,
    conv_operator_norm,
    masked_norm_bound,
    plan,
    theorem_1_width,
    theorem_2_explicit,
    theorem_3_explicit,
)
from secateurs.theory.planning.chain import read_chain
from secateurs.theory.pruning.tails.counts import half_spectrum
from theory.monte_carlo import assert_at_least, refuted
from theory.random_networks import filters, linear_errors, prune_drawn


def test_plan_from_a_model_and_by_sparsity():
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 5)
    )
    found = plan(model, sparsity=0.2)
    assert found.widths == (20, 64, 64, 5) and found.sparsity == pytest.approx(
        0.2, abs=1e-3
    )
    assert 0 < found.alpha < 1 and found.printed.theorem == "Theorem 1 as printed"
    assert (
        plan([20, 64, 64, 5], alpha=found.alpha, scale=2.0).error
        > plan([20, 64, 64, 5], alpha=found.alpha).error
    )


def test_plan_says_vacuous_in_plain_words():
    found = plan([784, 64, 64, 64, 64, 10], alpha=0.01, epsilon=0.1)
    assert (
        found.vacuous
        and "vacuous" in str(found)
        and found.binding.startswith("error against a constant")
    )
    random = plan([784, *[256] * 7, 10], alpha=0.01, scheme="random")
    assert (
        random.vacuous
        and random.smallest_width == math.inf
        and 0 < random.smallest_alpha < 0.6
    )
    assert "more than 16777216" in str(random)


def test_what_print_says_and_why_it_does_not_apply():
    found = plan([784, 1024, 1024, 10], alpha=0.5, scheme="random")
    assert (
        not found.vacuous
        and found.printed.vacuous
        and found.largest_alpha == pytest.approx(0.3603, abs=1e-4)
    )
    assert (
        "(vacuous; (3) floor(D_2^(1-alpha)) >= d_2 log d_2: 1024 < needed 7097.83)"
        in str(found)
    )


def test_plan_names_a_finite_width_for_random_pruning(generator):
    """ε = 1 at 95 % for a twentieth of the inner weights: at the width named the bound holds in 200
    networks.
    """
    found = plan([32, 64, 64, 8], sparsity=0.05, epsilon=1.0, scheme="random")
    width = int(found.smallest_width)
    assert found.error > 1.0 and found.probability < 0.95 and 64 < width < 2_000
    assert (
        theorem_2_explicit([32, width, width, 8], alpha=found.alpha, delta=0.05).error
        <= 1.0
    )
    assert (
        theorem_2_explicit(
            [32, width - 1, width - 1, 8], alpha=found.alpha, delta=0.05
        ).error
        > 1.0
    )
    draws = math.floor(width ** (2 - 2 * found.alpha))
    errors = torch.cat(
        [linear_errors([32, width, width, 8], draws, 50, generator) for _ in range(4)]
    )
    assert_at_least(int((errors <= 1.0).sum()), 200, 0.95)
    assert refuted(int((errors <= 1.0 / 60).sum()), 200, 0.95)
    assert (
        f"Smallest sufficient hidden width for an error of 1 with probability 0.95: {width}."
        in str(found)
    )


def test_the_sparsity_of_draws_with_replacement(generator):
    """N draws with replacement hit fewer than N positions. Hoeffding over 2,000 independent shares
    in [0, 1]: further off than the margin with chance 1e-7; the floor of N moves the share by less
    than 1/D.
    """
    found = plan([8, 20, 30, 8], alpha=0.05, scheme="random")
    kept = prune_drawn(
        torch.ones(2_000, 30, 20), math.floor(600**0.95), generator
    ).mean()
    assert (
        abs(1 - float(kept) - found.sparsity)
        < math.sqrt(math.log(2e7) / 4_000) + 1 / 600
    )
    assert found.sparsity < 600**-0.05 - 0.2
    same = plan([8, 20, 30, 8], sparsity=found.sparsity, scheme="random")
    assert same.sparsity == found.sparsity and same.layers == found.layers


def small_conv(**options):
    """Two convolutions on 8×8 maps (with padding), pooling, one linear layer."""
    second = nn.Sequential(nn.Conv2d(16, 16, 3, **options), nn.MaxPool2d(2))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, **options),
        nn.ReLU(),
        second,
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )


def test_plan_reads_convolutions_like_theorem_3():
    """A circular network of equal ranges is the one of `theorem_3_explicit`, up to the units of the
    input and of K.
    """
    model = nn.Sequential(
        *(
            nn.Conv2d(c, 16, 3, padding=1, padding_mode="circular", bias=False)
            for c in (3, 16)
        ),
        nn.Flatten(),
        nn.Linear(16 * 64, 10, bias=False),
    )
    for parameter, fan in zip(
        model.parameters(), (9 * 16, 9 * 16, 16 * 64), strict=True
    ):
        nn.init.constant_(parameter, 1 / math.sqrt(fan))
    found = plan(
        model, alpha=0.3, scheme="filters", input_size=8, delta=0.01, law="uniform"
    )
    claim = theorem_3_explicit(
        ConvSetting(depth=3, channels=16, kernel=3, map_size=8), alpha=0.3, delta=0.01
    )
    assert (
        found.widths == (3, 16, 16, 10)
        and found.printed is None
        and not found.vacuous
    )
    assert found.error / found.trivial == pytest.approx(
        claim.error / claim.trivial, rel=1e-6
    )
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
    assert chain.frequencies == tuple(half_spectrum(size, 9) for size in (18, 12, 4))
    assert (
        chain.widths == (4, 4, 4, 4, 3)
        and chain.taps == (9, 9, 9)
        and chain.last_map == 8
    )
    largest = max(
        float(m.weight.detach().abs().max()) * math.sqrt(9 * 4) for m in convs
    )
    assert chain.scale == pytest.approx(
        max(largest, float(model[-1].weight.detach().abs().max()) * math.sqrt(32))
    )


def zero(module):
    for parameter in module.parameters():
        nn.init.zeros_(parameter)


def test_a_wider_convolution_is_named():
    model, options = (
        small_conv(padding=1),
        {"alpha": 0.5, "scheme": "filters", "input_size": 8, "law": "uniform"},
    )
    wish = 0.35 * plan(model, **options).trivial
    found = plan(model, epsilon=wish, **options)
    assert 16 < found.smallest_width < 10_000 and found.binding.startswith("error")
    assert "filters pruning of 1 inner layer(s), widths 3-16-16-10" in str(found)


@pytest.mark.parametrize("scheme", ["magnitude", "random"])
def test_each_layer_has_its_row(scheme):
    """Shares, errors and probabilities of the layers add up to those of the plan, and whole entries
    are counted.
    """
    found = plan([9, 20, 30, 40, 5], alpha=0.2, scheme=scheme, delta=0.1)
    assert [layer.shape for layer in found.layers] == [
        (20, 9),
        (30, 20),
        (40, 30),
        (5, 40),
    ]
    assert sum(layer.contribution for layer in found.layers) == pytest.approx(
        found.error
    )
    assert sum(layer.failure for layer in found.layers) == pytest.approx(found.delta)
    assert [layer.removed for layer in found.layers] == [
        0,
        math.floor(600**0.8),
        math.floor(1200**0.8),
        0,
    ]
    inner = found.layers[1:-1]
    assert found.sparsity == pytest.approx(
        (600 * inner[0].sparsity + 1200 * inner[1].sparsity) / 1800
    )
    assert all(f"  {layer.name} " in str(found) for layer in found.layers)
    assert (
        json.loads(found.to_json())["layers"][2]["change"] == found.layers[2].change
    )


def test_the_sparsity_reported_is_what_goes():
    """Of nine entries three go at α = 0.4, and one where a fifth is asked for."""
    assert plan([4, 3, 3, 4], alpha=0.4).sparsity == 3 / 9
    found = plan([4, 3, 3, 4], sparsity=0.2)
    assert found.sparsity == 1 / 9 and found.layers[1].removed == 1
    assert plan([4, 3, 3, 4], sparsity=1 / 9).layers[1].removed == 1


def test_what_binds_is_named():
    """The layer that adds most, and the condition of print that asks for the widest network."""
    found = plan([20, 100, 10, 100, 5], alpha=0.2, epsilon=1e-3)
    most = max(found.layers, key=lambda layer: layer.contribution)
    assert found.binding.endswith(
        f"of which {most.name} adds {most.contribution:.4g}"
    )
    assert found.needed == theorem_1_width(
        depth=4, alpha=0.2, epsilon=1e-3, delta=0.05
    )
    assert f"its binding condition: {found.needed.binding}" in str(found)
    random = plan([64] * 4, alpha=0.2, scheme="random", epsilon=0.1)
    assert random.needed.binding == "probability of the pruned part (27)"
    assert (
        f"the conditions as printed allow it up to {random.largest_alpha:.4g}."
        in str(random)
    )
    assert json.loads(
        plan([64] * 4, alpha=0.2, scheme="random", delta=1e-6).to_json()
    )["needed"]["log10"]


def test_the_law_of_a_model_and_of_widths():
    """Widths: uniform. A model: bounded, which costs; and its entries are held against the law."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3)))
    for scheme in ("magnitude", "random"):
        bounded, uniform = (
            plan(model, alpha=0.3, scheme=scheme),
            plan(model, alpha=0.3, scheme=scheme, law="uniform"),
        )
        assert (
            bounded.law,
            uniform.law,
            plan([64] * 4, alpha=0.3, scheme=scheme).law,
        ) == (
            "bounded",
            "uniform",
            "uniform",
        )
        assert (
            bounded.error > uniform.error
            and not bounded.misfits
            and not uniform.misfits
        )
    nn.init.normal_(model[1].weight)
    assert plan(model, alpha=0.3).misfits == ()
    (misfit,) = plan(model, alpha=0.3, law="uniform").misfits
    assert misfit.startswith("1: its entries are not uniform") and misfit in str(
        plan(model, alpha=0.3, law="uniform")
    )
    nn.init.normal_(model[2].weight, mean=0.2)
    assert (
        plan(model, alpha=0.3, scheme="random")
        .misfits[0]
        .startswith("2: its mean is 1")
    )
    assert plan(
        [64] * 4, alpha=0.3, scheme="random", law="bounded"
    ).error == pytest.approx(
        theorem_2_explicit([64] * 4, alpha=0.3, delta=0.05, law="bounded").error
    )


def test_a_lipschitz_constant_may_be_larger_than_the_one_read():
    model = nn.Sequential(
        nn.Linear(8, 8), nn.LeakyReLU(2.0), nn.Linear(8, 8), nn.Linear(8, 8)
    )
    assert plan(model, alpha=0.5, lipschitz=6.0).error == pytest.approx(
        3 * plan(model, alpha=0.5).error
    )
    with pytest.raises(ArgumentError, match="lipschitz = 1 is less than 2"):
        plan(model, alpha=0.5, lipschitz=1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plan([784, 100, 100, 10], alpha=1.5),
            r"alpha = 1\.5 is not in \(0, 1\)",
        ),
        (lambda: plan([784, 0, 100, 10], alpha=0.5), "width d_1 = 0 is below 1"),
        (lambda: plan([784, 100, 10], alpha=0.5), "depth = 2"),
        (lambda: plan([784, 100, 100, 10]), "exactly one of alpha= and sparsity="),
        (lambda: plan([784, 100, 100, 10], alpha=0.5, sparsity=0.5), "exactly one"),
        (
            lambda: plan([784, 100, 100, 10], alpha=0.5, epsilon=-1.0),
            "epsilon = -1 is not positive",
        ),
        (
            lambda: plan([784, 100, 100, 10], alpha=0.5, delta=0.0),
            r"delta = 0 is not in \(0, 1\)",
        ),
        (
            lambda: plan([784, 100, 100, 10], alpha=0.5, scheme="filters"),
            "'magnitude', 'global', 'random'",
        ),
        (
            lambda: plan([784, 100, 100, 10], sparsity=0.7, scheme="random"),
            r"between 0\.0001 and 0\.632 can be asked",
        ),
        (
            lambda: plan(nn.Conv2d(3, 3, 3), alpha=0.5),
            "with linear layers behind them",
        ),
        (lambda: plan(small_conv(), alpha=0.5, scheme="filters"), "give input_size="),
        (
            lambda: plan([3, 8, 8, 2], alpha=0.5, scheme="filters", kernel=3),
            "give input_size=",
        ),
        (
            lambda: plan(
                [3, 8, 8, 2], alpha=0.5, scheme="filters", kernel=9, input_size=8
            ),
            "kernel = 9 is larger",
        ),
        (
            lambda: plan(
                [3, 8, 8, 2], alpha=0.5, scheme="filters", kernel=2.5, input_size=8
            ),
            "kernel = 2.5 is not",
        ),
        (
            lambda: plan(small_conv(), alpha=0.5, scheme="filters", kernel=3),
            "goes with widths",
        ),
        (lambda: plan([8] * 4, alpha=0.5, law="bounded"), "give a model, not widths"),
        (
            lambda: plan(
                nn.Sequential(*[nn.Linear(4, 4)] * 3).apply(zero), alpha=0.5
            ),
            "one weight in 3 places",
        ),
        (
            lambda: plan(
                nn.Sequential(*(nn.Linear(4, 4) for _ in "abc")).apply(zero),
                alpha=0.5,
            ),
            "no range can be read",
        ),
        (
            lambda: plan(small_conv(padding=1), alpha=0.5, input_size=8),
            "give one of 'filters', 'filters-without'",
        ),
        (
            lambda: plan(small_conv(padding=1, padding_mode="reflect"), alpha=0.5),
            "padding_mode = 'reflect'",
        ),
        (
            lambda: plan(nn.Sequential(small_conv(), nn.LayerNorm(10)), alpha=0.5),
            r"LayerNorm that .* \(1\)",
        ),
        (
            lambda: plan(nn.Sequential(nn.MaxPool2d(3, 2), small_conv()), alpha=0.5),
            "MaxPool2d that overlaps",
        ),
        (
            lambda: plan(
                nn.Sequential(nn.Conv2d(3, 5, 3), small_conv()),
                alpha=0.5,
                input_size=9,
            ),
            "not form one chain",
        ),
        (
            lambda: plan(nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 6)), alpha=0.5),
            "do not form one chain",
        ),
        (
            lambda: plan(
                small_conv(padding=1), alpha=0.5, scheme="filters", input_size=11
            ),
            "4 takes 256 features",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((ArgumentError, TheoryError), match=message):
        call()
