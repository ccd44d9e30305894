"""hardswish between bounds: its slopes, ranges and bands against points, and certificates of
networks that hold it against what is found.
"""

import copy
from fractions import Fraction

import pytest
import torch
from torch import nn

import secateurs as sc
from attack.cases import boxes, points
from secateurs.errors import UnsupportedOperation
from secateurs.graph.primitives import Opaque
from secateurs.proof import hardswish, recheck
from secateurs.proof.certify import prove
from secateurs.proof.domain import ball_domain
from secateurs.proof.forms import Bounds
from secateurs.proof.problem import OWN_UNIT, read_problem
from secateurs.proof.top_class import pair_ends

F = nn.functional


def ranges(g: torch.Generator, count: int) -> Bounds:
    """Of f, of g and of f − g, around every bend, of all widths."""
    at = torch.tensor([-3.0, -1.5, 0.0, 3.0, 40.0, -40.0], dtype=torch.float64)

    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        middle = at[torch.randint(len(at), (count,), generator=g)]
        middle = middle + torch.randn(count, generator=g, dtype=torch.float64)
        width = 10.0 ** (4 * torch.rand(count, generator=g, dtype=torch.float64) - 3)
        return middle - width, middle + width

    (l, h), (gl, gh) = drawn(), drawn()
    return Bounds(l=l, h=h, gl=gl, gh=gh, dl=l - gh, dh=h - gl)


