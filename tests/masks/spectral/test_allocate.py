"""One total among curves: exact for any shape while small, for convex ones when large, totals and
rooms always.
"""

from itertools import product

import numpy as np
import pytest

from secateurs.masks.spectral import EXACT, CostCurve, allocate, price


def table(costs):
    """A curve that is a list."""
    values = np.array(costs, dtype=np.float64)
    return CostCurve(room=len(costs) - 1, cost=lambda amounts: values[amounts.astype(int)])


@pytest.mark.parametrize("seed", range(5))
def test_small_totals_are_exact_for_any_curves(seed):
    """Curves that rise, fall and jump, against all splits."""
    draws = np.random.default_rng(seed)
    curves = {
        name: table(draws.normal(size=size))
        for name, size in (("a", 6), ("b", 4), ("c", 1), ("d", 9))
    }
    rooms = [range(curve.room + 1) for curve in curves.values()]
    for total in range(sum(curve.room for curve in curves.values()) + 1):
        found = allocate(curves, total)
        splits = (dict(zip(curves, s, strict=True)) for s in product(*rooms) if sum(s) == total)
        assert sum(found.values()) == total
        assert price(curves, found) == pytest.approx(min(price(curves, split) for split in splits))


@pytest.mark.parametrize("total", [EXACT, 10_007, 123_456])
def test_convex_curves_get_equal_slopes(total):
    """Σ n²/w_k is least at n ∝ w_k; one small curve is full."""
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    curves = {
        name: CostCurve(room=10**6, cost=lambda n, w=w: n**2 / w) for name, w in weights.items()
    }
    curves["full"] = CostCurve(room=3, cost=lambda n: 0 * n)
    found = allocate(curves, total)
    assert sum(found.values()) == total and found["full"] == 3
    assert all(abs(found[name] - (total - 3) * w / 8) <= 2 for name, w in weights.items())


def test_concave_curves_are_taken_whole():
    curves = {
        name: CostCurve(room=50_000, cost=lambda n, w=w: w * np.sqrt(n))
        for name, w in (("a", 3.0), ("b", 2.0))
    }
    assert allocate(curves, 50_000) == {"a": 0, "b": 50_000}


def test_everything_and_nothing():
    curves = {"a": table([0.0, 1.0, 5.0]), "b": CostCurve(room=10_000, cost=lambda n: n)}
    assert allocate(curves, 10_002) == {"a": 2, "b": 10_000}
    assert allocate(curves, 0) == {"a": 0, "b": 0}
    assert allocate({}, 0) == {}
