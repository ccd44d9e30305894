"""Passes for all neurons of a layer are made where a few of them promise a better bound."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from secateurs.proof.domain import ball_domain
from secateurs.proof.forms import FIELDS, Bounds
from secateurs.proof.linear import _width
from secateurs.proof.methods import neuron_cells, relax, run_methods
from secateurs.proof.problem import read_problem
from tiny_networks import pruned, randomize


def pooled(generator):
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    dense = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)).double()
    return randomize(dense, generator), (1, 8, 8), 0.01


def deep(generator):
    layers = [m for _ in range(5) for m in (nn.Linear(12, 12), nn.ReLU())]
    dense = nn.Sequential(*layers, nn.Linear(12, 3)).double()
    return randomize(dense, generator), (12,), 0.2


def problem_of(kind, generator):
    """A problem whose effort is just enough for all passes, so that it is probed."""
    dense, shape, radius = kind(generator)
    x = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    problem = read_problem(dense, pruned(dense, generator), x[:1])
    return replace(problem, effort=2 * neuron_cells(problem)), ball_domain(x, radius)


def bound(problem, domain):
    return run_methods(problem, domain, ["linear"])[0]["linear"].per_output


@pytest.mark.parametrize("kind", [pooled, deep])
def test_what_the_probe_decides_is_sound(kind, generator):
    problem, domain = problem_of(kind, generator)
    share = 2 * torch.rand(60, *domain.lo.shape, generator=generator).double() - 1
    share[::2] = share[::2].sign()
    x = domain.center + domain.widths * share
    with torch.no_grad():
        seen = problem.difference(x.flatten(0, 1)).abs().reshape(60, 4, -1).amax(0)
    assert bool((seen <= bound(problem, domain) + 1e-12).all())


def test_a_deep_network_gets_all_its_passes(generator):
    problem, domain = problem_of(deep, generator)
    everything = bound(replace(problem, effort=100 * problem.effort), domain)
    assert torch.equal(bound(problem, domain), everything)
    assert relax(problem, domain)[0].loose == 0


def test_where_little_is_to_be_gained_little_is_paid(generator):
    problem, domain = problem_of(pooled, generator)
    assert relax(problem, domain)[0].loose > 0
    plenty = replace(problem, effort=100 * problem.effort)
    assert relax(plenty, domain)[0].loose == 0
    # The issue is time: what is lost for it stays small.
    assert bool((bound(problem, domain) <= 1.5 * bound(plenty, domain)).all())


@pytest.mark.parametrize("kind", [pooled, deep])
def test_a_box_is_probed_alone(kind, generator):
    problem, domain = problem_of(kind, generator)
    alone = torch.cat([bound(problem, part) for part in domain.split(1)])
    assert torch.allclose(bound(problem, domain), alone, rtol=1e-9)


def test_the_width_of_a_layer_is_the_sum_of_what_lies_between_its_ends():
    """Ends that rounding has moved past each other count as no width."""
    ends = dict.fromkeys(FIELDS, torch.zeros(1, 3))
    b = Bounds(
        **ends
        | {
            "l": torch.tensor([[1.0, -2.0, 5.0]]),
            "h": torch.tensor([[2.0, 2.0, 4.0]]),
        }
    )
    assert _width(b, "l", "h").tolist() == [[5.0]]
