"""Theorems 2 and 3, as stated and with explicit constants, against whole simulated networks.

Activations are the identity where the sup-error is to be exact: it is then the norm of a matrix. An
`assert_at_least` is red with chance below 1e-7 if the statement is true (no test makes ten of
them); a `refuted` shows that a smaller bound, or fewer successes, would be red.
"""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory import (
    ConvSetting,
    RandomLayer,
    conv_operator_norm,
    masked_norm_bound,
    theorem_2_explicit,
    theorem_3_explicit,
)
from theory.monte_carlo import assert_at_least, refuted
from theory.networks import SMALL_CONV, SQUARE, batches, stated_2, stated_3
from theory.random_networks import (
    conv_errors,
    filters,
    linear_errors,
    norms,
    prune_drawn,
    pull_back,
    uniform_layer,
)


@pytest.mark.parametrize(("alpha", "error"), [(0.1, "4.22"), (0.25, "2.58"), (0.5, "1.09")])
def test_the_linear_rows_of_the_page_of_guarantees(alpha, error):
    claim = theorem_2_explicit(SQUARE, alpha=alpha, delta=0.05)
    assert (f"{claim.error:.2f}", f"{claim.trivial:.2f}") == (error, "5.44")


@pytest.mark.parametrize(
    ("channels", "outputs", "alpha", "error"),
    [(32, 4, 0.3, "7.40"), (32, 10, 0.3, "7.56"), (64, 4, 0.6, "4.31")],
)
def test_the_filter_rows_of_the_page_of_guarantees(channels, outputs, alpha, error):
    setting = replace(SMALL_CONV, channels=channels, outputs=outputs)
    claim = theorem_3_explicit(setting, alpha=alpha, delta=0.05)
    assert f"{claim.error:.2f}" == error


@pytest.mark.parametrize(("alpha", "slack"), [(0.1, 14), (0.25, 17), (0.5, 24)])
def test_theorem_2_explicit_in_a_thousand_networks(alpha, slack, generator):
    """Four widths of 128; a bound smaller by the factor `slack` is refuted."""
    claim = theorem_2_explicit(SQUARE, alpha=alpha, delta=0.05)
    draws = math.floor((128 * 128) ** (1 - alpha) * (1 + 1e-12))
    errors = batches(1_000, 200, lambda n: linear_errors(SQUARE, draws, n, generator))
    assert not claim.vacuous and claim.probability == 0.95
    assert_at_least(int((errors <= claim.error).sum()), 1_000, claim.probability)
    assert refuted(int((errors <= claim.error / slack).sum()), 1_000, claim.probability)


@pytest.mark.parametrize("law", ["uniform", "bounded"])
def test_theorem_2_explicit_in_deep_networks_with_relu(law, generator):
    """Three inner layers of unequal widths; the true error lies below the sum over layers of true
    norms, and that sum below the claim (a 60th of which is refuted). For "bounded" the entries are
    signs.
    """
    widths, counts, batch = [16, 64, 48, 80, 64, 4], [20, 30, 40], 200
    claim = theorem_2_explicit(widths, counts=counts, delta=0.05, law=law)
    assert not claim.vacuous
    layers = [uniform_layer(a, b, batch, generator) for b, a in pairwise(widths)]
    if law == "bounded":
        layers = [w.sign() / math.sqrt(max(w.shape[1:])) for w in layers]
    pruned = [
        layers[0],
        *[prune_drawn(w, n, generator) for w, n in zip(layers[1:-1], counts, strict=True)],
        layers[-1],
    ]
    full, kept = ([norms(w) for w in stack] for stack in (layers, pruned))
    cut = [norms(w - v) for w, v in zip(layers[1:-1], pruned[1:-1], strict=True)]
    by_layer = [
        full[0] * cut[0] * kept[2] * kept[3],
        full[0] * full[1] * cut[1] * kept[3],
        full[0] * full[1] * full[2] * cut[2],
    ]
    error = full[-1] * sum(by_layer)
    x = torch.nn.functional.normalize(torch.randn(batch, 16, 50, generator=generator), dim=1)
    gap = forward(layers, x) - forward(pruned, x)
    assert float((gap.norm(dim=1).amax(1) / error).max()) <= 1 + 1e-4
    assert_at_least(int((error <= claim.error).sum()), batch, claim.probability)
    assert refuted(int((error <= claim.error / 60).sum()), batch, claim.probability)


def forward(layers, x):
    for w in layers[:-1]:
        x = (w @ x).relu()
    return layers[-1] @ x


