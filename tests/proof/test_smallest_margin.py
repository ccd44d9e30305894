"""The smallest margin against brute force on tiny networks, and against searches on larger ones."""

import copy
import importlib
import itertools
import math
import re

import pytest
import torch
from torch import nn

import secateurs as sc
from proof.test_splitting import Joined, box, mlp, moved
from secateurs.errors import ArgumentError, DomainError, StructureMismatch
from secateurs.proof import dense_chain
from secateurs.proof.problem import read_problem

prover = importlib.import_module("secateurs.proof.smallest_margin")

NETWORKS = {
    "two inputs": (lambda: mlp(2, 6, 3), 2),
    "two classes": (lambda: mlp(2, 5, 5, 2), 2),
    "no chain": (Joined, 2),
    "linear": (lambda: mlp(2, 3), 2),
}


def needed(f, g, x):
    """f's largest lead at these inputs where g answers another class; 0 if it does nowhere."""
    with torch.no_grad():
        one, two = copy.deepcopy(f).double()(x), copy.deepcopy(g).double()(x)
    top = one.topk(2, dim=1)
    lead = (top.values[:, 0] - top.values[:, 1])[two.argmax(dim=1) != top.indices[:, 0]]
    return max(lead.tolist(), default=0.0)


def grid(half=1.0, steps=401):
    ends = torch.linspace(-half, half, steps, dtype=torch.float64)
    return torch.cartesian_prod(ends, ends)


@pytest.mark.parametrize("by", [0.02, 0.3])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_what_a_grid_shows(name, by, monkeypatch):
    # With a shorter search more is left to the parts, and nothing else may change.
    monkeypatch.setattr(prover, "_STEPS", 15)
    build, inputs = NETWORKS[name]
    f = build().eval()
    g = moved(f, by)
    found = sc.smallest_margin(f, g, box=box(inputs), seconds=20)
    seen = needed(f, g, grid())
    # f's lead changes by at most this between two points of the grid.
    step = 0.0025 * 2 * max(_slopes(f))
    assert seen <= found.proven <= 1.01 * found.refuted + 1e-12
    assert found.refuted <= seen + step
    assert found.refuted >= seen / 1.01
    assert (found.witness is None) == (seen == 0)
    if found.witness is not None:
        assert needed(f, g, found.witness) == pytest.approx(found.refuted, rel=1e-9)


def _slopes(f):
    """For each output a bound of its slope, in the sum over inputs."""
    if isinstance(f, nn.Sequential):
        rows = torch.eye(f[0].in_features)
        for layer in f:
            if isinstance(layer, nn.Linear):
                rows = layer.weight.detach().abs() @ rows
    else:
        rows = f.head.weight.detach().abs() @ (f.a.weight.abs() + f.b.weight.abs()).detach()
    return rows.sum(dim=1).tolist()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_no_attack_beats_it(seed, compiled, monkeypatch):
    """However short the time, what is proven holds at random points, corners and near the
    witness."""
    if not compiled:
        monkeypatch.setattr(dense_chain, "compiled_bounds", lambda: None)
    f = mlp(4, 10, 10, 4, seed=seed)
    g = moved(f, 0.1, seed=seed + 50)
    generator = torch.Generator().manual_seed(seed)
    found = sc.smallest_margin(
        f, g, box=box(4), seconds=0.2 + 0.4 * (seed % 3), generator=generator
    )
    x = 2 * torch.rand(50_000, 4, dtype=torch.float64, generator=generator) - 1
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4)), dtype=torch.float64)
    points = [x, corners, torch.where(x.abs() > 0.5, x.sign(), x)]
    if found.witness is not None:
        assert found.witness.dtype == torch.float64 and found.witness.shape == (1, 4)
        # A number that the models can be given.
        assert torch.equal(found.witness, found.witness.float().double())
        points.append((found.witness + 0.05 * x).clamp(-1, 1))
        assert needed(f, g, found.witness) >= found.refuted > 0
    assert needed(f, g, torch.cat(points)) <= found.proven
    assert found.refuted <= found.proven
    # Outside of the open parts no more than what was refuted is needed, inside what they say.
    y = points[0][:5000]
    inside = ((y[:, None] >= found.open.lo[:500]) & (y[:, None] <= found.open.hi[:500])).all(dim=2)
    if len(found.open) <= 500:
        assert needed(f, g, y[~inside.any(dim=1)]) <= found.refuted
    for number, margin in enumerate(found.open.margins[:500].tolist()):
        assert found.refuted < margin <= found.proven
        assert needed(f, g, y[inside[:, number]]) <= margin


