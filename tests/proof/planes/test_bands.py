"""Bands around a ReLU and around a difference of ReLUs, by what they must cover, the narrowest that
there are, and what their rounding is measured by.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from proof.planes.test_planes import corners_of, kept, points, ranges_of_all_shapes
from secateurs.proof.forms import FIELDS, Bounds, StreamValues
from secateurs.proof.planes import Band, Plane, band_mass, bands


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.3, 1.7])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 30.0])
def test_bands_cover_what_they_are_around(scale, slope):
    b = ranges_of_all_shapes(3000, scale)
    f, g, gap = bands(b, slope, 0.0)
    far = 1e-12 * (1 + scale)
    for z, d, inside in points(b, 90):
        bent, other = (torch.where(v > 0, v, slope * v) for v in (z, z - d))
        for band, truth, at in (
            (f, bent, (z, d)),
            (g, other, (z - d, d)),
            (gap, bent - other, (z, d)),
        ):
            off = truth - kept(band.plane, inside).at(*at)
            assert bool((off.abs() <= band.half[inside] + far).all())


@pytest.mark.parametrize("scale", [1e-3, 0.03, 0.3, 1.0, 3.0])
def test_bands_are_hardly_wider_than_the_narrowest(scale):
    b = ranges_of_all_shapes(200, scale)
    gap = bands(b, 0.0, 0.0)[-1]
    least = 0.0
    for k in range(200):
        corners, value = corners_of(b.each(lambda end, k=k: end[k : k + 1]))
        if not len(corners):
            continue
        # Slopes of δ are found better where δ is as large as z.
        corners, ones = corners / (1, scale), np.ones(len(corners))
        planes = np.vstack([np.c_[sign * corners, sign * ones, -ones] for sign in (-1, 1)])
        found = linprog(
            *((0, 0, 0, 1), planes, np.r_[-value, value]),
            bounds=[(None, None)] * 3 + [(0, None)],
        )
        assert gap.half[k] >= found.fun - 1e-9
        least += found.fun
    assert float(gap.half.sum()) <= 1.004 * least


@pytest.mark.parametrize("scale", [1e-12, 0.03, 1.0])
def test_ranges_that_differ_by_roundings_get_the_same_bands(scale):
    """Or a bound would depend on the order of a processor's sums, and on the rest of a batch: of
    240 balls 83 differed from themselves alone, by up to a tenth.
    """
    b = ranges_of_all_shapes(3000, scale)
    g = torch.Generator().manual_seed(0)
    ulps = {
        k: torch.randint(-2, 3, end.shape, generator=g).double() for k, end in columns(b).items()
    }
    near = Bounds(**{k: end * (1 + 2.0**-52 * ulps[k]) for k, end in columns(b).items()})
    (*_, one), (*_, two) = bands(b, 0.0, 2.0**-53), bands(near.consistent(), 0.0, 2.0**-53)
    apart = (one.plane.p - two.plane.p).abs() + (one.plane.q - two.plane.q).abs()
    assert not bool((apart > 1e-6).any())


def columns(b):
    return {field: getattr(b, field) for field in FIELDS}


def test_roundings_are_within_the_band():
    """In single precision, where they show: at the corners, and without their share outside."""
    b = ranges_of_all_shapes(4000, 1e-4)
    small = b.each(lambda end: end.float())
    # What was rounded is the range that counts.
    b = small.each(lambda end: end.double())
    for unit, covers in ((2.0**-24, True), (0.0, False)):
        f, g, gap = bands(small, 0.0, unit)
        outside = []
        for z, d, inside in points(b, 30):
            for band, truth, at in (
                (f, z.relu(), (z, d)),
                (g, (z - d).relu(), (z - d, d)),
                (gap, z.relu() - (z - d).relu(), (z, d)),
            ):
                plane = band.plane
                exact = Plane(p=plane.p.double(), q=plane.q.double(), c=plane.c.double())
                off = (truth - kept(exact, inside).at(*at)).abs() - band.half.double()[inside]
                outside.append(bool((off > 1e-15).any()))
        assert any(outside) != covers


def test_settled_neurons_have_no_band():
    one = torch.ones(1, dtype=torch.float64)
    for sign, sign_g, slopes in (
        (1, 1, (0, 1)),
        (-1, -1, (0, 0)),
        (1, -1, (1, 0)),
        (-1, 1, (-1, 1)),
    ):
        ends = [(min(s, 3 * s) * one, max(s, 3 * s) * one) for s in (sign, sign_g)]
        (l, h), (gl, gh) = ends
        b = Bounds(l=l, h=h, gl=gl, gh=gh, dl=l - gh, dh=h - gl)
        gap = bands(b, 0.0, 2.0**-53)[-1]
        assert (gap.plane.p.item(), gap.plane.q.item()) == slopes
        assert gap.plane.c.item() == gap.half.item() == 0


@pytest.mark.parametrize("slope", [-7.97, 0.1, 4.7])
def test_what_a_neuron_passes_on_is_not_rounded(slope):
    """Although slope + (1 − slope) need not be 1."""
    one = torch.ones(1, dtype=torch.float64)
    b = Bounds(l=one, h=2 * one, gl=one, gh=2 * one, dl=-one, dh=one)
    f, g, gap = bands(b, slope, 2.0**-53)
    assert f.plane.p.item() == g.plane.p.item() == gap.plane.q.item() == 1


def test_equal_neurons_have_no_band():
    one = torch.ones(1, dtype=torch.float64)
    b = Bounds(l=-one, h=one, gl=-one, gh=one, dl=0 * one, dh=0 * one)
    gap = bands(b, 0.0, 2.0**-53)[-1]
    assert gap.plane.p.item() == gap.plane.c.item() == gap.half.item() == 0


def test_what_overflowed_stays_unknown():
    nan = torch.full((1,), torch.nan, dtype=torch.float64)
    b = Bounds(l=nan, h=nan, gl=nan, gh=nan, dl=nan, dh=nan)
    assert all(bool(band.half.isnan()) for band in bands(b, 0.0, 2.0**-53))


def test_the_mass_of_a_band_counts_each_of_its_terms():
    """Every term is rounded by its own size, so the sizes add up whatever the signs."""
    plane = Plane(p=torch.tensor(-2.0), q=torch.tensor(3.0), c=torch.tensor(-5.0))
    band = Band(plane=plane, half=torch.tensor(7.0), difference=True)
    mass = StreamValues(m=torch.tensor(10.0), d=torch.tensor(100.0))
    assert band_mass(band, mass) == 2 * 10 + 3 * 100 + 5 + 7