@pytest.mark.parametrize(
    ("channels", "alpha", "slack"), [(32, 0.3, 125), (64, 0.3, 170), (64, 0.6, 200)]
)
def test_theorem_3_explicit_in_whole_networks(channels, alpha, slack, generator):
    """300 networks; p = 8, 3×3 filters. A bound smaller by `slack` is refuted: three layers lose a
    factor of 2.5 each, and directions that do not line up the rest.
    """
    setting = replace(SMALL_CONV, channels=channels)
    claim = theorem_3_explicit(setting, alpha=alpha, delta=0.05)
    draws = math.floor(channels ** (2 - alpha))
    errors = batches(300, 50, lambda n: conv_errors(setting, draws, n, generator))
    assert not claim.vacuous
    assert_at_least(int((errors <= claim.error).sum()), 300, 0.95)
    assert refuted(int((errors <= claim.error / slack).sum()), 300, 0.95)


def test_theorem_3_explicit_layer_by_layer(generator):
    """Four layers, two of them pruned, ReLU: the sum over layers of true norms against the claim,
    60 networks.
    """
    setting, batch, draws, p = (
        ConvSetting(depth=4, channels=16, kernel=3, map_size=8, outputs=4),
        60,
        100,
        8,
    )
    claim = theorem_3_explicit(setting, counts=[draws, draws], delta=0.2)
    bound = 1 / (p * math.sqrt(16))
    convs = [bound * filters(batch, 16, c, 3, generator) for c in (3, 16, 16)]
    last = norms(bound * (torch.rand(batch, 4, 16 * 64, generator=generator) * 2 - 1))
    pruned = [prune_drawn(w, draws, generator) for w in convs[1:]]
    first, second, third, kept, cut2, cut3 = (
        torch.tensor([conv_operator_norm(k, p).value for k in w])
        for w in (*convs, pruned[1], convs[1] - pruned[0], convs[2] - pruned[1])
    )
    error = setting.input_norm * first * last * (cut2 * kept + second * cut3)
    assert float(third.min()) > 0
    assert_at_least(int((error <= claim.error).sum()), batch, 0.8)
    assert refuted(int((error <= claim.error / 40).sum()), batch, 0.8)


def test_the_simulated_convolution_is_the_network(generator):
    """pull_back is the adjoint of torch's circular convolution."""
    kernels, rows = (
        filters(2, 3, 4, 3, generator),
        torch.randn(2, 5, 3, 6, 6, generator=generator),
    )
    x = torch.randn(2, 4, 6, 6, generator=generator)
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="circular")
    y = torch.stack(
        [torch.nn.functional.conv2d(m, k) for m, k in zip(padded, kernels, strict=True)]
    )
    torch.testing.assert_close(
        (rows * y[:, None]).sum((2, 3, 4)),
        (pull_back(rows, kernels) * x[:, None]).sum((2, 3, 4)),
    )


def test_the_explicit_versions_are_sharper_than_print_where_both_speak():
    printed = stated_2(2**19, alpha=0.4, scale=1.0)
    explicit = theorem_2_explicit([2**19] * 4, alpha=0.4, delta=1 - printed.probability)
    assert not printed.vacuous and explicit.error < printed.error / 10


def test_widths_at_which_the_explicit_theorem_speaks():
    """α = 0.25 and 99 %: the smallest hidden width of 784-d-d-10 is two digits long. With five
    inner layers: 0.5.
    """
    assert not theorem_2_explicit([784, 64, 64, 10], alpha=0.25, delta=0.01).vacuous
    assert theorem_2_explicit([784] + [1024] * 6 + [10], alpha=0.1, delta=0.01).vacuous
    assert not theorem_2_explicit([784] + [1024] * 6 + [10], alpha=0.5, delta=0.01).vacuous


def test_the_sum_over_layers_and_the_share_of_each_event():
    """Two inner layers: six events with δ/6 each; error L N_1 N_4 (η_2 N_3 + N_2 η_3), network L
    N_1 N_2 N_3 N_4.
    """
    widths, counts = [10, 20, 30, 40, 5], [50, 60]
    claim = theorem_2_explicit(widths, counts=counts, delta=0.06, scale=2.0, lipschitz=3.0)
    layers = [
        RandomLayer(rows=b, columns=a, bound=2 / math.sqrt(max(a, b))) for a, b in pairwise(widths)
    ]
    n1, n2, n3, n4 = (masked_norm_bound(layer, failure=0.01) for layer in layers)
    e2, e3 = (
        masked_norm_bound(layer, draws=n, failure=0.01)
        for layer, n in zip(layers[1:3], counts, strict=True)
    )
    assert claim.error == pytest.approx(3 * n1 * n4 * (e2 * n3 + n2 * e3))
    assert claim.trivial == pytest.approx(3 * n1 * n2 * n3 * n4) and claim.probability == 0.94


