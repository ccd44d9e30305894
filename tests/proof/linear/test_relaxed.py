"""Relaxed values: slopes beyond [0, 1], and the side that each sign takes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from proof.pairs import problem_of
from secateurs.proof import METHODS
from secateurs.proof.domain import ball_domain
from secateurs.proof.linear import sided
from secateurs.proof.methods import relax_with, run_methods
from tiny_networks import randomize, tuned


@pytest.mark.parametrize("slope", [-0.7, 0.3, 1.6])
def test_any_slope_of_a_leaky_relu_is_sound(slope, generator):
    dense = nn.Sequential(
        nn.Linear(4, 6),
        nn.LeakyReLU(slope),
        nn.Linear(6, 6),
        nn.LeakyReLU(slope),
        nn.Linear(6, 2),
    ).double()
    randomize(dense, generator)
    sparse = tuned(dense, generator)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    domain = ball_domain(x, 0.5)
    proven, skipped = run_methods(problem_of(dense, sparse, x), domain, METHODS.names())
    assert set(proven) == {"two-stream", "interval", "affine", "linear"} and len(skipped) == 4
    proven |= run_methods(problem_of(dense, sparse, x), domain, ["zonotope"])[0]
    for k in range(300):
        share = torch.rand_like(x) * 2 - 1
        points = x + 0.5 * (share.sign() if k % 2 else share)
        gap = (dense(points) - sparse(points)).abs()
        for name, reach in proven.items():
            assert bool((gap <= reach.per_output).all()), name


def test_a_relaxed_value_sends_each_sign_to_its_side():
    above, below = (
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, requires_grad=True),
    )
    sided(above, below).backward(torch.tensor([3.0, -2.0]))
    assert above.grad.tolist() == [3.0, 0.0]
    assert below.grad.tolist() == [0.0, -2.0]


@pytest.mark.parametrize("unit", [0.0, 2.0**-24])
def test_what_is_summed_behind_the_second_network_is_what_it_sums_as_the_first(unit, generator):
    """The rounding of g is bounded by g's own sums: exchanged, the two networks exchange them."""
    dense = nn.Sequential(
        *(nn.Linear(4, 6), nn.LeakyReLU(0.1), nn.Linear(6, 6), nn.ReLU()),
        nn.Linear(6, 2),
    ).double()
    randomize(dense, generator)
    sparse = tuned(dense, generator)
    for layer in sparse[0], sparse[2]:
        layer.weight.data *= 100  # g alone has large sums
    x = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    domain = ball_domain(x, 0.5)
    found = []
    for pair in ((dense, sparse), (sparse, dense)):
        problem = replace(problem_of(*pair, x), unit=unit)
        found.append(relax_with(problem, domain, 0.0, None)[1])
    one, other = found
    assert bool((one.mass_g > 100 * one.mass.m).all())
    torch.testing.assert_close(one.mass_g, other.mass.m, rtol=1e-3, atol=0)
    torch.testing.assert_close(one.mass.m, other.mass_g, rtol=1e-3, atol=0)


class Rows(nn.Module):
    """Twelve inputs as two maps of 2 × 3 entries, a layer, then what is asked for."""

    def __init__(self, *middle):
        super().__init__()
        self.conv, self.middle = nn.Conv2d(2, 3, 1), nn.Sequential(*middle)

    def forward(self, x):
        return self.middle(self.conv(x.view(-1, 2, 2, 3))).flatten(1)


def relaxed_pair(model, generator, effort=1e9):
    dense = randomize(model.double(), generator)
    sparse = tuned(dense, generator)
    x = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    problem = problem_of(dense, sparse, x)
    domain = ball_domain(x, 0.3)
    return run_methods(problem, domain, ("interval", "linear"))[0], relax_with(
        problem, domain, effort, None
    )


@pytest.mark.parametrize(
    "layer",
    [nn.ReLU(), nn.MaxPool2d(2), nn.LeakyReLU(0.2)],
    ids=lambda m: type(m).__name__,
)
def test_every_layer_adds_to_the_roundings_that_are_counted(layer, generator):
    """The margin for rounding grows with the operations behind a value, never falls."""
    _, (plain, _) = relaxed_pair(Rows(), generator)
    _, (more, _) = relaxed_pair(Rows(layer), generator)
    assert more._steps > plain._steps >= 32


def test_planes_of_a_maximum_are_tighter_than_its_ends(generator):
    """The largest entry has planes; ends alone would be what the interval flow says."""
    proven, _ = relaxed_pair(Rows(nn.MaxPool2d(2), nn.Conv2d(3, 3, 1)), generator)
    linear, interval = (proven[k].per_output for k in ("linear", "interval"))
    assert bool((linear <= interval * (1 + 1e-9)).all())
    assert float((linear / interval).min()) < 0.95