def test_open_parts_are_shares_of_the_volume(monkeypatch):
    """Of two boxes of different volumes: nothing is done, so the parts are the boxes."""
    f = mlp(3, 8, 3)
    lo = torch.tensor([[0.0, 0.0, 0.5], [1.0, 1.0, 0.5]])
    hi = torch.tensor([[1.0, 1.0, 0.5], [4.0, 2.0, 0.5]])
    with monkeypatch.context() as patch:
        patch.setattr(prover._Cutting, "_look", lambda *args: None)
        found = sc.smallest_margin(f, mlp(3, 8, 3, seed=7), box=(lo, hi), seconds=1e-9)
    assert len(found.open) == 2
    larger = found.open.lo[:, 0] == 1
    assert float(found.open.shares[larger]) == pytest.approx(3 / 4)
    assert float(found.open.shares[~larger]) == pytest.approx(1 / 4)
    assert found.proven == found.open.margins[0] >= found.open.margins[1]
    # The share of the volume is not that of the parts: more time leaves less of it.
    more = sc.smallest_margin(f, mlp(3, 8, 3, seed=7), box=(lo, hi), seconds=20)
    assert len(more.open.table(3).splitlines()) == min(len(more.open), 3) + 1
    assert float(more.open.shares.sum()) < 1


@pytest.mark.slow
def test_time_only_brings_the_ends_together():
    f = mlp(5, 16, 16, 4)
    lines = []
    found = sc.smallest_margin(
        f, moved(f, 0.1), box=box(5), seconds=6, tolerance=0.0, progress=lines.append
    )
    pattern = r"between ([\d.e+-]+) and ([\d.e+-]+)$"
    ends = [tuple(map(float, m.groups())) for m in (re.search(pattern, t) for t in lines) if m]
    assert len(ends) > 4
    assert all(a[0] <= b[0] and a[1] >= b[1] for a, b in itertools.pairwise(ends))
    # Printed to four digits.
    assert ends[-1][0] <= found.refuted * 1.001 and found.proven <= ends[-1][1] * 1.001
    assert ends[0][1] > ends[-1][1]


@pytest.mark.slow
def test_without_what_is_known_the_same_holds(monkeypatch):
    f = mlp(2, 8, 3)
    g = moved(f, 0.1)
    plain = sc.smallest_margin(f, g, box=box(2), seconds=30)
    monkeypatch.setattr(prover, "_KNOWN", 0)
    bare = sc.smallest_margin(f, g, box=box(2), seconds=30)
    assert bare.parts < 2 * plain.parts + 2000
    assert bare.proven == pytest.approx(plain.proven, rel=0.011)


def test_only_pairs_that_matter_get_passes():
    """The others keep their intervals, compiled or not, and no bound of the rest changes."""
    f = mlp(3, 9, 9, 5)
    g = moved(f, 0.05)
    chain = dense_chain.chain_of(read_problem(f, g, torch.zeros(1, 3))).of_pairs()
    lo = torch.rand(40, 3, dtype=torch.float64) - 1
    hi = lo + torch.rand(40, 1, dtype=torch.float64)
    wanted = torch.rand(40, 10) < 0.4
    whole = chain.bounds(lo, hi)
    rows = torch.arange(40)
    for bounds in (
        chain.bounds(lo, hi, None, rows, wanted),
        chain.bounds_in_torch(lo, hi, None, wanted),
    ):
        each = wanted.unsqueeze(1).expand_as(whole.ends)
        assert torch.allclose(bounds.ends[each], whole.ends[each], rtol=1e-9, atol=1e-12)
        assert bool((bounds.ends[:, 1::2] >= whole.ends[:, 1::2] - 1e-12).all())
        assert bool((bounds.ends[:, 1::2] > whole.ends[:, 1::2] + 1e-9).any())
        assert torch.allclose(bounds.known, whole.known, rtol=1e-9, atol=1e-12)


