"""Plans for random pruning: widths, and draws with replacement."""

import math

import torch

from secateurs.theory import plan, theorem_2_explicit
from theory.monte_carlo import assert_at_least, refuted
from theory.random_networks import linear_errors, prune_drawn


def test_plan_names_a_finite_width_for_random_pruning(generator):
    """ε = 1 at 95 % for a twentieth of the inner weights: at the width named the bound holds in 200
    networks.
    """
    found = plan([32, 64, 64, 8], sparsity=0.05, epsilon=1.0, scheme="random")
    width = int(found.smallest_width)
    assert found.error > 1.0 and found.probability < 0.95 and 64 < width < 2_000
    assert theorem_2_explicit([32, width, width, 8], alpha=found.alpha, delta=0.05).error <= 1.0
    assert (
        theorem_2_explicit([32, width - 1, width - 1, 8], alpha=found.alpha, delta=0.05).error > 1.0
    )
    draws = math.floor(width ** (2 - 2 * found.alpha))
    errors = torch.cat(
        [linear_errors([32, width, width, 8], draws, 50, generator) for _ in range(4)]
    )
    assert_at_least(int((errors <= 1.0).sum()), 200, 0.95)
    assert refuted(int((errors <= 1.0 / 60).sum()), 200, 0.95)
    assert (
        f"Smallest sufficient hidden width for an error of 1 with probability 0.95: {width}."
        in str(found)
    )


def test_the_sparsity_of_draws_with_replacement(generator):
    """N draws with replacement hit fewer than N positions. Hoeffding over 2,000 independent shares
    in [0, 1]: further off than the margin with chance 1e-7; the floor of N moves the share by less
    than 1/D.
    """
    found = plan([8, 20, 30, 8], alpha=0.05, scheme="random")
    kept = prune_drawn(torch.ones(2_000, 30, 20), math.floor(600**0.95), generator).mean()
    assert abs(1 - float(kept) - found.sparsity) < math.sqrt(math.log(2e7) / 4_000) + 1 / 600
    assert found.sparsity < 600**-0.05 - 0.2
    same = plan([8, 20, 30, 8], sparsity=found.sparsity, scheme="random")
    assert same.sparsity == found.sparsity and same.layers == found.layers
