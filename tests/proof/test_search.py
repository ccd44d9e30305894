"""The search finds what it must: maxima of affine functions exactly, never more than is there."""

import torch
from torch import Tensor

from proof.pairs import pair
from secateurs.proof.domain import ball_domain
from secateurs.proof.problem import read_problem
from secateurs.proof.search import search


def test_an_affine_difference_is_maximised_exactly(generator):
    w, b = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    lo = torch.randn(3, 6, dtype=torch.float64)
    hi = lo + torch.rand(3, 6, dtype=torch.float64)
    found = search(lambda x: x @ w.T + b, lo, hi, restarts=1, outputs=4, generator=generator)
    middle, radius = (lo + hi) / 2, (hi - lo) / 2
    truth = (middle @ w.T + b).abs() + radius @ w.abs().T
    assert torch.allclose(found.per_output, truth)
    at_worst = (found.worst @ w.T + b).abs().amax(1)
    assert torch.allclose(at_worst, truth.amax(1))
    assert bool(((found.worst >= lo) & (found.worst <= hi)).all())


def test_nothing_outside_the_box_counts(generator):
    lo, hi = (
        torch.zeros(2, 3, dtype=torch.float64),
        torch.ones(2, 3, dtype=torch.float64),
    )
    found = search(lambda x: x.sum(1, keepdim=True) ** 3, lo, hi, generator=generator)
    assert bool((found.per_output <= 27.0).all())
    assert torch.allclose(found.per_output, torch.full((2, 1), 27.0, dtype=torch.float64))


def test_a_point_needs_no_restarts():
    point = torch.ones(1, 2, dtype=torch.float64)
    calls = []
    search(lambda x: calls.append(len(x)) or x, point, point, restarts=9, steps=0)
    assert len(calls) == 1


def test_no_restarts_is_the_middle_only():
    lo, hi = (
        torch.zeros(1, 1, dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.float64),
    )
    found = search(lambda x: x, lo, hi, restarts=0, steps=0)
    assert float(found.per_output) == 0.5


def test_no_restarts_look_at_the_middle_only(monkeypatch):
    dense, sparse = pair()
    seen = []
    problem = read_problem(dense, sparse, torch.zeros(1, 3))

    def difference(x: Tensor) -> Tensor:
        seen.append(x)
        return problem.difference(x)

    from secateurs.proof.search import search

    domain = ball_domain(torch.zeros(2, 3), 0.5)
    search(difference, domain.lo, domain.hi, restarts=0)
    assert {tuple(p.tolist()) for x in seen for p in x} == {(0.0, 0.0, 0.0)}


def test_a_step_that_would_not_end_in_time_is_not_begun(monkeypatch):
    """A step of a large network takes seconds: it is judged by what one evaluation took."""
    from secateurs.proof import search as module

    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])

    def slow(x):
        # A second for each input, and two more for its gradient.
        now[0] += (3.0 if x.requires_grad else 1.0) * len(x)
        return x.flatten(1)

    lo, hi = -torch.ones(1, 3), torch.ones(1, 3)
    module.search(slow, lo, hi, left=lambda: 18.0 - now[0])
    # One look at each of five starts; a step is priced at 3 × 6 climbers × 1 second.
    assert now[0] == 5.0
    now[0] = 0.0
    module.search(slow, lo, hi, restarts=1, left=lambda: 100.0 - now[0])
    assert 20.0 < now[0] <= 102.0


def test_each_point_is_evaluated_once():
    """The pass that gives the gradient also gives the differences."""
    seen = []

    def watched(x):
        seen.append(len(x))
        return x.flatten(1)

    search(watched, -torch.ones(1, 3), torch.ones(1, 3), restarts=1, steps=5)
    # Two starts, five gradients of six climbers each, and the last points.
    assert seen == 2 * ([1] + 5 * [6] + [6])


def test_climbers_find_the_same_one_after_the_other(generator):
    """Few at a time make shorter steps, and the same ones."""
    dense, sparse = pair()
    x = torch.randn(3, 3, dtype=torch.float64, generator=generator)
    problem = read_problem(dense, sparse, x[:1])
    found, beats = [], []
    for together in (2**30, 1, 3):
        start = torch.Generator().manual_seed(0)
        lines: list[str] = []
        options = {"together": together, "generator": start, "beat": lines.append}
        found.append(search(problem.difference, x - 0.3, x + 0.3, **options))
        beats.append(len(lines))
    for other in found[1:]:
        torch.testing.assert_close(other.per_output, found[0].per_output)
        torch.testing.assert_close(other.worst, found[0].worst)
    # Five starts, each looked at, and ten steps of four climbers.
    assert beats == [5 * 11, 5 * 41, 5 * 21]
