"""The planes around a ReLU and around a difference of ReLUs, by sampling what they must cover."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from secateurs.proof.forms import Bounds
from secateurs.proof.planes import (
    difference_above,
    difference_below,
    height_above,
    planes_above,
    relu_above,
    relu_below,
    relu_range,
)

FIELDS = ("l", "h", "gl", "gh", "dl", "dh")


def random_bounds(count, scale):
    z, d = (
        torch.randn(count, dtype=torch.float64),
        scale * torch.randn(count, dtype=torch.float64),
    )

    def wide(s):
        return s * torch.rand(count, dtype=torch.float64)

    l, h, dl, dh = z - wide(2), z + wide(2), d - wide(scale), d + wide(scale)
    return Bounds(l=l, h=h, gl=l - dh, gh=h - dl, dl=dl, dh=dh).consistent()


def ranges_of_all_shapes(count, scale, seed=0):
    """Around a point, each end as far as it happens to be, so that any three of them may bind."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    z, d = draw(count) - 0.5, scale * (2 * draw(count) - 1)
    far = draw(6, count) * 10 ** (-draw(6, count))
    return Bounds(
        l=z - far[0],
        h=z + far[1],
        gl=z - d - far[2],
        gh=z - d + far[3],
        dl=d - scale * far[4],
        dh=d + scale * far[5],
    ).consistent()


def points(b, count=60):
    """Pairs (z, δ) on a grid with random inner points, kept where z' = z − δ is within its
    bounds.
    """
    for k in range(count):
        u, v = torch.rand_like(b.l), torch.rand_like(b.l)
        if k % 3 == 0:
            u, v = u.round(), v.round()
        z, d = b.l + u * (b.h - b.l), b.dl + v * (b.dh - b.dl)
        inside = (z - d >= b.gl - 1e-12) & (z - d <= b.gh + 1e-12)
        yield z[inside], d[inside], inside


def corners_of(b):
    """Where two of the lines cross that bound the ranges of one neuron or are a kink, as (z, δ),
    and the difference of ReLUs there.
    """
    l, h, gl, gh, dl, dh = (getattr(b, name).item() for name in FIELDS)
    ends = [(1, 0, h), (-1, 0, -l), (0, 1, dh), (0, -1, -dl), (1, -1, gh), (-1, 1, -gl)]
    found = []
    for one, two in combinations([*ends, (1, 0, 0.0), (1, -1, 0.0)], 2):
        lines = np.array([one[:2], two[:2]], dtype=float)
        if abs(np.linalg.det(lines)) < 0.5:
            continue
        z, d = np.linalg.solve(lines, [one[2], two[2]])
        if all(p * z + q * d <= c + 1e-9 for p, q, c in ends):
            found.append((z, d))
    corners = np.array(found).reshape(-1, 2)
    return corners, corners[:, 0].clip(0) - (corners[:, 0] - corners[:, 1]).clip(0)


def kept(plane, inside):
    return type(plane)(p=plane.p[inside], q=plane.q[inside], c=plane.c[inside])


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 30.0])
def test_every_plane_is_on_its_side(scale):
    b = ranges_of_all_shapes(4000, scale)
    for z, d, inside in points(b):
        truth = z.relu() - (z - d).relu()
        for plane in planes_above(b):
            assert bool((kept(plane, inside).at(z, d) >= truth - 1e-9 * (1 + scale)).all())
        # Planes below are those above the exchanged pair, z − δ and z.
        for plane in planes_above(b.exchanged()):
            assert bool((kept(plane, inside).at(z - d, -d) >= -truth - 1e-9 * (1 + scale)).all())
        below = kept(difference_below(b), inside)
        assert bool((below.at(z, d) <= truth + 1e-9 * (1 + scale)).all())
        assert bool((kept(relu_above(b.l, b.h), inside).at(z, d) >= z.relu() - 1e-12).all())
        assert bool((kept(relu_below(b.l, b.h), inside).at(z, d) <= z.relu() + 1e-12).all())


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 30.0])
def test_the_range_is_sound_and_attained(scale):
    b = random_bounds(500, scale)
    r = relu_range(b)
    low, high = torch.full_like(b.l, torch.inf), torch.full_like(b.l, -torch.inf)
    for z, d, inside in points(b, 600):
        truth = z.relu() - (z - d).relu()
        assert bool((truth <= r.dh[inside] + 1e-12).all()) and bool(
            (truth >= r.dl[inside] - 1e-12).all()
        )
        low[inside], high[inside] = (
            torch.minimum(low[inside], truth),
            torch.maximum(high[inside], truth),
        )
    reached = (high - low) / (r.dh - r.dl).clamp(min=1e-300)
    assert float(reached[torch.isfinite(reached) & (r.dh > r.dl)].median()) > 0.9


