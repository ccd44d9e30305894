"""Theorem 5.1 and its comparison: values by hand, applicability per row, words for nothing."""

import math

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, DomainError
from secateurs.theory.generalization import half_log2
from tiny_networks import KINDS, randomize

GIVEN = {"samples": 100, "input_bound": 2.0, "loss_lipschitz": 3.0}
RATE = 3.0 * 2.0 / math.sqrt(100)


def linear(inputs, *widths, bias=False):
    layers = []
    for a, b in zip((inputs, *widths), widths, strict=False):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model


def applying(bounds):
    return {row.name for row in bounds.rows if row.applies}


def test_one_layer_by_hand():
    bounds = sc.generalization_bounds(linear(3, 1), torch.zeros(1, 3), **GIVEN)
    norm = 1.5
    assert bounds["theorem 5.1"].value == pytest.approx(544 * RATE * 1 * math.sqrt(3) * norm)
    assert bounds["linear regression"].value == pytest.approx(RATE * norm * math.sqrt(math.log(3)))
    assert bounds["DAG without bias"].value == pytest.approx(
        RATE * norm * 2 * math.sqrt(math.log(3))
    )
    assert bounds["layered, product of norms"].value == pytest.approx(
        RATE * 1.5 * math.sqrt(1 + math.log(3))
    )
    assert bounds["layered, path norm"].value == pytest.approx(
        RATE * norm * math.sqrt(1 + math.log(3))
    )
    assert bounds["DAG with biases and pools"].value == pytest.approx(
        RATE * norm * math.sqrt(math.log(3))
    )
    assert applying(bounds) == {r.name for r in bounds.rows} - {"two layers"}
    assert bounds["two layers"].reason == "needs depth 2, this one has 1"


def test_two_layers_with_one_output():
    bounds = sc.generalization_bounds(linear(3, 4, 1), torch.zeros(1, 3), **GIVEN)
    norm = 4 * 0.5 * 1.5
    assert bounds["two layers"].value == pytest.approx(RATE * norm * math.sqrt(math.log(3)))
    assert bounds["theorem 5.1"].value == pytest.approx(544 * RATE * 2 * math.sqrt(16) * norm)
    assert bounds["layered, product of norms"].value == pytest.approx(
        RATE * 1.5 * 2 * math.sqrt(2 + math.log(3))
    )


def test_biases_and_outputs_leave_two_rows():
    for model in (linear(3, 4, 2), linear(3, 4, 1, bias=True)):
        bounds = sc.generalization_bounds(model, torch.zeros(1, 3), **GIVEN)
        assert applying(bounds) == {
            "theorem 5.1",
            "theorem G.2, kinds of neurons",
            "DAG with biases and pools",
        }
    assert bounds["DAG without bias"].reason == "needs a network without biases"


@pytest.mark.parametrize(("kind", "depth", "pool"), [("max-pool", 4, 4), ("residual", 3, 1)])
def test_depth_and_pools_are_read_from_the_graph(kind, depth, pool, generator):
    make, shape = KINDS[kind]
    model = randomize(make(), generator)
    bounds = sc.generalization_bounds(model, torch.zeros(1, *shape), **GIVEN)
    facts = bounds.facts
    assert (facts.depth, facts.largest_pool, facts.outputs) == (depth, pool, 3)
    assert facts.inputs == math.prod(shape)
    assert facts.parameters == sum(p.numel() for p in model.parameters())
    norm = float(sc.path_norm(model, torch.zeros(1, *shape)))
    value = RATE * norm * math.sqrt(depth * math.log(pool) + math.log(facts.inputs * 3))
    assert bounds["DAG with biases and pools"].value == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "shape", "text", "rest"),
    [
        (
            lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)),
            (1, 6, 6),
            "18 kinds of neurons",
            True,
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2, padding=1)),
            (1, 5, 5),
            "MaxPool2d",
            True,
        ),
        (
            lambda: nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU(0.2), nn.Linear(2, 1)),
            (3,),
            "slope 0.2",
            False,
        ),
    ],
)
def test_theorem_51_refuses_by_name_and_the_rest_is_offered(model, shape, text, rest):
    bounds = sc.generalization_bounds(model(), torch.zeros(1, *shape), **GIVEN)
    refused, offered = bounds["theorem 5.1"], bounds["theorem G.2, kinds of neurons"]
    assert not refused.applies and text in refused.reason and refused.value is None
    assert offered.applies == rest
    if rest:
        norm, p = bounds.facts.log2_norm, bounds.facts.partition
        least = RATE * 2**norm * math.sqrt(p.coordinates)
        assert least < offered.value <= 544 * least * p.width


