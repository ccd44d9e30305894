"""Intervals of both networks hold their values."""

from types import SimpleNamespace

import pytest
import torch

from proof.pairs import problem_of
from secateurs.graph import propagate
from secateurs.proof.affine import AffineForms
from secateurs.proof.domain import ball_domain
from secateurs.proof.interval import Interval
from tiny_networks import KINDS, pruned, randomize


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
            [problem.flow_input(domain)],
            problem.pair,
        ).bounds,
        forms.bounds(propagate(problem.graph, forms, [problem.flow_input(domain)], problem.pair)),
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
                assert bool(((value >= low.flatten(1)) & (value <= high.flatten(1))).all())


def test_two_constants_differ_by_their_difference_and_its_rounding():
    """A bias that no value enters: the difference is one subtraction, which rounds."""
    b, c = torch.tensor([3.0, -1.0]), torch.tensor([1.0, 2.0])
    node = SimpleNamespace(shape=(2,))
    params = SimpleNamespace(offsets=lambda node: (b, c))
    found = Interval(unit=2.0**-10).affine(node, None, params)
    assert found.cf.tolist() == [[3.0, -1.0]] and found.cg.tolist() == [[1.0, 2.0]]
    assert found.cd.tolist() == [[2.0, -3.0]]
    assert found.rd.tolist() == [[2.0**-9 * 2, 2.0**-9 * 3]]
    assert found.rf.tolist() == found.rg.tolist() == [[0.0, 0.0]]
