"""Relaxed values: slopes beyond [0, 1], and the side that each sign takes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from paths.certificates.pairs import problem_of
from secateurs.paths.certificates.domain import ball_domain
from secateurs.paths.certificates.flows.tape import sided
from secateurs.paths.certificates.methods import METHODS
from secateurs.paths.certificates.reaching import reaches
from secateurs.paths.certificates.relaxing import _relaxed_with
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
    proven, skipped = reaches(problem_of(dense, sparse, x), domain, METHODS.names())
    assert (
        set(proven) == {"two-stream", "interval", "affine", "linear"}
        and len(skipped) == 3
    )
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
def test_what_is_summed_behind_the_second_network_is_what_it_sums_as_the_first(
    unit, generator
):
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
        found.append(_relaxed_with(problem, domain, 0.0, None)[1])
    one, other = found
    assert bool((one.mass_g > 100 * one.mass.m).all())
    torch.testing.assert_close(one.mass_g, other.mass.m, rtol=1e-3, atol=0)
    torch.testing.assert_close(one.mass.m, other.mass_g, rtol=1e-3, atol=0)
