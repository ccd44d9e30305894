"""`certify`: what each method assumes and proves, how they relate, and what is refused."""

import copy
import math

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import TheoryError
from secateurs.proof import METHODS
from tiny_networks import (
    ConvBatchNorm,
    fully_connected,
    pruned,
    randomize,
    rounded,
    tuned,
)

SIGN_METHODS = {"path-metric", "path-metric-per-output", "input-weighted"}
# Beside `linear` on small networks.
LEFT_OUT = {"zonotope"}


def chain(*weights):
    """x ↦ w_L relu(… relu(w_1 x)) on one number, without biases."""
    layers = []
    for w in weights:
        layers += [nn.Linear(1, 1, bias=False), nn.ReLU()]
        nn.init.constant_(layers[-2].weight, w)
    return nn.Sequential(*layers[:-1])


def test_opposite_signs_have_one_lifting_and_two_functions():
    """ReLU(x) and −ReLU(−x): Φ is equal, the functions are not. The sign check must keep Theorem
    3.1 away.
    """
    one, two = chain(1.0, 1.0), chain(-1.0, -1.0)
    box = (torch.tensor([[-1.0]]), torch.tensor([[1.0]]))
    assert (
        math.prod(p.item() for p in one.parameters())
        == math.prod(p.item() for p in two.parameters())
        == 1.0
    )
    cert = sc.certify(one, two, box=box, methods=METHODS.names())
    assert set(cert.skipped) == SIGN_METHODS | LEFT_OUT
    assert all(
        "θθ' ≥ 0 fails for 2 effective parameter(s)" in cert.skipped[name] for name in SIGN_METHODS
    )
    assert cert.lower_bound == pytest.approx(1.0, rel=1e-12) and cert.lower_bound <= 1.0
    assert 1.0 <= cert.bound < 2.1
    with pytest.raises(
        TheoryError,
        match="no method applies here: path-metric: θθ' ≥ 0 fails for 2",
    ):
        sc.certify(one, two, box=box, methods="path-metric")


def test_an_equality_case_of_theorem_3_1():
    """One path, a^d against b^d, x = x_0 e_0 ≥ 1: the bound is attained."""
    cert = sc.certify(
        chain(3.0, 3.0, 3.0),
        chain(2.0, 2.0, 2.0),
        box=(torch.zeros(1, 1), torch.full((1, 1), 2.0)),
        rounding=False,
        methods=METHODS.names(),
    )
    assert cert.bounds["path-metric"] == 2 * (27 - 8) == cert.lower_bound
    assert cert.bound == cert.lower_bound
    assert cert.tightness == 1.0


def test_the_path_metric_method_is_the_path_metric(dense, generator, x):
    sparse = pruned(dense, generator)
    cert = sc.certify(
        dense,
        sparse,
        around=0.1 * x,
        radius=0.1,
        rounding=False,
        methods="path-metric",
    )
    assert cert.bound == pytest.approx(float(sc.path_metric(dense, sparse, x)), rel=1e-12)


def test_auto_is_the_minimum_per_output(dense, generator, x):
    sparse = pruned(dense, generator)
    single = [
        sc.certify(dense, sparse, around=x, radius=0.1, methods=m, restarts=0).per_box
        for m in METHODS.names()
        if m not in LEFT_OUT
    ]
    auto = sc.certify(dense, sparse, around=x, radius=0.1, restarts=0)
    assert torch.equal(auto.per_box, torch.stack(single).amin(dim=0))
    assert auto.bound == float(auto.balls.max()) == float(auto.per_output.max())
    assert auto.method == min(auto.bounds, key=auto.bounds.get)


def test_bounds_grow_with_the_radius(dense, generator, x):
    sparse = pruned(dense, generator)
    bounds = [
        sc.certify(dense, sparse, around=x, radius=r, restarts=0).bound
        for r in (0.0, 0.01, 0.1, 1.0)
    ]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("change", ["rounded", "tuned"])
def test_rounding_and_fine_tuning_are_covered_without_signs(change, dense, generator, x):
    other = rounded(dense, 8) if change == "rounded" else tuned(dense, generator, 0.3)
    cert = sc.certify(dense, other, around=x, radius=0.05, methods=METHODS.names())
    assert cert.lower_bound <= cert.bound
    assert set(cert.skipped) - LEFT_OUT == (SIGN_METHODS if change == "tuned" else set())
    assert any("no sign assumption" in text for text in cert.assumptions) == (change == "tuned")


