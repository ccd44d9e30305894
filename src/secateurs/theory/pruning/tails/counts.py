"""How many positions a random mask hits, and how many frequencies a map has."""

import math

from secateurs.errors import ArgumentError


def hit_share(
    draws: int | None, positions: int, *, replacement: bool = True
) -> float:
    """The chance p that a position is hit; 1 without a mask.

    With replacement p = 1 − e^{−N/D}, of Poisson(N) draws among D positions. Without, p = N/D, of
    independent hits: Binomial(D, N/D) of them, whose median is its whole mean N, so that the
    argument of step 1 goes through with one law in place of the other.

    >>> hit_share(1, 4, replacement=False), round(hit_share(1, 4), 3)
    (0.25, 0.221)
    """
    if draws is None:
        return 1.0
    if replacement:
        # expm1 keeps the digits where few positions are drawn.
        return -math.expm1(-draws / positions)
    if draws > positions:
        raise ArgumentError(
            f"{draws} positions of {positions} cannot be drawn without replacement."
        )
    return draws / positions


def half_spectrum(map_size: int | tuple[int, ...], taps: int) -> int:
    """Frequencies (u, v) of the maps up to conjugation; a kernel of one tap has the same matrix at
    all of them.
    """
    sides = (map_size, map_size) if isinstance(map_size, int) else map_size
    # Frequencies that are their own conjugates: 0, and n/2 on even axes.
    real = math.prod(1 if side % 2 else 2 for side in sides)
    return 1 if taps == 1 else (math.prod(sides) + real) // 2
