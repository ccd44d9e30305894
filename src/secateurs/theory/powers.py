"""Powers that may leave the range of float64, and the floor that print takes of them."""

import math


def floor_power(base: int, exponent: float) -> int:
    """⌊base^exponent⌋; the slack of 1e-12 keeps 64^(7/6) at 128 where floating point says
    127.99999999999994.
    """
    return math.floor(math.pow(base, exponent) * (1 + 1e-12))


def power(base: float, exponent: float) -> float:
    """base^exponent, inf beyond any float."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def doublings(layers: int) -> float:
    """log10(2^layers − 1), for any number of layers."""
    # expm1 keeps the digits of 1 − 2^−l, and nothing overflows where 2^l would.
    return layers * math.log10(2) + math.log10(-math.expm1(-layers * math.log(2)))