def inside(b: Bounds, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of f and of g, (points, neurons), the ends among them."""
    share = torch.rand(2, 200, len(b.l), generator=g, dtype=torch.float64)
    share[:, :100] = share[:, :100].round()
    return b.l + share[0] * (b.h - b.l), b.gl + share[1] * (b.gh - b.gl)


def test_slopes_are_those_of_autograd():
    g = torch.Generator().manual_seed(0)
    b = ranges(g, 500)
    m, most = hardswish.slopes(b.l, b.h, 0.0)
    z = inside(b, g)[0].requires_grad_()
    (slope,) = torch.autograd.grad(F.hardswish(z).sum(), z)
    # At the two bends torch takes one side.
    straight = (z.detach().abs() - 3).abs() > 1e-9
    assert ((slope >= m - 1e-9) | ~straight).all() and ((slope <= most + 1e-9) | ~straight).all()
    nearest = torch.stack([(slope.amin(0) - m).abs(), (slope.amax(0) - most).abs()])
    assert (nearest < 0.05).double().mean() > 0.8


def test_ranges_and_bands_hold_every_point_and_are_not_much_wider():
    g = torch.Generator().manual_seed(1)
    b = ranges(g, 2000)
    z, other = inside(b, g)
    y, d = F.hardswish(z), F.hardswish(z) - F.hardswish(other)
    r = hardswish.ranges(b, OWN_UNIT)
    tiny = 1e-13  # the points are rounded as well
    assert (r.l <= y + tiny).all() and (y <= r.h + tiny).all()
    assert (r.dl <= d + tiny).all() and (d <= r.dh + tiny).all()
    assert ((r.h - r.l) <= 1.05 * (y.amax(0) - y.amin(0)) + 1e-9).double().mean() > 0.7
    bands = hardswish.bands(b, OWN_UNIT)
    for at, band, seen in zip((z, other, z), bands, (y, F.hardswish(other), d), strict=True):
        off = (seen - band.plane.at(at, z - other)).abs()
        assert (off <= band.half + tiny).all()
        for plane, sign in zip(band.sides, (1, -1), strict=True):
            assert (sign * (plane.at(at, z - other) - seen) >= -tiny).all()
    for at, band in ((z, bands[0]), (other, bands[1])):
        off = (F.hardswish(at) - band.plane.at(at, z - other)).abs().amax(0)
        # Both ends of a range are among the points, and one of both decides.
        assert (band.half <= 1.2 * off + 1e-12).double().mean() > 0.95


KNOWN = {  # ends, slopes, values, half of the band
    (-5.0, -4.0): ((0.0, 0.0), (0.0, 0.0), 0.0),
    # 0.15 x is the chord, which is 0.18375 above where the slope is 0.15.
    (-6.0, 1.5): ((-0.5, 1.0), (-0.375, 1.125), (0.9 + 0.18375) / 2),
    (-3.0, 3.0): ((-0.5, 1.5), (-0.375, 3.0), 0.75),
    (-4.0, 4.0): ((-0.5, 1.5), (-0.375, 4.0), 1.0),
    (-2.0, -1.0): ((-1 / 6, 1 / 6), (-0.375, -1 / 3), 1 / 48),
    (0.0, 3.0): ((0.5, 1.5), (0.0, 3.0), 3 / 16),
    # Straight but for a bend of 3/8 below its chord.
    (0.0, 9.0): ((0.5, 1.5), (0.0, 9.0), 3 / 16),
    (4.0, 9.0): ((1.0, 1.0), (4.0, 9.0), 0.0),
}


@pytest.mark.parametrize("ends", KNOWN)
def test_known_ranges(ends):
    slopes, values, half = KNOWN[ends]
    l, h = (torch.tensor([end], dtype=torch.float64) for end in ends)
    b = Bounds(l=l, h=h, gl=l, gh=h, dl=l - h, dh=h - l)
    found = [float(s) for s in hardswish.slopes(l, h, 0.0)]
    assert found == pytest.approx(slopes, abs=1e-15)
    assert max(map(abs, found)) <= hardswish.STEEPEST
    r = hardswish.ranges(b, 0.0)
    assert [float(r.l), float(r.h)] == pytest.approx(values, abs=1e-15)
    around_z, around_g, around_d = hardswish.bands(b, 0.0)
    assert float(around_z.half) == float(around_g.half) == pytest.approx(half, abs=1e-15)
    assert bool(hardswish.bends(b)) == bool(around_z.half) == bool(around_d.half)


def test_the_steepest_slope_is_reached():
    ends = torch.tensor([-9.0, 9.0], dtype=torch.float64)
    assert float(hardswish.slopes(*ends, 0.0)[1]) == hardswish.STEEPEST


def exact(z: Fraction) -> Fraction:
    return z * min(max(z + 3, Fraction(0)), Fraction(6)) / 6


def test_roundings_are_covered():
    """In exact numbers, at the ends of ranges so narrow that roundings are all there is."""
    g = torch.Generator().manual_seed(2)
    at = torch.tensor([-3.0, -2.999, -1.5, 0.0, 2.999, 7.0], dtype=torch.float64)
    middle = at[torch.randint(len(at), (600,), generator=g)]
    middle = middle + 1e-3 * torch.randn(600, generator=g, dtype=torch.float64)
    width = 1e-9 * torch.rand(600, generator=g, dtype=torch.float64)
    l, h = middle - width, middle + width
    b = Bounds(l=l, h=h, gl=l, gh=h, dl=l - h, dh=h - l)
    m, most = hardswish.slopes(l, h, OWN_UNIT)
    r, (around, *_) = hardswish.ranges(b, OWN_UNIT), hardswish.bands(b, OWN_UNIT)
    rows = (l, h, m, most, r.l, r.h, around.plane.p, around.plane.c, around.half)
    for row in zip(*(each.tolist() for each in rows), strict=True):
        low, high, least, largest, down, up, p, c, half = map(Fraction, row)
        for z in (low, high):
            assert down <= exact(z) <= up
            assert abs(exact(z) - p * z - c) <= half
            if abs(z) < 3:
                assert least <= (2 * z + 3) / 6 <= largest


def test_other_functions_are_not_bounded_as_a_hardswish():
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 1)).eval()
    graph = sc.capture(model, torch.zeros(1, 2), opaque=True)
    (node,) = (node for node in graph.nodes if isinstance(node, Opaque))
    with pytest.raises(UnsupportedOperation, match=r"gelu.*no bound of it is known"):
        hardswish.check(node)


class Swished(nn.Module):
    """A convolution, a skip, and linear layers, with hardswish between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 1, groups=3)
        self.last = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3), nn.Softmax(1))

    def forward(self, x):
        x = F.hardswish(self.first(x))
        x = F.hardswish(self.second(x), inplace=True) + x
        return self.last(F.avg_pool2d(x, 2).flatten(1))


KINDS = {
    "dense": lambda: nn.Sequential(
        nn.Linear(5, 9), nn.Hardswish(), nn.Linear(9, 7), nn.Hardswish(), nn.Linear(7, 2)
    ),
    "last": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Hardswish()),
    "convolutions": Swished,
}
SHAPES = {"dense": (5,), "last": (4,), "convolutions": (2, 4, 4)}


