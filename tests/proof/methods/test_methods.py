"""No deviation may exceed its bound: over 10,000 cases (network, changed network, input) in each of
two precisions.
"""

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

import secateurs as sc
from secateurs.base.random import generator
from secateurs.proof import METHODS
from secateurs.proof.certify import search_boxes
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import OWN_UNIT, read_problem
from tiny_networks import KINDS, fully_connected, pruned, randomize, rounded, tuned

CHANGES = {
    "pruned": lambda model, g: pruned(model, g),
    "rounded": lambda model, g: rounded(model, 5),
    "tuned": lambda model, g: tuned(model, g),
}
# The bounds of a box take their time, the inputs in it do not.
BOXES, INPUTS, NETWORKS = 4, 70, 2
RADII = torch.tensor([0.0, 0.003, 0.05, 1.0])
CASES = len(KINDS) * len(CHANGES) * NETWORKS * BOXES * INPUTS


def test_there_are_enough_cases():
    assert CASES >= 10_000


def balls(shape, g):
    """Float32 centres and boxes of four sizes, so that inputs can be drawn without rounding out of
    the box.
    """
    center = torch.randn(BOXES, *shape, generator=g)
    domain = ball_domain(center, 1.0)
    radii = RADII.double().reshape(-1, *[1] * len(shape))
    lo, hi = (center - radii).double(), (center + radii).double()
    return type(domain)(lo=lo, hi=hi, center=center.double(), radius=None, description="balls")


def inputs(domain, g, worst):
    """Random inner points and corners of every box, and the worst input the search found: (INPUTS,
    boxes, *shape).
    """
    share = torch.rand(INPUTS - 1, *domain.lo.shape, generator=g, dtype=torch.float64)
    share[::2] = share[::2].round()
    x = torch.cat([domain.lo + share * (domain.hi - domain.lo), worst.unsqueeze(0)])
    # Rounding to float32 may leave the box by one unit: step back to the centre then.
    single = x.float().double()
    return torch.where(
        (single < domain.lo) | (single > domain.hi),
        domain.center.expand_as(x),
        single,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_deviation_exceeds_any_bound(kind, change, dtype):
    make, shape = KINDS[kind]
    g = generator(0, f"{kind} {change} {dtype}")
    for _ in range(NETWORKS):
        dense = randomize(make().to(dtype), g)
        sparse = CHANGES[change](dense, g)
        domain = balls(shape, g)
        unit = 0.0 if dtype == torch.float64 else OWN_UNIT
        problem = read_problem(dense, sparse, domain.example, unit=unit)
        assert problem.dtype == dtype
        x = inputs(domain, g, search_boxes(problem, domain, restarts=1, steps=4, generator=g).worst)
        with torch.no_grad():
            flat = x.flatten(0, 1).to(dtype)
            one, two = dense(flat), sparse(flat)
            seen = (one.double() - two.double()).abs().reshape(INPUTS, BOXES, -1).amax(dim=0)
            error = problem.rounding_errors(domain)
        # The bound is for real numbers: allow what evaluating the reference here
        # rounds.
        if dtype == torch.float64:
            error = torch.full_like(seen, 1e-13) * (1 + one.abs().max())
        proven, skipped = run_methods(problem, domain, METHODS.names())
        assert set(proven) | set(skipped) == set(METHODS.names())
        assert (skipped.keys() > {"zonotope"}) == (change == "tuned")
        # Values of f and of g, not of their difference: it is the rounding of those that counts.
        proven |= run_methods(replace(problem, unit=OWN_UNIT), domain, ["zonotope"])[0]
        for name, reach in proven.items():
            assert bool((seen <= reach.per_output + error).all()), (
                f"{name}: {(seen - reach.per_output).max()}"
            )
            if reach.whole is not None:
                assert bool((seen.sum(dim=1) <= reach.whole + error.sum(dim=1)).all()), name


@pytest.mark.parametrize("method", METHODS.names())
def test_bounds_cover_exact_rational_arithmetic(method):
    """The outward rounding is real: the exact deviation at the centre and at corners never exceeds
    the bound.
    """
    g = generator(1, method)
    for radius in (0.0, 0.1):
        dense = randomize(fully_connected().double(), g)
        sparse = pruned(dense, g)
        center = torch.randn(1, 5, generator=g, dtype=torch.float64)
        cert = sc.certify(dense, sparse, around=center, radius=radius, methods=method, restarts=0)
        lo, hi = cert.region.lo[0], cert.region.hi[0]
        corners = list(
            itertools.product(*[(l, h) for l, h in zip(lo.tolist(), hi.tolist(), strict=True)])
        )
        for x in [*corners[::5], center[0].tolist()]:
            gaps = [abs(a - b) for a, b in zip(exactly(dense, x), exactly(sparse, x), strict=True)]
            assert all(
                gap <= Fraction(float(b)) for gap, b in zip(gaps, cert.per_output, strict=True)
            )


def exactly(model, x):
    """A fully connected ReLU network in fractions."""
    values = [Fraction(v) for v in x]
    for layer in model:
        if isinstance(layer, torch.nn.ReLU):
            values = [max(v, Fraction(0)) for v in values]
            continue
        rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        values = [
            sum(
                (Fraction(w) * v for w, v in zip(row, values, strict=True)),
                Fraction(b),
            )
            for row, b in rows
        ]
    return values
