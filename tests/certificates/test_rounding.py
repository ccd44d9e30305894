"""Rounding errors: low precision, cancellation, sums of many products."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import secateurs as sc
from certificates.pairs import pair, problem_of
from secateurs.certificates.domain import ball_domain
from secateurs.errors import ArgumentError
from tiny_networks import KINDS, ConvBatchNorm, randomize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rounding_errors_cover_low_precision(kind, dtype, generator):
    make, shape = KINDS[kind]
    model = randomize(make(), generator).to(dtype)
    x = torch.randn(64, *shape, generator=generator).to(dtype)
    problem = problem_of(model, copy.deepcopy(model), x)
    error = problem.rounding_errors(ball_domain(x.double(), 0.0)) / 2  # of one network
    with torch.no_grad():
        gap = (model(x).double() - copy.deepcopy(model).double()(x.double())).abs().flatten(1)
    assert bool((gap <= error).all())
    assert float(error.amax() / gap.amax()) < 1e4


def test_cancellation_in_a_batch_norm_is_seen(generator):
    """β − γ·mean/√(var+ε) of size 1 from terms of size 1e6: the bias errs by 1e6 roundings, not by
    one.
    """
    model = randomize(ConvBatchNorm(), generator)
    x = torch.zeros(1, 2, 5, 5)
    small = problem_of(model, model, x).rounding_errors(ball_domain(x, 0.1)).max()
    with torch.no_grad():
        norm = model.body[1]
        norm.running_mean.fill_(1e6)
        norm.bias.copy_(norm.weight * 1e6 / (norm.running_var + norm.eps).sqrt())
    large = problem_of(model, model, x).rounding_errors(ball_domain(x, 0.1)).max()
    assert large > 1e4 * small


def test_weights_computed_by_unknown_formulas_have_no_rounding_bound(generator):
    model = nn.Sequential(weight_norm(nn.Linear(5, 4)), nn.ReLU(), nn.Linear(4, 2))
    other = copy.deepcopy(model)
    x = torch.zeros(1, 5)
    assert sc.certify(model, other, around=x, radius=0.1, restarts=0).bound < 1e-9
    with pytest.raises(ArgumentError, match="rounding=True has no error bound for the way the"):
        sc.certify(model, other, around=x, radius=0.1, restarts=0, rounding=True)


def test_a_sum_of_n_products_errs_by_n_roundings():
    """One layer, no bias: both networks err by at least n·u·Σ|w||x| and at most (n + 3)·u·Σ|w||x|,
    to first order.
    """
    model = nn.Linear(100, 1, bias=False)
    x = torch.rand(1, 100)
    error = float(problem_of(model, model, x).rounding_errors(ball_domain(x, 0.0)))
    mass = (model.weight.abs().double() @ x.T.double()).item()
    assert 2 * 100 * 2.0**-24 * mass <= error <= 2 * 103 * 2.0**-24 * mass * 1.001


class Inner(nn.Module):
    """Computes a part in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)).half().float())


def test_an_inner_cast_has_no_rounding_bound():
    dense, sparse = Inner(), Inner()
    x = torch.zeros(1, 3)
    with pytest.raises(ArgumentError, match="float32 to float16"):
        sc.certify(dense, sparse, around=x, radius=0.1, rounding=True)
    certificate = sc.certify(dense, sparse, around=x, radius=0.1)
    assert any("counted as exact" in text for text in certificate.assumptions)


def test_overflow_of_half_precision_makes_the_bound_infinite():
    dense, sparse = (m.half() for m in pair())
    x = torch.zeros(1, 3).half()
    kind = {"radius": 0.1, "rounding": True}
    assert math.isfinite(sc.certify(dense, sparse, around=x, **kind).bound)
    for model in (dense, sparse):
        model[0].bias.data.fill_(60000.0)
    assert math.isinf(sc.certify(dense, sparse, around=x, **kind).bound)


def test_integer_constants_keep_their_digits():
    class Thirds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("three", torch.tensor(3))
            self.register_buffer("kernel", torch.tensor([[[[1, 2], [3, 4]]]]))

        def forward(self, x: Tensor) -> Tensor:
            smooth = nn.functional.conv2d(x, self.kernel.to(x.dtype))
            blur = nn.functional.conv2d(x, torch.ones(1, 1, 2, 2) / 4)
            return (smooth + blur) / self.three

    model = Thirds()
    x = torch.rand(1, 1, 3, 3, dtype=torch.float64)
    graph = sc.capture(model, x.float())
    ours = sc.graph.evaluate(graph, [x], graph.state(model))
    kernel = model.kernel.double() + 0.25
    assert torch.allclose(ours, nn.functional.conv2d(x, kernel) / 3, rtol=1e-14, atol=0)
