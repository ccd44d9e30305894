"""A forecast in words: yes, no, and no under way, each with what it takes."""

import math


def enough(strength: float, needed: float, threshold: float) -> str:
    """The answer yes."""
    return (
        f"strength {strength:g} reaches sparsity: dead weights fall below {threshold:.1e} "
        f"(strength {needed:.2g} would just do)."
    )


def too_weak(
    strength: float, smallest: float, threshold: float, needed: tuple[float, float]
) -> str:
    """The answer no, before a run; `needed`: the strength or the steps that it takes."""
    return (
        f"strength {strength:g} is too small to reach sparsity: dead weights end near"
        f" {smallest:.1e}, not below {threshold:.1e}. It takes strength >="
        f" {needed[0]:.2g} or {needed[1]:.0f} steps."
    )


def midway(
    taken: int,
    steps: int,
    shrunk: float,
    whole: float,
    needed: float,
    threshold: float,
) -> str:
    """The answer no, during a run and at its end."""
    so_far = (
        f"dead weights have shrunk by a factor of {_factor(shrunk)} in {taken} steps"
    )
    rest = (
        f", which the present rate makes {_factor(whole)} after {steps}"
        if taken < steps
        else ""
    )
    much = (
        f"{needed / whole:.2g} times the strength, the rate or the steps"
        if whole
        else "a strength and rate above 0"
    )
    return (
        f"{so_far}{rest}; {_factor(needed)} is needed to fall below {threshold:.1e}. It takes"
        f" {much}."
    )


def _factor(logarithm: float) -> str:
    # e^710 overflows a double.
    return f"{math.exp(min(logarithm, 700.0)):.2g}"