def test_a_leaky_network_is_refused_by_every_row():
    model = nn.Sequential(
        nn.Linear(3, 2, bias=False), nn.LeakyReLU(0.2), nn.Linear(2, 1, bias=False)
    )
    assert applying(sc.generalization_bounds(model, torch.zeros(1, 3), **GIVEN)) == set()


def test_a_logarithm_of_one_is_no_bound():
    bounds = sc.generalization_bounds(linear(1, 1), torch.zeros(1, 1), **GIVEN)
    for name in (
        "linear regression",
        "DAG without bias",
        "DAG with biases and pools",
    ):
        assert "ln 1 = 0 bounds nothing" in bounds[name].reason
    assert bounds["layered, path norm"].value > 0


def test_a_bound_below_one_input_counts_as_one():
    small = sc.generalization_bounds(
        linear(3, 1), torch.zeros(1, 3), samples=4, input_bound=0.1, loss_lipschitz=1
    )
    assert small.facts.input_bound == 1.0


def test_words():
    vacuous = sc.generalization_bounds(linear(3, 1), torch.zeros(1, 3), **GIVEN)[
        "theorem 5.1"
    ].verdict
    assert vacuous == "vacuous: 848, yet the loss never exceeds 1; about 1e8 samples would help"
    options = {**GIVEN, "samples": 10**12}
    useful = sc.generalization_bounds(linear(3, 1), torch.zeros(1, 3), **options)[
        "theorem 5.1"
    ].verdict
    assert useful.startswith(
        "says something: the gap between test and training loss is at most 0.00848"
    )
    # Whatever the rate: with an unknown constant in front, a row never claims to say something.
    for samples in (100, 10**12):
        rows = sc.generalization_bounds(
            linear(3, 1), torch.zeros(1, 3), **GIVEN | {"samples": samples}
        ).rows
        unknown = [row for row in rows if row.applies and not row.constant]
        assert unknown and all(row.verdict.startswith("undecided") for row in unknown)


def test_a_bound_beyond_float64_keeps_its_logarithm():
    deep = nn.Sequential(
        *[layer for _ in range(200) for layer in (nn.Linear(8, 8), nn.ReLU())][:-1]
    )
    for parameter in deep.parameters():
        nn.init.constant_(parameter, 8.0)
    bounds = sc.generalization_bounds(deep, torch.zeros(1, 8), **GIVEN)
    row = bounds["theorem 5.1"]
    assert row.value == math.inf
    assert math.isfinite(row.log2) and row.log2 > 1024
    assert "2^" in row.verdict
    assert bounds.__rich__().row_count == len(bounds.rows)


def test_weights_in_double_precision_make_no_warning(recwarn):
    """float64 weights are read as they are, and torch warns once where a number is made of one
    that is attached to autograd.
    """
    model = linear(3, 1).double()
    sc.generalization_bounds(model, torch.zeros(1, 3).double(), **GIVEN)
    assert not [w for w in recwarn if "requires_grad" in str(w.message)]
    graph = sc.capture(model, torch.zeros(1, 3).double())
    with torch.no_grad():
        assert not any(t.requires_grad for t in graph.state(model).values())
    assert all(t.requires_grad for t in graph.state(model).values())


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"samples": 0}, ArgumentError, "samples=0"),
        ({"input_bound": -1.0}, DomainError, "input_bound=-1"),
        ({"input_bound": math.inf}, DomainError, "input_bound=inf"),
        ({"loss_lipschitz": 0}, ArgumentError, "loss_lipschitz=0: must be positive"),
        ({"loss_range": -1}, ArgumentError, "loss_range=-1"),
    ],
)
def test_errors(change, error, text):
    with pytest.raises(error, match=text):
        sc.generalization_bounds(linear(3, 1), torch.zeros(1, 3), **{**GIVEN, **change})
    with pytest.raises(ArgumentError, match="there is no row"):
        sc.generalization_bounds(linear(3, 1), torch.zeros(1, 3), **GIVEN)["5.1"]


def test_logarithms_of_zero_are_minus_infinity_and_no_error():
    assert half_log2(0.0) == -math.inf and half_log2(16.0) == 2.0
