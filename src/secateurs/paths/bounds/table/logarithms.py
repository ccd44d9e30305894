"""Base-2 logarithms of the sizes in the comparison: path norms overflow float64."""

import math

from secateurs.paths.bounds.table.obstacles import Facts


def log2_product(f: Facts) -> float:
    """log₂ Π_d ‖M_d‖_{1,∞}, the largest ℓ¹ norm of a row of each layer."""
    norms = [float(layer.weight.abs().sum(dim=1).max()) for layer in f.layers or ()]
    # A layer of zeros makes the product 0: its logarithm is −∞, where log2 would raise.
    return sum(math.log2(norm) if norm > 0 else -math.inf for norm in norms)


def half_log2(value: float) -> float:
    """log₂ of a root; −∞ for zero."""
    return math.log2(value) / 2 if value > 0 else -math.inf


def log2_pools(f: Facts) -> float:
    """log₂ √(D·ln(PK) + ln(d_in·d_out))."""
    # Without a pool there are no kinds: the 1 makes the logarithm 0, and the term
    # vanishes.
    pools = f.depth * math.log(max(1, f.pool_kinds) * f.largest_pool)
    return half_log2(pools + math.log(f.inputs * f.outputs))
