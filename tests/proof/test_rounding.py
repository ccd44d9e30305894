"""Rounding errors: low precision, cancellation, sums of many products."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, weight_norm
from torch.overrides import TorchFunctionMode

import secateurs as sc
from proof.pairs import pair, problem_of
from secateurs.errors import ArgumentError, UnsupportedOperation
from secateurs.graph import Affine
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import run_methods
from secateurs.proof.rounding import Rounding
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
    assert not bool(cert.certified(x).any())
    # Some processors sum in an order in which nothing is lost.
    assert "certifies 0 of 1" in cert.verdict or "vacuous" in cert.verdict


@pytest.mark.parametrize("zeros", [0, 60])
def test_a_sum_of_n_products_errs_by_n_roundings_of_its_parts(zeros):
    """One layer, no bias: both networks err, to first order, by n − 1 to n + 1 roundings of (|S| +
    Σ|w||x|)/2, and by one or two of each product; products with zero err by nothing.
    """
    model = nn.Linear(100 + zeros, 1, bias=False)
    x = torch.rand(1, 100 + zeros)
    x[:, 100:] = 0
    error = float(problem_of(model, model, x).rounding_errors(ball_domain(x, 0.0))) * 2.0**23
    weight = model.weight.detach().double()
    mass = (weight.abs() @ x.T.double()).item()
    part = (abs((weight @ x.T.double()).item()) + mass) / 2
    assert 99 * part + mass <= error <= (101 * part + 2 * mass) * 1.001


def test_no_sum_of_some_terms_is_larger_than_half_of_the_whole_and_of_the_sizes(generator):
    for _ in range(20):
        t = torch.randn(8, generator=generator).double()
        some = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * 8) @ t
        assert float(some.abs().max()) == pytest.approx(float(t.sum().abs() + t.abs().sum()) / 2)


class InOrder(TorchFunctionMode):
    """Products of matrices and convolutions, term by term in the given order, each rounded."""

    def __init__(self, order: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.order = order

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            x, weight, bias = args
            return self.total(x.unsqueeze(-2) * weight, bias)
        if function is torch.conv2d:
            x, weight, bias, stride, padding, *_ = args
            cut = nn.functional.unfold(x, weight.shape[2:], padding=padding, stride=stride)
            products = cut.transpose(1, 2).unsqueeze(2) * weight.flatten(1)
            side = (x.shape[2] + 2 * padding[0] - weight.shape[2]) // stride[0] + 1
            y = self.total(products, bias).transpose(1, 2)
            return y.reshape(*y.shape[:2], side, -1)
        return function(*args, **(kwargs or {}))

    def total(self, products: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None:
            last = bias.unsqueeze(-1).expand(*products.shape[:-1], 1)
            products = torch.cat([products, last], dim=-1)
        products = products.gather(-1, self.order(products))
        total = products[..., 0]
        for k in range(1, products.shape[-1]):
            total = total + products[..., k]
        return total


ORDERS = {
    "as they come": lambda t: torch.arange(t.shape[-1]).expand(t.shape),
    # All that is positive first: the parts of the sum are as large as they can be.
    "largest first": lambda t: t.argsort(dim=-1, descending=True),
    "smallest last": lambda t: t.argsort(dim=-1),
    "any": lambda t: torch.rand(t.shape).argsort(dim=-1),
}


class Deep(nn.Module):
    """Convolutions with batch norms and skips, a max-pool, a leaky ReLU, and an average."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(depth))
        self.pool, self.leaky = nn.MaxPool2d(2), nn.LeakyReLU(0.1)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = (x + norm(conv(x))).relu() if number % 2 else self.leaky(norm(conv(x)))
            x = self.pool(x) if number == 1 else x
        return self.last(torch.cat([x, x.flip(1)], dim=1)[:, 3:9].mean((2, 3)))


