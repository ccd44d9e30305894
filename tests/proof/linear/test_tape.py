"""A tape bounds f, g and their difference in every direction."""

import torch

from proof.pairs import problem_of
from secateurs.graph import propagate
from secateurs.proof.domain import ball_domain
from secateurs.proof.linear import Relaxation
from tiny_networks import KINDS, randomize, tuned


def test_directions_bound_f_g_and_their_difference(generator):
    """`above` bounds any ⟨a, f⟩ + ⟨b, f − g⟩; with a = −b = e it bounds g."""
    make, shape = KINDS["batch norm"]
    dense = randomize(make().double(), generator)
    sparse = tuned(dense, generator)
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    problem = problem_of(dense, sparse, x)
    domain = ball_domain(x, 0.2)
    flow = Relaxation()
    y = propagate(problem.graph, flow, [problem.flow_input(domain)], problem.pair)
    a, b = torch.randn(2, 5, *y.z.shape, generator=generator, dtype=torch.float64)
    high = flow.above(y, a, b)
    for k in range(200):
        share = torch.rand_like(x) * 2 - 1
        points = x + 0.2 * (share.sign() if k % 2 else share)
        with torch.no_grad():
            f, g = dense(points), sparse(points)
        value = (a[:, :, 0] * f + b[:, :, 0] * (f - g)).sum(2)
        assert bool((value <= high + 1e-12).all())
