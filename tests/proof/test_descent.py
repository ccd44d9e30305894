"""Backward passes on the ranges of zonotopes: nearer to the truth, with their roundings covered."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import secateurs as sc
from proof.pairs import problem_of
from secateurs.base.random import generator
from secateurs.graph import Activation
from secateurs.proof import descent, methods, top_class
from secateurs.proof.certify import search_boxes
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import both_ends, by_zonotopes
from secateurs.proof.planes import ABOVE
from secateurs.proof.problem import TimeLimit
from secateurs.proof.top_class import pair_ends
from tiny_networks import randomize


def convolutional(depth=8, seed=0):
    """Convolutions with batch norms, a skip and a max-pool, and a copy without a tenth of its
    weights; in float64.
    """
    g = generator(seed, "descent")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(2, 8, 3, padding=1)
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(depth))
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(depth))
            self.pool, self.last = nn.MaxPool2d(2), nn.Linear(8 * 9, 3)

        def forward(self, x):
            x = self.first(x).relu()
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = (x + norm(conv(x))).relu()
            return self.last(self.pool(x).flatten(1))

    dense = randomize(Net(), g).double().eval()
    sparse = copy.deepcopy(dense)
    sc.prune_(sparse, "magnitude", sparsity=0.1)
    return dense, sparse


X = torch.randn(1, 2, 6, 6, generator=generator(1, "descent"), dtype=torch.float64)


def bounds_of(dense, sparse, x, radius, **options):
    """What zonotopes alone prove of |f − g|, what passes do, and the problem."""
    problem, domain = replace(problem_of(dense, sparse, x), **options), ball_domain(x, radius)
    found = by_zonotopes(problem, domain)
    passes = methods.passes_below(problem, domain, found.seen, found.known)
    high, low = both_ends(*passes, torch.arange(problem.outputs))
    return found.pair.difference(problem.unit), torch.maximum(high, -low)[0], problem


@pytest.mark.parametrize("radius", [0.03, 0.06])
def test_passes_lie_between_what_is_found_and_what_zonotopes_prove(radius):
    dense, sparse = convolutional()
    wide, near, problem = bounds_of(dense, sparse, X, radius)
    found = search_boxes(problem, ball_domain(X, radius), restarts=6, steps=20).per_output[0]
    assert bool((near >= found).all())
    assert float((near / wide).mean()) < 0.85


def test_passes_from_neurons_narrow_what_passes_from_outputs_stand_on(monkeypatch):
    dense, sparse = convolutional()
    _, near, _ = bounds_of(dense, sparse, X, 0.1)
    monkeypatch.setattr(descent, "_WORTH", 0.0)
    _, without, _ = bounds_of(dense, sparse, X, 0.1)
    assert bool((near < 0.9 * without).all())


@pytest.mark.parametrize("radius", [0.02, 0.03, 0.06])
def test_passes_that_are_left_out_would_gain_little(radius, monkeypatch):
    dense, sparse = convolutional()
    _, near, _ = bounds_of(dense, sparse, X, radius)
    monkeypatch.setattr(descent, "_WORTH", 2.0)
    _, every, _ = bounds_of(dense, sparse, X, radius)
    assert bool((near <= 1.025 * every).all())


def test_passes_choose_among_more_planes_than_linear(monkeypatch):
    dense, sparse = convolutional(depth=4)
    _, near, _ = bounds_of(dense, sparse, X, 0.03)
    monkeypatch.setattr(descent.Descent, "rules", ABOVE)
    _, without, _ = bounds_of(dense, sparse, X, 0.03)
    assert bool((near < 0.9999 * without).all())


def test_passes_from_neurons_narrow_values_and_differences():
    dense, sparse = convolutional()
    problem, domain = problem_of(dense, sparse, X), ball_domain(X, 0.1)
    found = by_zonotopes(problem, domain)
    *_, last = (node for node in problem.graph.nodes if isinstance(node, Activation))
    # The last of all is the pool.
    before, after = found.seen[last.inputs[0]].bounds, found.known.bounds[-2]
    for low, high in (("l", "h"), ("gl", "gh"), ("dl", "dh")):
        old, new = (getattr(b, high) - getattr(b, low) for b in (before, after))
        assert bool((new <= old).all())
        assert float((new / old)[~before.settled].mean()) < 0.97, low


def test_roundings_of_a_deep_network_are_covered_where_they_happen():
    dense, sparse = convolutional(depth=16)
    _, near, problem = bounds_of(dense, sparse, X, 1e-3)
    _, exact, _ = bounds_of(dense, sparse, X, 1e-3, unit=0.0)
    assert bool((near > exact).all()) and bool((near <= exact * (1 + 1e-6)).all())
    assert problem.unit


def test_what_a_node_may_add_is_multiplied_by_the_slope_of_the_pass():
    dense, sparse = convolutional(depth=1)
    problem, domain = problem_of(dense, sparse, X), ball_domain(X, 0.03)
    found = by_zonotopes(problem, domain)
    seen = found.seen
    last = next(node for node in problem.graph.nodes if node.name == problem.graph.output)

    def bound_with(name, *added):
        more = {name: replace(seen[name], added=tuple(map(torch.tensor, added)))}
        ends = both_ends(
            *methods.passes_below(problem, domain, seen | more, found.known), torch.arange(3)
        )
        return ends[0][0]

    before = bound_with(last.name, 0.0, 0.0, 0.0)
    assert torch.allclose(
        bound_with(last.name, 9.0, 9.0, 0.5) - before, torch.full((3,), 0.5).double()
    )
    # W' reads d, and W − W' reads f.
    one, other = (m.last.weight.detach() for m in (dense, sparse))
    slopes = 0.5 * other.abs().sum(1) + 2 * (one - other).abs().sum(1)
    assert torch.allclose(bound_with(last.inputs[0], 2.0, 9.0, 0.5) - before, slopes)


def test_every_node_has_room_for_its_roundings(monkeypatch):
    dense, sparse = convolutional(depth=2)
    slacks, true = [], descent.Descent._off_by

    def recorded(self, slack, value):
        slacks.append(slack)
        return true(self, slack, value)

    monkeypatch.setattr(descent.Descent, "_off_by", recorded)
    seen = by_zonotopes(problem_of(dense, sparse, X), ball_domain(X, 0.03)).seen
    assert len(slacks) == 3 * len(seen)
    for number, node in enumerate(seen.values()):
        for size, slack in zip(node.bounds.sizes, slacks[3 * number :][:3], strict=True):
            assert bool((slack >= 2.0**-53 * size).all()) and bool((slack <= 1e-9).all())


def test_passes_that_exceed_the_effort_are_left_out():
    dense, sparse = convolutional(depth=1)
    problem = replace(problem_of(dense, sparse, X), effort=10.0)
    assert by_zonotopes(problem, ball_domain(X, 0.03)).known is None


def test_differences_of_classes_are_the_nearer_of_both_ends(monkeypatch):
    dense, sparse = convolutional(depth=1)
    problem = replace(problem_of(dense, sparse, X), effort=1e5)
    domain = ball_domain(X, 0.02)
    toward = torch.tensor([[1.0, -1, 0], [1, 0, -1], [0, 1, -1]], dtype=torch.float64)
    alone = by_zonotopes(problem, domain).pair.directions(toward, problem.unit)
    for passed in (0.0, torch.nan):
        monkeypatch.setattr(
            top_class,
            "_passed",
            lambda flow, y, rows, passed=passed: torch.full(
                (1, 6, len(rows)), passed, dtype=torch.float64
            ),
        )
        ends = pair_ends(problem, domain)[0][0]
        nearer = alone if passed else torch.stack([alone[::2].relu(), -(-alone[1::2]).relu()], 1)
        assert torch.equal(ends, nearer.reshape(6, 3))


def test_differences_of_classes_are_met_by_both():
    dense, sparse = convolutional()
    problem = replace(problem_of(dense, sparse, X), effort=1e5)
    domain = ball_domain(X, 0.02)
    ends, complete = pair_ends(problem, domain)
    toward = torch.tensor([[1.0, -1, 0], [1, 0, -1], [0, 1, -1]], dtype=torch.float64)
    alone = by_zonotopes(problem, domain).pair.directions(toward, problem.unit)
    points = X + 0.02 * (2 * torch.rand(400, *X.shape[1:], generator=generator(2)) - 1).round()
    with torch.no_grad():
        f, g = dense(points.double()) @ toward.T, sparse(points.double()) @ toward.T
    for k, values in enumerate((f, g, f - g)):
        low, high = ends[0, 2 * k], ends[0, 2 * k + 1]
        assert bool((values >= low).all() and (values <= high).all())
        assert bool((low >= alone[2 * k]).all() and (high <= alone[2 * k + 1]).all())
    assert complete and bool((ends[0, 5] < 0.9 * alone[5]).any())


def test_passes_that_overflow_leave_what_zonotopes_prove(monkeypatch):
    dense, sparse = convolutional(depth=1)
    problem = problem_of(dense, sparse, X)
    none = torch.full((1, 3), torch.nan, dtype=torch.float64)
    monkeypatch.setattr(methods, "both_ends", lambda *_: (none, none))
    proven = methods.zonotope(problem, ball_domain(X, 0.03)).per_output[0]
    assert torch.equal(proven, bounds_of(dense, sparse, X, 0.03)[0])


def test_where_nothing_is_open_there_are_no_passes():
    dense, sparse = convolutional(depth=1)
    dense, sparse = (nn.Sequential(m.first, nn.ReLU(), nn.Flatten()) for m in (dense, sparse))
    assert by_zonotopes(problem_of(dense, sparse, X), ball_domain(X, 1e-9)).known is None


def test_a_certificate_can_be_copied():
    dense, sparse = convolutional(depth=1)
    cert = sc.certify(dense, sparse, around=X, radius=0.03, methods="zonotope", restarts=1)
    assert copy.deepcopy(cert).bound == cert.bound


def test_few_results_are_kept():
    dense, sparse = convolutional(depth=1)
    problem = problem_of(dense, sparse, X)
    numbers = []
    for number in range(40):
        by_zonotopes(problem, ball_domain(X + number, 0.01))
        kept = [one.seen for *_, one in problem.shared["zonotopes"]]
        ends = [n.bounds.l.numel() for seen in kept for n in seen.values()]
        numbers.append(9 * sum(ends))
    assert 1 < len(kept) < 40 and max(numbers) <= 2**20


def test_differences_of_classes_without_time_are_those_of_zonotopes():
    dense, sparse = convolutional()
    problem, domain = replace(problem_of(dense, sparse, X), effort=1e5), ball_domain(X, 0.02)
    found = by_zonotopes(problem, domain)
    toward = torch.eye(3, dtype=torch.float64)
    late = replace(problem, clock=TimeLimit(seconds=-1.0))
    alone, both = (top_class._of_zonotopes(p, domain, found, toward) for p in (late, problem))
    assert torch.equal(alone, found.pair.directions(toward, problem.unit))
    assert not torch.equal(alone, both)
