"""`plan` as a whole: from a model or from widths, by sparsity, with its laws and its errors."""

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory import plan, theorem_2_explicit
from theory.plan.networks import small_conv


def test_plan_from_a_model_and_by_sparsity():
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 5))
    found = plan(model, sparsity=0.2)
    assert found.widths == (20, 64, 64, 5) and found.sparsity == pytest.approx(0.2, abs=1e-3)
    assert 0 < found.alpha < 1 and found.printed.theorem == "Theorem 1 as printed"
    assert (
        plan([20, 64, 64, 5], alpha=found.alpha, scale=2.0).error
        > plan([20, 64, 64, 5], alpha=found.alpha).error
    )


def zero(module):
    for parameter in module.parameters():
        nn.init.zeros_(parameter)


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
        assert bounded.error > uniform.error and not bounded.misfits and not uniform.misfits
    nn.init.normal_(model[1].weight)
    assert plan(model, alpha=0.3).misfits == ()
    (misfit,) = plan(model, alpha=0.3, law="uniform").misfits
    assert misfit.startswith("1: its entries are not uniform") and misfit in str(
        plan(model, alpha=0.3, law="uniform")
    )
    nn.init.normal_(model[2].weight, mean=0.2)
    assert plan(model, alpha=0.3, scheme="random").misfits[0].startswith("2: its mean is 1")
    assert plan([64] * 4, alpha=0.3, scheme="random", law="bounded").error == pytest.approx(
        theorem_2_explicit([64] * 4, alpha=0.3, delta=0.05, law="bounded").error
    )


def test_a_lipschitz_constant_may_be_larger_than_the_one_read():
    model = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(2.0), nn.Linear(8, 8), nn.Linear(8, 8))
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
            r"between 0\.0001 and 0\.632 are possible",
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
            lambda: plan([3, 8, 8, 2], alpha=0.5, scheme="filters", kernel=9, input_size=8),
            "kernel = 9 is larger",
        ),
        (
            lambda: plan([3, 8, 8, 2], alpha=0.5, scheme="filters", kernel=2.5, input_size=8),
            "kernel = 2.5 is not",
        ),
        (
            lambda: plan(small_conv(), alpha=0.5, scheme="filters", kernel=3),
            "goes with widths",
        ),
        (lambda: plan([8] * 4, alpha=0.5, law="bounded"), "give a model, not widths"),
        (
            lambda: plan(nn.Sequential(*[nn.Linear(4, 4)] * 3).apply(zero), alpha=0.5),
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
            lambda: plan(small_conv(padding=1), alpha=0.5, scheme="filters", input_size=11),
            "4 takes 256 features",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((ArgumentError, TheoryError), match=message):
        call()
