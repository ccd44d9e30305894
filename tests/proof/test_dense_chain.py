"""Chains of dense layers: all balls of a batch in one pass, each as if it were alone."""

import copy
import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import secateurs as sc
from proof.certify.test_prove import extreme, rational
from proof.pairs import deep, problem_of
from secateurs.base.random import generator as seeded
from secateurs.proof import methods
from secateurs.proof.dense_chain import chain_of, is_dense
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import all_by_chain, run_methods
from secateurs.proof.problem import Pace, TimeLimit
from secateurs.proof.recheck import recheck


def mlp(*sizes: int) -> nn.Sequential:
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(m for pair in layers for m in pair))[:-1].eval()


def images(seed: int = 0, count: int = 6):
    """A network of 100 inputs, its 16-bit copy, and inputs in [0, 1]."""
    torch.manual_seed(seed)
    f = mlp(100, 60, 60, 40, 10)
    return f, copy.deepcopy(f).half().float(), torch.rand(count, 100)


def test_the_bounds_are_those_of_the_tape(generator, monkeypatch):
    for dense, sparse, x in (images(), deep(generator)):
        problem, domain = problem_of(dense, sparse, x), ball_domain(x, 0.02)
        assert all_by_chain(problem)
        by_chain = run_methods(problem, domain, ["linear"])[0]["linear"].per_output
        with monkeypatch.context() as patch:
            patch.setattr(methods, "all_by_chain", lambda problem: False)
            by_tape = run_methods(problem, domain, ["linear"])[0]["linear"].per_output
        # Both choose planes by a middle: where two are equally good, either may be taken.
        close = (by_chain - by_tape).abs() <= 1e-5 * by_tape
        assert float(close.double().mean()) > 0.95


def test_a_ball_is_bounded_to_the_bit_as_if_it_were_alone():
    f, g, x = images()
    together = sc.certify(f, g, around=x, radius=0.02, clip=(0, 1), restarts=0)
    assert together.method == "linear" and len(together.balls) == len(x)
    for i in (0, 3, 5):
        alone = sc.certify(f, g, around=x[i : i + 1], radius=0.02, clip=(0, 1), restarts=0)
        assert alone.bound == float(together.balls[i])
        assert torch.equal(alone.per_output, together.per_box[i])


def test_a_batch_of_balls_is_kept_and_rechecked():
    f, g, x = images()
    cert = sc.certify(f, g, around=x, radius=0.02, clip=(0, 1))
    again = recheck(cert.to_json(), f, g)
    assert again.holds and again.bound == cert.bound, again.problems
    # A smaller bound is believed of no ball.
    damaged = cert.to_json().replace(f'"bound": {cert.bound}', f'"bound": {0.9 * cert.bound}')
    assert not recheck(damaged, f, g).holds


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
def test_no_rounding_is_lost_at_extreme_scales(compiled):
    """Against exact rationals: weights of 1e-8 to 1e8, changes of 1e-17, balls of no width."""
    g = seeded(7, "chains")
    for _ in range(30):
        dense, sparse = extreme(g)
        centres = torch.randn(8, 1, generator=g, dtype=torch.float64)
        chain = chain_of(problem_of(dense, sparse, centres[:1]))
        run = chain.bounds if compiled else chain.bounds_in_torch
        for centre in centres.split(1):
            domain = ball_domain(centre, 10.0 ** float(torch.randint(-14, 1, (), generator=g)))
            bound = run(domain.lo, domain.hi).per_output[0].tolist()
            for point in (domain.lo, domain.hi, domain.center):
                x = [Fraction(v) for v in point.flatten().tolist()]
                pairs = zip(rational(dense, x), rational(sparse, x), strict=True)
                for (one, two), limit in zip(pairs, bound, strict=True):
                    assert math.isinf(limit) or abs(one - two) <= Fraction(limit)


class Scaled(nn.Module):
    """As readers of other formats write it: inputs are scaled, and a ReLU may end it."""

    def __init__(self, inner: nn.Module, scale: float, ends: bool) -> None:
        super().__init__()
        self.inner, self.ends = inner, ends
        self.register_buffer("scale", torch.full((100,), scale))

    def forward(self, x):
        y = self.inner((x - 0 * self.scale) / self.scale)
        return torch.relu(y) if self.ends else y


@pytest.mark.parametrize("ends", [False, True])
def test_scales_by_one_are_left_out_and_a_last_relu_is_closed(ends):
    f, g, x = images()
    problem = problem_of(Scaled(f, 1.0, ends), Scaled(g, 1.0, ends), x)
    chain = chain_of(problem)
    assert [layer.weight.shape[1] for layer in chain.layers] == [100, 60, 60, 40, *[10] * ends]
    assert all_by_chain(problem)
    found = run_methods(problem, ball_domain(x, 0.02), ["linear"])[0]["linear"].per_output
    if not ends:
        plain = run_methods(problem_of(f, g, x), ball_domain(x, 0.02), ["linear"])[0]["linear"]
        torch.testing.assert_close(found, plain.per_output, rtol=1e-6, atol=0.0)


def test_other_scales_stay_and_are_not_written_out_for_linear():
    narrow = mlp(100, 20, 3)
    problem = problem_of(Scaled(narrow, 3.0, False), Scaled(narrow, 3.0, False), torch.rand(1, 100))
    # As a matrix the scale of 100 inputs would be five times the layers.
    assert len(chain_of(problem).layers) == 3 and not is_dense(problem)


def test_a_convolution_is_not_written_out_for_linear():
    make = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    problem = problem_of(make, copy.deepcopy(make), torch.zeros(1, 1, 8, 8))
    assert chain_of(problem) is not None and not all_by_chain(problem)


def test_boxes_that_time_does_not_reach_say_so(monkeypatch):
    f, g, x = images(count=40)
    allowed = iter([True, True, False])
    monkeypatch.setattr(Pace, "allows", lambda self, work: next(allowed))
    lines = []
    problem = problem_of(f, g, x, clock=TimeLimit(seconds=100, tell=lines.append))
    found = methods.linear(problem, ball_domain(x, 0.02))
    assert bool(found.per_output[:32].isfinite().all())
    assert bool(found.per_output[32:].isinf().all())
    assert found.remarks == ("linear: time was up after 32 of 40 boxes",)
    assert lines[0] == "linear: 16 of 40 boxes"