def test_pruning_a_batch_norm_offset_can_turn_an_effective_sign(generator):
    """β → 0 leaves −γ·mean/√(var+ε), of the other sign: seen on the folded parameters, not on the
    stored ones.
    """
    dense = randomize(ConvBatchNorm(), generator)
    with torch.no_grad():
        norm = dense.body[1]
        norm.bias[0] = 2 * norm.weight[0] * norm.running_mean[0] / norm.running_var[0].sqrt()
    other = copy.deepcopy(dense)
    with torch.no_grad():
        other.body[1].bias[0] = 0.0
    ball = {"around": torch.zeros(1, 2, 5, 5), "radius": 0.1, "restarts": 0}
    cert = sc.certify(dense, other, methods=METHODS.names(), **ball)
    assert set(cert.skipped) == SIGN_METHODS | LEFT_OUT
    assert "body.1" in cert.skipped["path-metric"]


def test_bounds_do_not_move_under_rescaling(generator, x):
    """Multiply what enters a hidden neuron by λ and divide what leaves it, in both networks
    alike.
    """
    dense = randomize(fully_connected().double(), generator)
    sparse = pruned(dense, generator)
    factors = 2.0 ** torch.arange(-3, 4, dtype=torch.float64)
    named = sorted(set(METHODS.names()) - {"linear", "affine"})
    asked = {"around": x, "radius": 0.1, "restarts": 0, "methods": named}
    before = sc.certify(dense, sparse, **asked)
    with torch.no_grad():
        for model in (dense, sparse):
            model[0].weight.mul_(factors.unsqueeze(1))
            model[0].bias.mul_(factors)
            model[2].weight.div_(factors)
    after = sc.certify(dense, sparse, **asked)
    for name in named:
        assert after.bounds[name] == pytest.approx(before.bounds[name], rel=1e-9), name


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_norms_over_the_outputs(norm, dense, generator, x):
    sparse = pruned(dense, generator)
    cert = sc.certify(dense, sparse, around=x, radius=0.1, norm=norm)
    point = cert.worst_input.unsqueeze(0)
    with torch.no_grad():
        gap = (dense.double()(point) - sparse.double()(point)).flatten()
    assert cert.lower_bound == pytest.approx(
        float(torch.linalg.vector_norm(gap, ord=norm)), rel=1e-9
    )
    assert (
        cert.lower_bound
        <= cert.bound
        <= float(torch.linalg.vector_norm(cert.per_box, ord=norm, dim=1).max()) + 1e-12
    )


def test_the_theorem_bounds_every_norm_at_once(generator):
    """Theorem 3.1 bounds ‖·‖₁ by the same number as ‖·‖_∞: the sum over outputs is not paid per
    output.
    """
    dense = randomize(fully_connected(), generator)
    sparse = pruned(dense, generator)
    bounds = [
        sc.certify(
            dense,
            sparse,
            around=torch.zeros(1, 5),
            radius=1.0,
            norm=q,
            methods="path-metric",
            restarts=0,
        ).bound
        for q in (1, 2, math.inf)
    ]
    assert bounds[0] == pytest.approx(bounds[2], rel=1e-12)
    assert bounds[1] == pytest.approx(bounds[2], rel=1e-12)


def test_float32_rounding_is_a_term_of_its_own(dense, generator, x):
    sparse = pruned(dense, generator)
    plain = sc.certify(dense, sparse, around=x, radius=0.1, rounding=False, restarts=0)
    own = sc.certify(dense, sparse, around=x, radius=0.1, rounding="auto", restarts=0)
    full = sc.certify(dense, sparse, around=x, radius=0.1, rounding=True, restarts=0)
    assert plain.bound <= own.bound <= plain.bound * (1 + 1e-9)
    assert own.bound + 1e-7 < full.bound < own.bound + 1e-3
    assert "float32" in full.assumptions[2] and "Winograd" in full.assumptions[2]
    assert plain.rounding == "not covered"


def test_memory_is_bounded_by_skipping(dense, generator, x):
    cert = sc.certify(dense, pruned(dense, generator), around=x, radius=0.1, effort=10, restarts=0)
    assert "effort is 1.0e+01; say effort= to allow more" in cert.skipped["linear"]
    little = sc.certify(
        dense, pruned(dense, generator), around=x, radius=0.5, effort=700, restarts=0
    )
    assert "linear" in little.skipped or any("kept" in text for text in little.assumptions)


def test_a_frozen_value():
    dense = chain(2.0, 1.0)
    sparse = chain(1.5, 1.0)
    cert = sc.certify(
        dense,
        sparse,
        box=(torch.tensor([[-1.0]]), torch.tensor([[2.0]])),
        rounding=False,
        methods=METHODS.names(),
    )
    assert cert.bounds == {
        "path-metric": 1.0,
        "path-metric-per-output": 1.0,
        "input-weighted": 1.0,
        "two-stream": 1.0,
        "interval": 1.0,
        "affine": 1.0,
        "linear": 1.0,
    }
    assert cert.lower_bound == pytest.approx(1.0, rel=1e-12) and cert.lower_bound <= 1.0