@pytest.mark.parametrize(
    ("scale", "share"), [(0.03, 1e-4), (0.3, 0.0105), (1.0, 0.0155), (3.0, 0.0085)]
)
def test_the_planes_are_all_that_there_is_above_a_difference(scale, share):
    """The lowest of them is hardly above the least concave function: the best mean of values at
    corners.
    """
    g = np.random.default_rng(0)
    b = ranges_of_all_shapes(200, scale)
    b = b.each(lambda end: end[~b.settled])
    lost, width = 0.0, 0.0
    for k in range(len(b.l)):
        one = b.each(lambda end, k=k: end[k : k + 1])
        corners, value = corners_of(one)
        if len(corners) < 4:
            continue
        middle = torch.from_numpy(g.dirichlet(np.ones(len(corners))) @ corners)
        sums = np.vstack([corners.T, np.ones(len(corners))])
        ends = [sign * linprog(sign * value, A_eq=sums, b_eq=[*middle, 1]).fun for sign in (-1, 1)]
        above = min(plane.at(*middle).item() for plane in planes_above(one))
        assert above >= ends[0] - 1e-9
        lost, width = lost + above - ends[0], width + ends[0] - ends[1]
    assert lost <= share * width


def test_settled_neurons_lose_nothing():
    """Both active: δ. Both inactive: 0. One of each: z or −z'."""
    one = torch.ones(4, dtype=torch.float64)
    sign_f, sign_g = (
        torch.tensor([1.0, -1, 1, -1]).double(),
        torch.tensor([1.0, -1, -1, 1]).double(),
    )
    l, h = torch.minimum(sign_f, 3 * sign_f), torch.maximum(sign_f, 3 * sign_f)
    gl, gh = torch.minimum(sign_g, 3 * sign_g), torch.maximum(sign_g, 3 * sign_g)
    b = Bounds(l=l, h=h, gl=gl, gh=gh, dl=-9 * one, dh=9 * one).consistent()
    assert bool(b.settled.all())
    z, d = 2 * sign_f, 2 * sign_f - 1.5 * sign_g
    for plane in (difference_above(b), difference_below(b)):
        assert torch.allclose(plane.at(z, d), z.relu() - (z - d).relu())


def test_meeting_bounds_never_loses():
    a, b = random_bounds(300, 1.0), random_bounds(300, 1.0)
    both = a.meet(Bounds(**{k: getattr(b, k) + (-9 if k.endswith("l") else 9) for k in FIELDS}))
    for low in ("l", "gl", "dl"):
        assert bool((getattr(both, low) >= getattr(a, low)).all())
    for high in ("h", "gh", "dh"):
        assert bool((getattr(both, high) <= getattr(a, high)).all())


def test_a_leaky_plane():
    """slope·z + (1 − slope)·relu(z) between its planes, and the difference of two of these."""
    b = random_bounds(500, 0.5)
    for slope in (-0.5, 0.1, 0.9):
        above = difference_above(b).leaky(slope, difference=True)
        below = difference_below(b).leaky(slope, difference=True)
        for z, d, inside in points(b, 30):

            def leaky(v, s=slope):
                return s * v + (1 - s) * v.relu()

            truth = leaky(z) - leaky(z - d)
            assert bool((kept(above, inside).at(z, d) >= truth - 1e-12).all())
            assert bool((kept(below, inside).at(z, d) <= truth + 1e-12).all())


@pytest.mark.parametrize("by", [-4e-16, 0.0, 4e-16])
def test_the_last_digit_chooses_no_plane(by):
    """Two planes are equally good on ranges that lie evenly around 0."""

    def ends(size):
        low = torch.full((1,), -size, dtype=torch.float64)
        return low, torch.full((1,), size * (1 + by), dtype=torch.float64)

    (l, h), (dl, dh) = ends(1.0), ends(2.0)
    b = Bounds(l=l, h=h, gl=3 * l, gh=3 * h, dl=dl, dh=dh)
    assert relu_below(l, h).p.item() == 0
    above = difference_above(b)
    assert (above.p.item(), above.q.item()) == (pytest.approx(0.5), 0)


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_a_height_is_the_least_for_any_slopes(scale):
    b = ranges_of_all_shapes(300, scale)
    g = torch.Generator().manual_seed(1)
    s, t = 2 * torch.rand(2, 300, generator=g, dtype=torch.float64) - 0.5
    height = height_above(b, s, t, 2.0**-53)
    for z, d, inside in points(b, 90):
        above = s[inside] * z - t[inside] * (z - d) + height[inside]
        assert bool((z.relu() - (z - d).relu() <= above).all())
    for k in range(300):
        corners, value = corners_of(b.each(lambda end, k=k: end[k : k + 1]))
        if len(corners):
            (z, d), slopes = torch.tensor(corners).T, (float(s[k]), float(t[k]))
            reached = (torch.tensor(value) - slopes[0] * z + slopes[1] * (z - d)).max()
            assert float(height[k]) == pytest.approx(float(reached), abs=1e-8)
