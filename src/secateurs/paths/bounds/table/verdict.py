"""What the number of a row tells, in plain words."""

import math

from secateurs.paths.bounds.table.obstacles import Facts


def verdict_of(log2: float, facts: Facts, constant: bool, loss_range: float) -> str:
    """What a bound of this size says about a loss of this range."""
    # Short of where 2.0**log2 overflows; beyond, a power of two tells as much.
    size = f"{2.0**log2:.3g}" if log2 < 1000 else f"2^{log2:.0f}"
    over = log2 - math.log2(loss_range)
    if not constant:
        # A rate times an unknown number proves nothing about this network, however small it is.
        limit = f"{2.0**-over:.3g}" if over < 1000 else f"2^{-over:.0f}"
        return (
            f"undecided: {size} times a constant that print does not state; it says something only"
            f" where that constant is below {limit}"
        )
    if over <= 0:
        return f"says something: the gap between test and training loss is at most {size}"
    # The bound falls as 1/√n: how many samples would bring it down to the loss's range?
    needed = math.log10(2) * 2 * over + math.log10(facts.samples)
    return (
        f"vacuous: {size}, yet the loss never exceeds {loss_range:g}; about 1e{needed:.0f} samples"
        " would help"
    )
