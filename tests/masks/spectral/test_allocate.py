"""One total among curves: exact for any shape while small, for convex ones when large, totals and
rooms always.
"""

from itertools import product

import numpy as np
import pytest

from secateurs.masks.spectral import EXACT, Taker, allocate, price


def table(costs):
    """A taker whose curve is a list."""
    values = np.array(costs, dtype=np.float64)
    return Taker(room=len(costs) - 1, cost=lambda amounts: values[amounts.astype(int)])


@pytest.mark.parametrize("seed", range(5))
def test_small_totals_are_exact_for_any_curves(seed):
    """Curves that rise, fall and jump, against all splits."""
    draws = np.random.default_rng(seed)
    takers = {
        name: table(draws.normal(size=size))
        for name, size in (("a", 6), ("b", 4), ("c", 1), ("d", 9))
    }
    rooms = [range(taker.room + 1) for taker in takers.values()]
    for total in range(sum(taker.room for taker in takers.values()) + 1):
        found = allocate(takers, total)
        splits = (dict(zip(takers, s, strict=True)) for s in product(*rooms) if sum(s) == total)
        assert sum(found.values()) == total
        assert price(takers, found) == pytest.approx(min(price(takers, split) for split in splits))


@pytest.mark.parametrize("total", [EXACT, 10_007, 123_456])
def test_convex_curves_get_equal_slopes(total):
    """Σ n²/w_k is least at n ∝ w_k; one small taker is full."""
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    takers = {name: Taker(room=10**6, cost=lambda n, w=w: n**2 / w) for name, w in weights.items()}
    takers["full"] = Taker(room=3, cost=lambda n: 0 * n)
    found = allocate(takers, total)
    assert sum(found.values()) == total and found["full"] == 3
    assert all(abs(found[name] - (total - 3) * w / 8) <= 2 for name, w in weights.items())


def test_concave_curves_are_taken_whole():
    takers = {
        name: Taker(room=50_000, cost=lambda n, w=w: w * np.sqrt(n))
        for name, w in (("a", 3.0), ("b", 2.0))
    }
    assert allocate(takers, 50_000) == {"a": 0, "b": 50_000}


def test_everything_and_nothing():
    takers = {"a": table([0.0, 1.0, 5.0]), "b": Taker(room=10_000, cost=lambda n: n)}
    assert allocate(takers, 10_002) == {"a": 2, "b": 10_000}
    assert allocate(takers, 0) == {"a": 0, "b": 0}
    assert allocate({}, 0) == {}