def test_networks_that_agree():
    f = mlp(3, 8, 3)
    found = sc.smallest_margin(f, f, box=box(3), seconds=20)
    assert found.proven == found.refuted == 0 and found.witness is None and not len(found.open)
    assert "no input found" in str(found)


def test_certify_proves_what_is_proven():
    f = mlp(3, 8, 8, 3)
    g = moved(f, 0.1)
    found = sc.smallest_margin(f, g, box=box(3), seconds=30)
    cert = sc.certify(f, g, box=box(3), claim="top-1", margin=1.01 * found.proven, seconds=60)
    assert cert.answer == "proven"
    under = sc.certify(f, g, box=box(3), claim="top-1", margin=0.99 * found.refuted, seconds=60)
    assert under.answer == "refuted"


def test_models_stay_as_they_are():
    f = mlp(3, 8, 3)
    g = moved(f, 0.1)
    before = copy.deepcopy((f.state_dict(), g.state_dict()))
    with torch.inference_mode():
        sc.smallest_margin(f, g, box=box(3), seconds=5)
    for old, model in zip(before, (f, g), strict=True):
        assert all(torch.equal(v, old[n]) for n, v in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"seconds": 0}, ArgumentError, "seconds=0: give a number above 0"),
        ({"seconds": math.nan}, ArgumentError, "seconds=nan"),
        ({"seconds": True}, ArgumentError, "seconds=True"),
        ({"tolerance": -1}, ArgumentError, "tolerance=-1: give a number of at least 0"),
        ({"box": (0.0, 1.0)}, ArgumentError, "give example="),
        ({"box": (torch.ones(1, 3), torch.zeros(1, 3))}, DomainError, "lo > hi"),
        ({"box": (torch.zeros(1, 3), torch.full((1, 3), math.inf))}, DomainError, "infinity"),
    ],
)
def test_bad_input_is_named(options, error, text):
    f = mlp(3, 8, 3)
    with pytest.raises(error, match=re.escape(text)):
        sc.smallest_margin(f, f, **{"box": box(3), **options})


def test_what_are_no_classes_or_no_pair_is_refused():
    with pytest.raises(ArgumentError, match="compares 2 to 64 classes"):
        sc.smallest_margin(mlp(3, 4, 1), mlp(3, 4, 1), box=box(3))
    with pytest.raises(StructureMismatch):
        sc.smallest_margin(mlp(3, 4, 2), mlp(3, 5, 2), box=box(3))


def test_programs_have_the_time_that_no_batch_of_parts_fits_into(monkeypatch):
    f = mlp(3, 8, 8, 3, seed=1)
    g = moved(f, 0.3)
    monkeypatch.setattr(prover.Pace, "allows", lambda pace, count: False)
    found = sc.smallest_margin(f, g, box=box(3), seconds=30, tolerance=0.02)
    assert found.proven <= 1.02 * found.refuted
    attacked = needed(f, g, 2 * torch.rand(50_000, 3, dtype=torch.float64) - 1)
    assert attacked <= found.proven


@pytest.mark.parametrize("boxes", [16, 17])
def test_of_many_boxes_only_inputs_are_cut(boxes, monkeypatch):
    made = []
    monkeypatch.setattr(
        prover,
        "SignPrograms",
        type("Counted", (prover.SignPrograms,), {"fit": staticmethod(lambda c: made.append(c))}),
    )
    ends = torch.linspace(-1, 1, boxes + 1)
    lo, hi = (torch.stack([t, torch.zeros_like(t)], dim=1) for t in (ends[:-1], ends[1:]))
    f = mlp(2, 6, 3)
    found = sc.smallest_margin(f, moved(f, 0.1), box=(lo, hi), seconds=5)
    assert bool(made) == (boxes == 16)
    assert found.refuted <= found.proven < math.inf
