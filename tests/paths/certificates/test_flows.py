"""Flows behind the certificates: rounding errors, slopes beyond [0, 1], tapes, and what they
refuse.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import secateurs as sc
from secateurs.errors import ArgumentError, DomainError
from secateurs.graph import propagate
from secateurs.paths.certificates.domain import ball_domain
from secateurs.paths.certificates.flows.affine_forms import AffineForms
from secateurs.paths.certificates.flows.interval import Interval
from secateurs.paths.certificates.flows.pair import gamma
from secateurs.paths.certificates.flows.relaxed import Relaxation
from secateurs.paths.certificates.flows.rounding import unit_roundoff
from secateurs.paths.certificates.flows.tape import sided
from secateurs.paths.certificates.methods import METHODS, reaches
from secateurs.paths.certificates.problem import read_problem
from tiny_networks import KINDS, ConvBatchNorm, pruned, randomize, tuned


def problem_of(dense, sparse, x, **options):
    return read_problem(dense, sparse, x[:1], **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rounding_errors_cover_low_precision(kind, dtype, generator):
    make, shape = KINDS[kind]
    model = randomize(make(), generator).to(dtype)
    x = torch.randn(64, *shape, generator=generator).to(dtype)
    problem = problem_of(model, copy.deepcopy(model), x)
    error = (
        problem.rounding_errors(ball_domain(x.double(), 0.0)) / 2
    )  # of one network
    with torch.no_grad():
        gap = (
            (model(x).double() - copy.deepcopy(model).double()(x.double()))
            .abs()
            .flatten(1)
        )
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


def test_gamma():
    assert gamma(10, 0.0) == 0.0
    assert gamma(1, 2.0**-24) == pytest.approx(2.0**-24)
    assert gamma(2**24, 2.0**-24) == float("inf")
    assert unit_roundoff(torch.float32) == 2.0**-24
    assert unit_roundoff(torch.float64) == 2.0**-53


def test_weights_computed_by_unknown_formulas_have_no_rounding_bound(generator):
    model = nn.Sequential(weight_norm(nn.Linear(5, 4)), nn.ReLU(), nn.Linear(4, 2))
    other = copy.deepcopy(model)
    x = torch.zeros(1, 5)
    assert sc.certify(model, other, around=x, radius=0.1, restarts=0).bound < 1e-9
    with pytest.raises(
        ArgumentError, match="rounding=True knows no error bound for how the"
    ):
        sc.certify(model, other, around=x, radius=0.1, restarts=0, rounding=True)


@pytest.mark.parametrize("slope", [-0.7, 0.3, 1.6])
def test_any_slope_of_a_leaky_relu_is_sound(slope, generator):
    dense = nn.Sequential(
        nn.Linear(4, 6),
        nn.LeakyReLU(slope),
        nn.Linear(6, 6),
        nn.LeakyReLU(slope),
        nn.Linear(6, 2),
    ).double()
    randomize(dense, generator)
    sparse = tuned(dense, generator)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    domain = ball_domain(x, 0.5)
    proven, skipped = reaches(problem_of(dense, sparse, x), domain, METHODS.names())
    assert (
        set(proven) == {"two-stream", "interval", "affine", "linear"}
        and len(skipped) == 3
    )
    for k in range(300):
        share = torch.rand_like(x) * 2 - 1
        points = x + 0.5 * (share.sign() if k % 2 else share)
        gap = (dense(points) - sparse(points)).abs()
        for name, reach in proven.items():
            assert bool((gap <= reach.per_output).all()), name


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_f_and_g_hold_their_values(kind, generator):
    make, shape = KINDS[kind]
    dense = randomize(make().double(), generator)
    sparse = pruned(dense, generator)
    x = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    problem = problem_of(dense, sparse, x)
    domain = ball_domain(x, 0.3)
    forms = AffineForms(unit=2.0**-53)
    found = [
        propagate(
            problem.graph,
            Interval(unit=2.0**-53),
            [problem.fed(domain)],
            problem.pair,
        ).bounds,
        forms.bounds(
            propagate(problem.graph, forms, [problem.fed(domain)], problem.pair)
        ),
    ]
    for k in range(100):
        share = torch.rand_like(x) * 2 - 1
        points = x + 0.3 * (share.sign() if k % 2 else share)
        with torch.no_grad():
            f, g = dense(points).flatten(1), sparse(points).flatten(1)
        for b in found:
            for value, low, high in (
                (f, b.l, b.h),
                (g, b.gl, b.gh),
                (f - g, b.dl, b.dh),
            ):
                assert bool(
                    ((value >= low.flatten(1)) & (value <= high.flatten(1))).all()
                )


def test_directions_bound_f_g_and_their_difference(generator):
    """`above` bounds any ⟨a, f⟩ + ⟨b, f − g⟩; with a = −b = e it bounds g."""
    make, shape = KINDS["batch norm"]
    dense = randomize(make().double(), generator)
    sparse = tuned(dense, generator)
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    problem = problem_of(dense, sparse, x)
    domain = ball_domain(x, 0.2)
    flow = Relaxation()
    y = propagate(problem.graph, flow, [problem.fed(domain)], problem.pair)
    a, b = torch.randn(2, 5, *y.z.shape, generator=generator, dtype=torch.float64)
    high = flow.above(y, a, b)
    for k in range(200):
        share = torch.rand_like(x) * 2 - 1
        points = x + 0.2 * (share.sign() if k % 2 else share)
        with torch.no_grad():
            f, g = dense(points), sparse(points)
        value = (a[:, :, 0] * f + b[:, :, 0] * (f - g)).sum(2)
        assert bool((value <= high + 1e-12).all())


def test_a_relaxed_value_sends_each_sign_to_its_side():
    above, below = (
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, requires_grad=True),
    )
    sided(above, below).backward(torch.tensor([3.0, -2.0]))
    assert above.grad.tolist() == [3.0, 0.0]
    assert below.grad.tolist() == [0.0, -2.0]


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y


def test_one_input_only():
    with pytest.raises((DomainError, ValueError)):
        sc.certify(TwoInputs(), TwoInputs(), around=torch.zeros(1, 2), radius=0.1)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales(scale, generator):
    dense = randomize(KINDS["fully connected"][0]().double(), generator)
    with torch.no_grad():
        for parameter in dense[0].parameters():
            parameter.mul_(scale)
    sparse = pruned(dense, generator)
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    cert = sc.certify(dense, sparse, around=x, radius=0.01)
    assert cert.lower_bound <= cert.bound
    assert 1 <= cert.tightness < 2


def test_two_stream_takes_the_maximum_of_a_window():
    """max(3x₁, 3x₂) against max(2x₁, 2x₂) on |x| ≤ 1, then times 5: |f| ≤ 15, |f − g| ≤ 5,
    attained.
    """
    dense = nn.Sequential(
        nn.Conv1d(1, 1, 1, bias=False),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(1, 1, bias=False),
    )
    sparse = copy.deepcopy(dense)
    for model, w in ((dense, 3.0), (sparse, 2.0)):
        nn.init.constant_(model[0].weight, w)
        nn.init.constant_(model[3].weight, 5.0)
    ball = {"around": torch.zeros(1, 1, 2), "radius": 1.0, "rounding": False}
    cert = sc.certify(dense, sparse, methods=METHODS.names(), **ball)
    assert cert.bounds["two-stream"] == 5.0 == cert.lower_bound
    assert cert.bounds["input-weighted"] == 10.0  # the window summed


def test_a_sum_of_n_products_errs_by_n_roundings():
    """One layer, no bias: both networks err by at least n·u·Σ|w||x| and at most (n + 3)·u·Σ|w||x|,
    to first order.
    """
    model = nn.Linear(100, 1, bias=False)
    x = torch.rand(1, 100)
    error = float(problem_of(model, model, x).rounding_errors(ball_domain(x, 0.0)))
    mass = (model.weight.abs().double() @ x.T.double()).item()
    assert 2 * 100 * 2.0**-24 * mass <= error <= 2 * 103 * 2.0**-24 * mass * 1.001
