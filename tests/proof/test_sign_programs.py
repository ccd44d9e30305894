"""Largest leads by linear programs over signs, against grids, attacks, and a solver that lies."""

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from proof.test_smallest_margin import grid, needed
from proof.test_splitting import box, mlp, moved
from secateurs.proof import sign_programs
from secateurs.proof.dense_chain import chain_of
from secateurs.proof.problem import read_problem
from secateurs.proof.sign_programs import SignPrograms
from secateurs.proof.top_class import TopClass

solve = sign_programs.linprog


def programs(f, g, inputs, half=1.0, slack=None):
    lo, hi = (end.double() for end in box(inputs, half))
    chain = chain_of(read_problem(f, g, lo.float())).of_pairs()
    return SignPrograms(chain, TopClass(margin=0.0, slack=slack), lo[0], hi[0])


NETWORKS = {
    "one layer": lambda: mlp(2, 8, 3),
    "three layers": lambda: mlp(2, 5, 5, 5, 3),
    "two maps in a row": lambda: nn.Sequential(
        nn.Linear(2, 5), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)
    ),
    "no neuron": lambda: mlp(2, 3),
}


@pytest.mark.parametrize("by", [0.05, 0.4])
@pytest.mark.parametrize("name", NETWORKS)
def test_they_end_at_the_largest_lead(name, by):
    torch.manual_seed(3)
    f = NETWORKS[name]().eval()
    g = moved(f, by)
    seen = needed(f, g, grid())
    found = programs(f, g, 2)
    x = found.work(60, 0.0)
    assert seen <= found.most
    # One of the solutions is where f leads by most, but for a tie of g at its edge.
    near = (x[:, None] + 1e-3 * grid(steps=7)).flatten(0, 1).clamp(-1, 1)
    reached = needed(f, g, near)
    assert reached <= found.most <= max(reached, seen) * 1.02 + 1e-6


def test_a_bound_only_sinks_and_is_never_beaten():
    f = mlp(5, 12, 12, 4, seed=2)
    g = moved(f, 0.2, seed=9)
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(100_000, 5, dtype=torch.float64, generator=generator) - 1
    attacked = needed(f, g, torch.cat([x, x.sign()]))
    found, before = programs(f, g, 5), math.inf
    for _ in range(40):
        xs = found.work(0.0, 0.0)
        assert (xs.abs() <= 1 + 1e-9).all()
        attacked = max(attacked, needed(f, g, xs.clamp(-1, 1)))
        assert attacked <= found.most <= before
        before = found.most
    assert found.solved >= 40
    first = programs(f, g, 5).most
    assert found.most < 0.9 * first


def test_any_multipliers_prove_a_bound(monkeypatch):
    """Of a solver that returns whatever it likes nothing is believed."""
    f = mlp(3, 8, 8, 3, seed=5)
    g = moved(f, 0.3, seed=6)
    seen = needed(f, g, grid_of_three())
    random = np.random.default_rng(0)
    right = programs(f, g, 3)
    right.work(4, 0.0)

    def lie(*args, **options):
        found = solve(*args, **options)
        for part in (found.ineqlin, found.eqlin):
            part.marginals = part.marginals * random.uniform(0.5, 1.5, len(part.marginals))
            part.marginals += 0.1 * random.standard_normal(len(part.marginals))
        return found

    monkeypatch.setattr(sign_programs, "linprog", lie)
    lied = programs(f, g, 3)
    lied.work(2, 0.0)
    assert seen <= min(right.most, lied.most)


def grid_of_three():
    ends = torch.linspace(-1, 1, 41, dtype=torch.float64)
    return torch.cartesian_prod(ends, ends, ends)


@pytest.mark.parametrize("status", [1, 2, 4])
def test_a_solver_that_gives_up_proves_nothing(status, monkeypatch):
    """Parts are cut all the same, and bounded by their planes."""
    f = mlp(3, 8, 3)
    g = moved(f, 0.3)
    found = programs(f, g, 3)
    before = found.most
    monkeypatch.setattr(sign_programs, "linprog", lambda *a, **o: SimpleNamespace(status=status))
    assert found._frame.solve(0, 1, found._parts[0].known.numpy()).bound == math.inf
    found.work(2, 0.0)
    assert needed(f, g, grid_of_three()) <= found.most < before


def test_multipliers_that_are_not_numbers_prove_nothing(monkeypatch):
    f = mlp(3, 8, 3)
    found = programs(f, moved(f, 0.3), 3)

    def overflow(*args, **options):
        result = solve(*args, **options)
        result.ineqlin.marginals = result.ineqlin.marginals * math.nan
        return result

    monkeypatch.setattr(sign_programs, "linprog", overflow)
    known = found._frame.solve(0, 1, found._parts[0].known.numpy())
    assert known.bound == math.inf


def test_slack_is_added_to_both_networks():
    f = mlp(2, 8, 3)
    g = moved(f, 0.3)
    slack = torch.tensor([[0.3, 0.1, 0.2], [0.5, 0.1, 0.4]], dtype=torch.float64)
    exact, loose = programs(f, g, 2), programs(f, g, 2, slack=slack)
    for one in (exact, loose):
        one.work(30, 0.0)
    # Outputs within the slack, chosen for f to lead by most and g to answer otherwise.
    x, generator = grid(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        one, two = (net.double()(x) for net in (f, g))
    worst = 0.0
    for _ in range(200):
        signs = torch.randint(2, (2, 3), generator=generator) * 2 - 1
        a, b = one + signs[0] * slack[0], two + signs[1] * slack[1]
        top = a.topk(2, dim=1)
        lead = (top.values[:, 0] - top.values[:, 1])[b.argmax(dim=1) != top.indices[:, 0]]
        worst = max([worst, *lead.tolist()])
    assert exact.most < worst <= loose.most <= worst + 0.05


def test_lines_lie_above_a_relu():
    generator = np.random.default_rng(0)
    l = -(10.0 ** generator.uniform(-12, 12, 2000))
    h = 10.0 ** generator.uniform(-12, 12, 2000)
    slope, shift = sign_programs._chord(l, h)
    for low, high, p, c in zip(*(t.tolist() for t in (l, h, slope, shift)), strict=True):
        assert Fraction(p) * Fraction(low) + Fraction(c) >= 0
        assert Fraction(p) * Fraction(high) + Fraction(c) >= Fraction(high)
    assert (shift <= np.minimum(-l, h) * (1 + 1e-9) + 2.0**-52 * h).all()
    ends = (
        np.array([-3.0, -2.0, 0.0, 0.0, 1.0, -math.inf]),
        np.array([-1.0, 0.0, 2.0, 0.0, 4.0, 1.0]),
    )
    slope, shift = sign_programs._chord(*ends)
    assert slope[:5].tolist() == [0, 0, 1, 1, 1] and shift[:5].tolist() == [0] * 5


@pytest.mark.parametrize(("widths", "fits"), [((4, 50, 50), True), ((4, 300, 300), False)])
def test_large_networks_are_left_out(widths, fits):
    f = mlp(*widths, 3)
    chain = chain_of(read_problem(f, f, torch.zeros(1, widths[0]))).of_pairs()
    assert SignPrograms.fit(chain) == fits


def test_many_inputs_are_left_out():
    f = mlp(2000, 30, 3)
    assert not SignPrograms.fit(chain_of(read_problem(f, f, torch.zeros(1, 2000))).of_pairs())
