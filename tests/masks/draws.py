"""The same draw many times, and how often each entry was in."""

import torch
from scipy.stats import binom
from torch import Tensor

from secateurs.masks.draw import ScoreRows

ROWS = 200_000
SCORES = {
    "spread": [0.05, 0.1, 0.4, 1.0, 2.0, 3.0, 0.45],
    "equal": [1.0] * 6,
    "one giant": [100.0, 1.0, 2.0, 3.0, 1.0],
    "some zero": [0.0, 1.0, 0.0, 2.0, 0.5, 1.5],
    "tiny": [1e-30, 2e-30, 3e-30, 4e-30, 5e-30],
    "huge": [1e30, 2e30, 3e30, 4e30, 5e30],
}


def generator(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def many(draw, values: list[float], count: int, *, rows: int = ROWS, weighted: bool = False):
    """The same draw, independently in each row."""
    score = torch.tensor(values, dtype=torch.float64).expand(rows, -1).contiguous()
    counts = torch.full((rows,), count)
    return draw(ScoreRows(score, counts, weighted=weighted, generator=generator()))


def assert_frequencies(hits: Tensor, probabilities: list[float]) -> None:
    """Each count of hits lies where a binomial lies but for 10**-9 in all."""
    risk = 1e-9 / len(probabilities)
    for hit, p in zip(hits.tolist(), probabilities, strict=True):
        p = min(max(p, 0.0), 1.0)
        assert binom.ppf(risk / 2, ROWS, p) <= hit <= binom.isf(risk / 2, ROWS, p), (
            hit / ROWS,
            p,
        )