def narrowed(model: nn.Module, x: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """The errors of one network on a ball, by passes on the ranges of zonotopes and through |W|."""
    problem = replace(problem_of(model, copy.deepcopy(model), x), evaluated=torch.float32)
    domain = ball_domain(x.double(), radius)
    wide = problem.rounding_errors(domain)
    run_methods(problem, domain, ["zonotope"])
    return problem.rounding_errors(domain)[0] / 2, wide[0] / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_no_order_of_summation_exceeds_what_passes_bound(order, dtype, generator):
    torch.manual_seed(5)
    close = 0.0
    for seed in range(4):
        model = randomize(Deep(6), generator).to(dtype)
        x = torch.randn(1, 2, 8, 8, generator=generator).to(dtype)
        radius = 1e-3
        errors, _ = narrowed(model, x, radius)
        points = x + radius * (2 * torch.rand(16, *x.shape[1:], generator=generator) - 1)
        points = points.to(dtype).clamp(x - radius, x + radius)
        # The corners are rounded to this dtype: what lies outside of the ball is put back.
        points = torch.where((points.double() - x.double()).abs() <= radius, points, x)
        with torch.no_grad(), InOrder(ORDERS[order]):
            seen = model(points).double()
        with torch.no_grad():
            exact = copy.deepcopy(model).double()(points.double())
        gap = (seen - exact).abs().amax(dim=0)
        assert bool((gap <= errors).all()), seed
        close = max(close, float((gap / errors).max()))
    # In half precision many neurons are in doubt.
    assert close > (1e-2 if dtype == torch.float32 else 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_passes_cover_what_single_precision_computes(kind, generator):
    make, shape = KINDS[kind]
    for _ in range(4):
        model = randomize(make(), generator)
        x = torch.randn(1, *shape, generator=generator)
        errors, wide = narrowed(model, x, 0.0)
        with torch.no_grad():
            gap = (model(x).double() - copy.deepcopy(model).double()(x.double())).abs()
        assert bool((gap.flatten() <= errors).all()) and bool((errors <= wide).all())


def test_where_no_neuron_is_in_doubt_errors_are_those_of_one_linear_map(generator):
    """Every neuron is on: the nodes add r, and the output is off by Σ |L| r."""
    model = randomize(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), generator)
    with torch.no_grad():
        model[0].bias.fill_(50.0)
    x = torch.randn(1, 5, generator=generator)
    errors, wide = narrowed(model, x, 1e-3)
    # Two layers: |W₂| r₁ + r₂ is already the sum over one linear map.
    assert torch.allclose(errors, wide, rtol=1e-2)
    deeper = nn.Sequential(model[0], nn.ReLU(), nn.Linear(7, 7), nn.Linear(7, 3))
    randomize(deeper[2:], generator)
    with torch.no_grad():
        deeper[0].bias.fill_(50.0)
    errors, wide = narrowed(deeper, x, 1e-3)
    (w, v), first = (layer.weight.detach().double() for layer in deeper[2:]), deeper[0]
    r = narrowed(nn.Sequential(first), x, 1e-3)[0]
    # The later layers add at least nothing, and what they add is that of `wide`.
    linear = (v @ w).abs() @ r - v.abs() @ w.abs() @ r
    assert torch.allclose(errors - wide, linear, rtol=5e-2)


def test_passes_undo_the_growth_through_deep_networks(generator):
    model = randomize(Deep(24), generator, scale=1.4)
    x = torch.randn(1, 2, 8, 8, generator=generator)
    errors, wide = narrowed(model, x, 1e-6)
    with torch.no_grad():
        size = copy.deepcopy(model).double()(x.double()).abs().max()
    assert bool((wide > 1e3 * errors).all()) and float(errors.max()) < 0.05 * size


def test_without_effort_for_passes_errors_grow_through_the_weights(generator):
    model = randomize(Deep(6), generator)
    x = torch.randn(1, 2, 8, 8, generator=generator)
    errors, wide = narrowed(model, x, 1e-6)
    problem = replace(problem_of(model, model, x), evaluated=torch.float32, effort=1e-3)
    domain = ball_domain(x.double(), 1e-6)
    run_methods(problem, domain, ["zonotope"])
    none = problem.rounding_errors(domain)[0] / 2
    assert bool((errors < 0.9 * none).all()) and bool((none <= wide).all())


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


def worst(model: nn.Module, points: Tensor, r: float, generator: torch.Generator) -> Tensor:
    """The farthest that outputs move where every layer may add ± r to each of its values; found by
    climbing, from the points given.
    """
    added: dict[nn.Module, Tensor] = {}

    def off_by(module: nn.Module, _: object, y: Tensor) -> Tensor:
        if module not in added:
            noise = torch.rand(y.shape, generator=generator).double()
            added[module] = r * (2 * noise - 1)
        added[module] = added[module].detach().requires_grad_()
        return y + added[module]

    exact, moved = model.requires_grad_(False)(points), None
    layers = nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.Linear
    hooks = [m.register_forward_hook(off_by) for m in model.modules() if isinstance(m, layers)]
    for number in range(exact.shape[1]):
        added.clear()
        for _ in range(25):
            gap = model(points) - exact
            far = gap.detach().abs().amax(dim=0)
            moved = far if moved is None else torch.maximum(moved, far)
            gap[:, number].abs().sum().backward()
            for module, noise in added.items():
                added[module] = torch.where(noise.grad == 0, noise, r * noise.grad.sign())
    for hook in hooks:
        hook.remove()
    return moved


LAYERED = {
    "deep": (lambda: Deep(4), (2, 6, 6)),
    "leaky": (
        lambda: nn.Sequential(
            *(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.LeakyReLU(0.5)),
            *(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.LeakyReLU(0.5), nn.Linear(6, 2)),
        ),
        (4,),
    ),
}


@pytest.mark.parametrize("r", [1e-4, 0.05])
@pytest.mark.parametrize("kind", [*LAYERED, *KINDS])
def test_no_errors_of_nodes_move_an_output_further_than_passes_say(kind, r, generator, monkeypatch):
    """Large ones, too, which leave most neurons in doubt."""

    def added(_: Rounding, node: Affine, *given: object) -> Tensor:
        return torch.full((1, *node.shape), r, dtype=torch.float64)

    monkeypatch.setattr(Rounding, "added", added)
    make, shape = (LAYERED | KINDS)[kind]
    close = []
    for _ in range(4):
        model = randomize(make(), generator).double()
        x = torch.randn(1, *shape, generator=generator).double()
        errors, _ = narrowed(model, x, r)
        noise = 2 * torch.rand(16, *shape, generator=generator).double() - 1
        far = worst(model, x + r * noise.sign() * noise.abs().sqrt(), r, generator)
        # But for the last digits of these evaluations: the bound is attained.
        assert bool((far.flatten() <= errors + 1e-13).all())
        close.append(float((far.flatten() / errors).max()))
    assert max(close) > 0.65