def networks(kind: str, seed: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    dense = KINDS[kind]()
    for p in dense.parameters():
        p.data *= 10.0 ** (torch.rand(()) - 0.3)
    other = copy.deepcopy(dense)
    for p in other.parameters():
        p.data += 0.1 * p.data.std().nan_to_num() * torch.randn(p.shape) * (torch.rand(()) < 0.7)
    sc.prune_(other, "magnitude", sparsity=0.1)
    return dense.to(dtype).eval(), other.to(dtype).eval()


def attacked(kind: str, seed: int) -> tuple[int, int]:
    """Certificates, and how many say something; each above all that is found."""
    dtype = (torch.float32, torch.float64)[seed % 2]
    own = networks(kind, seed, dtype)
    g = torch.Generator().manual_seed(seed)
    domain = boxes(SHAPES[kind], g)
    problem = read_problem(*own, domain.center[:1].to(dtype), ending=True, unit=OWN_UNIT)
    x = points(*(copy.deepcopy(m).double() for m in own), domain, g)
    with torch.no_grad():
        least = problem.differences(x.flatten(0, 1)).least.reshape(*x.shape[:2], -1).amax(0)
        rows = torch.minimum(torch.maximum(x.half().double(), domain.lo), domain.hi).flatten(0, 1)
        one, two = (m(rows.to(dtype)).double() for m in own)
        seen = (one - two).abs().reshape(*x.shape[:2], -1).amax(0)
    tight = 0
    for method in ("interval", "affine", "zonotope", "linear"):
        for rounding, found in (("auto", least), (True, seen)):
            proof = prove(problem, domain, methods=[method], norm=2, rounding=rounding)
            assert (found <= proof.per_box).all(), (kind, seed, method, rounding)
            tight += int((proof.per_box.amax(1) <= 3 * found.amax(1)).sum())
    return 8 * len(domain), tight


@pytest.mark.parametrize("kind", KINDS)
def test_no_deviation_lies_above_a_bound(kind):
    found = [attacked(kind, seed) for seed in range(4)]
    assert sum(each for each, _ in found) == 1536 and sum(tight for _, tight in found) > 300


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_and_its_second_proof(kind):
    dense, sparse = networks(kind, 1, torch.float32)
    x = torch.randn(3, *SHAPES[kind])
    cert = sc.certify(dense, sparse, around=x, radius=1e-3)
    # The softmax behind the convolutions is not at its steepest.
    most = 1.5 if kind == "convolutions" else 1.2
    assert 0 < cert.lower_bound <= cert.bound <= most * cert.lower_bound
    assert set(cert.bounds) == {"interval", "affine", "linear"}
    assert max(cert.bounds["linear"], cert.bounds["affine"]) < cert.bounds["interval"]
    assert "it bounds piecewise linear networks alone, not the " in cert.skipped["two-stream"]
    assert recheck(cert.to_json(), dense, sparse).holds
    assert 0 <= cert.certified_share(x) <= 1


def test_a_target_is_reached_by_splitting():
    dense, sparse = networks("dense", 1, torch.float64)
    box = (torch.zeros(1, 5), torch.ones(1, 5))
    whole = sc.certify(dense, sparse, box=box)
    target = (whole.bound + whole.lower_bound) / 2
    found = sc.certify(dense, sparse, box=box, target=target, seconds=30)
    assert found.answer == "proven" and found.bound <= target < whole.bound


@pytest.mark.parametrize("effort", [1e9, 1e4])
def test_differences_of_classes_lie_within_their_ends(effort):
    """By passes, and by zonotopes where the effort is short."""
    dense, sparse = networks("convolutions", 2, torch.float64)
    x = torch.randn(1, *SHAPES["convolutions"], dtype=torch.float64)
    problem = read_problem(dense, sparse, x, ending=True, unit=OWN_UNIT, effort=effort)
    domain = ball_domain(x, 0.05)
    ends, complete = pair_ends(problem, domain)
    assert complete == (effort < 1e9)
    g = torch.Generator().manual_seed(0)
    near = x + 0.05 * (2 * torch.rand(500, *x.shape[1:], generator=g).double() - 1).round()
    toward = torch.tensor([[1.0, -1, 0], [1, 0, -1], [0, 1, -1]], dtype=torch.float64).T
    one, two = (own(near) @ toward for own in problem.own)
    for k, values in enumerate((one, two, one - two)):
        low, high = ends[0, 2 * k], ends[0, 2 * k + 1]
        assert (values >= low).all() and (values <= high).all()
        assert (high - low <= 3 * (values.amax(0) - values.amin(0))).all()


def test_a_class_that_cannot_change_is_proven():
    dense, sparse = networks("dense", 0, torch.float32)
    cert = sc.certify(dense, sparse, around=torch.randn(1, 5), radius=1e-4, claim="top-1")
    assert cert.claim.answer == "proven"


def test_path_norms_and_methods_of_paths_are_refused_with_a_way_out():
    dense, sparse = networks("dense", 0, torch.float32)
    x = torch.randn(1, 5)
    with pytest.raises(UnsupportedOperation, match=r"hardswish.*Replace them"):
        sc.path_norm(dense, x)
    with pytest.raises(
        sc.errors.TheoryError, match="no method applies here: two-stream: it bounds"
    ):
        sc.certify(dense, sparse, around=x, radius=0.1, methods="two-stream")
