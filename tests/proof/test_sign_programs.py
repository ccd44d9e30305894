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
    reached = needed(f, g, found.work(60, 0.0))
    # One of the solutions is where f leads by most, and g answers another class for certain.
    assert max(reached, seen) <= found.most <= reached * 1.0001 + 1e-5


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


@pytest.mark.parametrize("by", [0.02, 0.4])
def test_what_both_networks_compute_keeps_to_the_planes_of_twins(by):
    """On the whole box, and on halves that are cut at a neuron of either network."""
    f = mlp(4, 9, 7, 3, seed=1)
    found = programs(f, moved(f, by, seed=2), 4)
    frame, generator = found._frame, torch.Generator().manual_seed(0)
    x = 2 * torch.rand(20_000, 4, dtype=torch.float64, generator=generator) - 1
    x[::3] = x[::3].round()
    z, values = outputs_of(found, x)
    parts = [found._parts[0].known.numpy()]
    for which, place in ((0, 3), (1, 3), (0, 11), (1, 12)):
        for end, cut in ((0, np.maximum), (1, np.minimum)):
            half = parts[0].copy()
            half[2 * which + end, place] = cut(half[2 * which + end, place], 0.0)
            parts.append(half)
    seen = 0
    for known in parts:
        twins, low, high = frame._twins(known), known[:4:2], known[1:4:2]
        inside = ((z >= low) & (z <= high)).all(axis=(1, 2))
        if not inside.any():
            continue
        seen += 1
        assert len(twins.neurons) > 5
        room = twins.height - values[inside] @ twins.rows.T
        assert room.min() >= 0
        assert np.median(room.min(axis=0)) < 0.2
    assert seen >= 4


def outputs_of(found, x):
    """Sums of both networks, (inputs, 2, neurons), and the variables of all programs."""
    frame, columns = found._frame, len(found._frame.low)
    z, values = [], np.zeros((len(x), columns))
    values[:, : x.shape[1]] = x
    for which in range(2):
        p, own = x, []
        for layer in found.chain.layers[:-1]:
            weight, bias = (
                (layer.weight, layer.bias) if which == 0 else (layer.other, layer.other_bias)
            )
            own.append(p @ weight.T + bias)
            p = own[-1].relu() if layer.relu else own[-1]
        z.append(torch.cat(own, dim=1).numpy())
        values[:, frame.sums[which]] = z[which]
    for which, place, _, value in zip(
        frame.which, frame.place, frame.sum, frame.value, strict=True
    ):
        values[:, value] = np.maximum(z[which][:, place], 0)
    return np.stack(z, axis=1), values


def test_twins_bound_a_lead_that_triangles_do_not(monkeypatch):
    f = mlp(5, 12, 12, 4, seed=2)
    g = moved(f, 0.002, seed=9)
    found = programs(f, g, 5)
    part = max(found._parts, key=lambda one: one.bound)
    known = part.known.numpy()
    joint = found._frame.solve(part.one, part.two, known).bound
    nothing = found._frame._twins(np.zeros_like(known))
    assert not len(nothing.neurons)
    monkeypatch.setattr(type(found._frame), "_twins", lambda self, known: nothing)
    assert joint < 0.3 * found._frame.solve(part.one, part.two, known).bound


def test_neurons_are_cut_by_what_they_cost(monkeypatch):
    """Rather than by how deep the solution lies in their triangles."""
    f = mlp(4, 10, 10, 3, seed=3)
    g = moved(f, 0.3, seed=9)
    by_cost = programs(f, g, 4)
    by_cost.work(60, 0.0)
    monkeypatch.setattr(sign_programs._Frame, "_costliest", deepest)
    by_depth = programs(f, g, 4)
    while by_depth.solved < 2 * by_cost.solved:
        by_depth.work(0.0, 0.0)
    assert by_depth.most > 1.05 * by_cost.most


def deepest(frame, found, open_, twins):
    z, a = found.x[frame.sum], found.x[frame.value]
    deep = np.where(open_, a - np.maximum(z, 0), 0.0)
    return frame._largest(np.where(deep > 1e-9, deep, 0.0))


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
