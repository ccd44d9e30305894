"""Systematic draws include with exactly the probabilities they state."""

import pytest
import torch

from masks.draws import ROWS, SCORES, assert_frequencies, many
from secateurs.masks.draw import systematic
from secateurs.masks.systematic import inclusion


def certain_and_proportional(values: list[float], count: int) -> list[float]:
    """min(1, c·s) with sum `count`: the obvious loop."""
    certain: set[int] = set()
    while True:
        rest = sum(v for i, v in enumerate(values) if i not in certain)
        share = [
            1.0 if i in certain else (count - len(certain)) * v / (rest or 1.0)
            for i, v in enumerate(values)
        ]
        more = {i for i, p in enumerate(share) if p >= 1}
        if more == certain:
            return share
        certain = more


@pytest.mark.parametrize("case", SCORES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_systematic_includes_with_exactly_the_probabilities_it_states(case, count):
    score = torch.tensor([SCORES[case]], dtype=torch.float64)
    parts, bits = inclusion(score, torch.tensor([count]), torch.ones_like(score, dtype=torch.bool))
    assert int(parts.sum()) == count << bits
    stated = (parts[0].double() / 2.0**bits).tolist()
    assert stated == pytest.approx(
        certain_and_proportional(SCORES[case], count), rel=1e-12, abs=1e-15
    )
    drawn = many(systematic, SCORES[case], count)
    assert torch.equal(drawn.mask.sum(1), torch.full((ROWS,), count))
    assert_frequencies(drawn.mask.sum(0), stated)
