"""Rounding errors: low precision, cancellation, sums of many products."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, weight_norm

import secateurs as sc
from proof.pairs import pair, problem_of
from secateurs.errors import ArgumentError, UnsupportedOperation
from secateurs.proof.domain import ball_domain
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
    model = nn.Sequential(orthogonal(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))
    other = copy.deepcopy(model)
    asked = {"around": torch.zeros(1, 4), "radius": 0.1, "restarts": 0}
    assert sc.certify(model, other, **asked, rounding=False).bound == 0
    for rounding in ("auto", True):
        with pytest.raises(
            UnsupportedOperation, match="a weight is computed by aten.*Make it a pl"
        ):
            sc.certify(model, other, **asked, rounding=rounding)


def test_the_rounding_of_folded_batch_norms_is_in_the_bound():
    """A shift of 1e-6 beside β − 300·(−1e8)/√(1 + ε) is lost in float64; behind it stands 1e6."""
    f = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1), nn.ReLU(), nn.Linear(1, 1)).eval()
    with torch.no_grad():
        for tensor, value in (
            (f[0].weight, 1.0),
            (f[0].bias, 0.0),
            (f[1].running_mean, -1e8),
            (f[1].weight, 300.0),
            (f[3].weight, 1e6),
            (f[3].bias, 0.0),
        ):
            tensor.fill_(value)
    g = copy.deepcopy(f)
    with torch.no_grad():
        g[1].bias.fill_(1e-6)
    true = float(g[1].bias.detach()) * 1e6
    for dtype in (torch.float32, torch.float64):
        for rounding in ("auto", True):
            box = (torch.zeros(1, 1), torch.ones(1, 1))
            cert = sc.certify(f.to(dtype), g.to(dtype), box=box, rounding=rounding)
            assert cert.bound >= true


def test_one_network_of_computed_weights_is_itself(generator):
    model = nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.BatchNorm1d(4), nn.ReLU()).eval()
    box = (torch.zeros(1, 3), torch.ones(1, 3))
    assert sc.certify(model, copy.deepcopy(model), box=box).bound == 0


def cancelling() -> tuple[nn.Module, nn.Module]:
    """1e17 relu(x₁) + relu(x₂) − 1e17 relu(x₁), which float64 evaluates to 0; and twice the same
    function, written as 1 and 1 or as 21 and −19.
    """
    f = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 1, bias=False))
    f = f.double().eval()
    with torch.no_grad():
        f[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))
        f[2].weight.copy_(torch.tensor([[1e17, 1.0, -1e17, 1.0]]))
    g = copy.deepcopy(f)
    with torch.no_grad():
        g[2].weight[0, 1] += 20
        g[2].weight[0, 3] -= 20
    return f, g


@pytest.mark.parametrize("methods", ["two-stream", "interval", "auto"])
def test_what_float64_makes_of_equal_functions_refutes_nothing(methods):
    f, g = cancelling()
    box = (torch.tensor([[0.9, 7.0]]), torch.tensor([[1.1, 9.0]]))
    cert = sc.certify(f, g, box=box, methods=methods, target=5.0, seconds=3)
    assert cert.answer != "refuted" and cert.lower_bound == 0


def test_a_class_that_float64_gets_wrong_is_not_certified():
    """f says 0.6 against 0.5, and float64 says 0 against 0.5; g says 0.3."""
    f = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)).double().eval()
    with torch.no_grad():
        f[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
        f[2].weight.copy_(torch.tensor([[1e17, 1.0, -1e17], [0.0, 0.0, 0.0]]))
        f[2].bias.copy_(torch.tensor([0.0, 0.5]))
    g = copy.deepcopy(f)
    with torch.no_grad():
        g[2].weight[0, 1] = 0.5
    x = torch.tensor([[1.0, 0.6]]).double()
    cert = sc.certify(f, g, around=x, radius=1e-9)
    assert not bool(cert.certified(x).any()) and "certifies 0 of 1" in cert.verdict


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
