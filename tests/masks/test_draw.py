"""Random draws against exact probabilities.

Every Monte-Carlo test computes the chance that a right implementation fails it: binomial tails for
frequencies (10**-9 per test over all its comparisons), and for means the normal tail beyond 6.5
standard errors (8e-11 each).
"""

from itertools import permutations

import pytest
import torch

from masks.draws import ROWS, SCORES, assert_frequencies, generator, many
from secateurs.masks.draw import (
    ScoreRows,
    _keys,
    priority,
    race,
    replacement,
    systematic,
    winners,
)
from secateurs.masks.systematic import inclusion

DRAWS = {
    "race": race,
    "priority": priority,
    "systematic": systematic,
    "replacement": replacement,
}


def successive(values: list[float], count: int) -> list[float]:
    """Exact inclusion probabilities of drawing one after another ∝ score without replacement, by
    enumeration.
    """
    found = [0.0] * len(values)
    for order in permutations(range(len(values)), count):
        chance, left = 1.0, sum(values)
        for i in order:
            chance, left = (
                chance * values[i] / left if values[i] else 0.0,
                left - values[i],
            )
        for i in order:
            found[i] += chance
    return found


def priority_inclusion(values: list[float], count: int) -> list[float]:
    """P(s_i/u_i is among the `count` largest), by Simpson's rule over u_i and an exact count of the
    others above.
    """
    steps = 4000
    result = []
    for i, own in enumerate(values):
        if not own:
            result.append(0.0)
            continue
        total = 0.0
        for k in range(steps + 1):
            key = own / max(k / steps, 1e-12)
            above = [1.0] + [0.0] * (len(values) - 1)
            for j, other in enumerate(values):
                if j != i:
                    p = min(1.0, other / key)
                    above = [
                        a * (1 - p) + (above[n - 1] * p if n else 0.0) for n, a in enumerate(above)
                    ]
            total += sum(above[:count]) * (1 if k in (0, steps) else 4 if k % 2 else 2)
        result.append(total / (3 * steps))
    return result


@pytest.mark.parametrize("case", SCORES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_race_includes_with_the_probabilities_of_successive_draws(case, count):
    drawn = many(race, SCORES[case], count)
    assert torch.equal(drawn.mask.sum(1), torch.full((ROWS,), count))
    assert_frequencies(drawn.mask.sum(0), successive(SCORES[case], count))


@pytest.mark.parametrize("case", ["spread", "some zero", "one giant"])
def test_priority_includes_with_its_exact_probabilities(case):
    drawn = many(priority, SCORES[case], 3)
    # Simpson's error (kinks at every s_j/s_i) is below 1e-5, a hundredth of the binomial's width
    # here.
    assert_frequencies(drawn.mask.sum(0), priority_inclusion(SCORES[case], 3))


@pytest.mark.parametrize("case", SCORES)
@pytest.mark.parametrize("count", [1, 3, 9])
def test_replacement_hits_with_one_minus_the_chance_of_missing(case, count):
    values = SCORES[case]
    drawn = many(replacement, values, count)
    assert int(drawn.mask.sum(1).max()) <= count
    assert_frequencies(drawn.mask.sum(0), [1 - (1 - v / sum(values)) ** count for v in values])


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("case", ["spread", "some zero", "one giant", "equal"])
def test_weights_are_unbiased(name, case):
    """For 4 draws: the variance of race and priority weights is finite from 2 draws on (1/τ has a
    heavy tail).
    """
    values = torch.tensor(SCORES[case], dtype=torch.float64)
    drawn = many(DRAWS[name], SCORES[case], 4 if case != "some zero" else 3, weighted=True)
    assert drawn.weights is not None
    assert bool((drawn.weights[~drawn.mask] == 0).all()) and bool(
        (drawn.weights[drawn.mask] > 0).all()
    )
    mean, error = drawn.weights.mean(0), drawn.weights.std(0) / ROWS**0.5
    for i, value in enumerate(values.tolist()):
        assert abs(mean[i] - float(value > 0)) <= 6.5 * error[i] + 1e-12, (i, mean[i])


def test_variance_of_replacement_is_that_of_the_lemma():
    """E‖Xᵀw − Xᵀ(w⊙m)‖² = (1/s)(Σ_k ‖X_k‖|w_k|)² − (1/s)‖Xᵀw‖² (Bar & Giryes 2023, lemma 4.1)."""
    x, w = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    s, score = 3, x.norm(dim=1) * w.abs()
    drawn = many(replacement, score.tolist(), s, weighted=True)
    errors = ((w - w * drawn.weights) @ x).square().sum(1)
    expected = (score.sum() ** 2 - (w @ x).square().sum()) / s
    assert abs(errors.mean() - expected) <= 6.5 * errors.std() / ROWS**0.5


@pytest.mark.parametrize("name", ["race", "priority", "systematic"])
def test_zeros_fill_up_evenly_when_the_positive_do_not_suffice(name):
    drawn = many(DRAWS[name], [0.0, 5.0, 0.0, 1e-20, 0.0], 3, weighted=True)
    assert bool(drawn.mask[:, [1, 3]].all())
    assert_frequencies(drawn.mask.sum(0), [1 / 3, 1.0, 1 / 3, 1.0, 1 / 3])
    assert drawn.weights is not None
    torch.testing.assert_close(drawn.weights[:, [1, 3]], torch.ones(ROWS, 2, dtype=torch.float64))


@pytest.mark.parametrize("name", DRAWS)
def test_all_zero_scores_are_a_uniform_draw(name):
    drawn = many(DRAWS[name], [0.0] * 4, 2)
    chance = 7 / 16 if name == "replacement" else 1 / 2
    assert_frequencies(drawn.mask.sum(0), [chance] * 4)


@pytest.mark.parametrize("name", DRAWS)
def test_only_what_is_allowed_is_drawn(name):
    score = torch.tensor([[9.0, 1.0, 0.0, 5.0]]).expand(1000, -1).contiguous()
    allowed = torch.tensor([[False, True, True, False]]).expand(1000, -1).contiguous()
    twos = torch.full((1000,), 2)
    drawn = DRAWS[name](ScoreRows(score, twos, allowed, generator=generator()))
    assert not drawn.mask[:, [0, 3]].any()
    one = DRAWS[name](ScoreRows(score[:1], twos[:1], allowed[:1], generator=generator()))
    assert not one.mask[:, [0, 3]].any()
    if name != "replacement":
        assert bool(drawn.mask[:, [1, 2]].all()) and bool(one.mask[:, [1, 2]].all())


def test_one_long_row_and_many_short_ones_choose_alike():
    """One row goes through the streamed threshold, several through a sort."""
    score = torch.rand(1, 5000)
    keys = _keys(score, lambda u: u, generator())
    alone, loser = winners(keys, torch.tensor([700]), None)
    pair, losers = winners(torch.cat([keys, keys]), torch.tensor([700, 10]), None)
    assert torch.equal(alone[0], pair[0]) and torch.equal(loser[0], losers[0])
    assert int(pair[1].sum()) == 10


@pytest.mark.parametrize("count", [1, 1000, 999_999, 1_000_000])
def test_a_million_units_in_exact_number(count):
    score = torch.rand(1, 1_000_000, generator=generator()) ** 8
    parts, bits = inclusion(score, torch.tensor([count]), torch.ones_like(score, dtype=torch.bool))
    assert int(parts.sum()) == count << bits and int(parts.max()) <= 1 << bits
    for name in ("race", "systematic"):
        rows = ScoreRows(score, torch.tensor([count]), generator=generator())
        assert int(DRAWS[name](rows).mask.sum()) == count