def test_edges():
    """Nothing drawn: no error. Everything drawn many times: as large as the network. Errors scale
    with K^l and L.
    """
    assert theorem_2_explicit([4, 8, 8, 4], delta=0.1, counts=[0]).error == 0
    full = theorem_2_explicit([4, 8, 8, 4], delta=0.1, counts=[10**6])
    assert full.error == pytest.approx(full.trivial) and full.vacuous
    one, two = (
        theorem_2_explicit([8] * 5, delta=0.1, counts=[3, 4], scale=k, lipschitz=k)
        for k in (1.0, 2.0)
    )
    assert two.error == pytest.approx(2**4 * 2 * one.error)
    narrow = theorem_3_explicit(
        ConvSetting(depth=3, channels=1, kernel=1, map_size=1), counts=[1], delta=0.1
    )
    assert narrow.vacuous and narrow.error > 0
    assert theorem_3_explicit(SMALL_CONV, counts=[0], delta=0.1).error == 0
    one, two = (theorem_3_explicit(SMALL_CONV, delta=0.1, alpha=0.5, scale=k) for k in (1.0, 2.0))
    assert two.error == pytest.approx(8 * one.error)
    assert theorem_3_explicit(SMALL_CONV, delta=0.1, alpha=0.5, law="bounded").error > one.error


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theorem_2_explicit([4] * 4, delta=0.1), "give either alpha= or counts="),
        (
            lambda: theorem_2_explicit([4] * 4, delta=0.1, counts=[1, 2]),
            "counts has 2 entries; there are 1 inner layers",
        ),
        (
            lambda: theorem_2_explicit([4] * 4, delta=0.1, counts=[-1]),
            "counts holds -1",
        ),
        (lambda: theorem_2_explicit([4] * 3, delta=0.1, counts=[]), "depth = 2"),
        (
            lambda: theorem_2_explicit([4] * 4, delta=1.0, counts=[1]),
            r"delta = 1 is not in \(0, 1\)",
        ),
        (
            lambda: theorem_2_explicit([4] * 4, delta=0.1, counts=[1], scale=-1.0),
            "scale = -1 is not positive",
        ),
        (
            lambda: theorem_2_explicit([4] * 4, delta=0.1, counts=[1], law="cauchy"),
            "law = 'cauchy'",
        ),
        (lambda: theorem_3_explicit(SMALL_CONV, delta=0.1), "give either alpha= or counts="),
        (
            lambda: theorem_3_explicit(SMALL_CONV, delta=0.1, alpha=2.5),
            r"alpha = 2\.5 is not in \(0, 2\)",
        ),
        (
            lambda: theorem_3_explicit(replace(SMALL_CONV, outputs=0), delta=0.1, alpha=0.5),
            "outputs = 0",
        ),
        (
            lambda: theorem_3_explicit(replace(SMALL_CONV, depth=2), delta=0.1, alpha=0.5),
            "depth = 2",
        ),
        (
            lambda: theorem_3_explicit(replace(SMALL_CONV, kernel=9), delta=0.1, alpha=0.5),
            "larger than the 8 x 8 map",
        ),
        (
            lambda: stated_3(
                replace(SMALL_CONV, kernel=9),
                scale=1.0,
                alpha=0.5,
                beta1=0.2,
                beta2=0.2,
            ),
            "larger than the 8 x",
        ),
        (
            lambda: theorem_3_explicit(replace(SMALL_CONV, input_size=2), delta=0.1, alpha=0.5),
            "larger than the 2 x 2 map",
        ),
        (
            lambda: theorem_3_explicit(replace(SMALL_CONV, input_size=0), delta=0.1, alpha=0.5),
            "input_size = 0 is below 1",
        ),
        (
            lambda: theorem_3_explicit(replace(SMALL_CONV, channels=64.5), delta=0.1, alpha=0.5),
            "channels = 64.5 is not a whole",
        ),
        (
            lambda: theorem_2_explicit([4] * 4, delta=0.1, counts=[2.5]),
            "counts holds 2.5",
        ),
        (
            lambda: theorem_2_explicit([4] * 4, delta=0.1, counts=[2], alpha=0.5),
            ", not both",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((ArgumentError, TheoryError), match=message):
        call()
