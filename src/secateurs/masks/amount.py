"""How much is kept, as one exact fraction, whichever way it is said."""

import math
from collections.abc import Callable
from fractions import Fraction
from numbers import Rational, Real
from typing import TypedDict

from torch import Tensor

from secateurs.errors import ArgumentError


class Amount(TypedDict, total=False):
    """How much to keep, said in one of three ways; functions with many options take
    these as one.
    """

    sparsity: float | None
    density: float | None
    compression: float | None


def density_of(
    *,
    sparsity: float | None = None,
    density: float | None = None,
    compression: float | None = None,
) -> Fraction | None:
    """The density that exactly one of the three states, as an exact fraction; None when none is
    given.

    Numbers are read as the decimals they print as: sparsity 0.9 is density 1/10, not
    0.09999999999999998.

    >>> density_of(sparsity=0.9), density_of(compression=8)
    (Fraction(1, 10), Fraction(1, 8))
    """
    given = {"sparsity": sparsity, "density": density, "compression": compression}
    # Zero is a value like any other: only None means "not given".
    stated = {name: value for name, value in given.items() if value is not None}
    if len(stated) > 1:
        text = ", ".join(f"{name}={value!r}" for name, value in stated.items())
        raise ArgumentError(
            f"give one of sparsity, density and compression, not {text}: they state the same thing."
        )
    for name, value in stated.items():
        return _DENSITY[name](_exact(name, value))
    return None


def entries(density: Fraction, total: int) -> int:
    """density · total, rounded to the nearest whole entry, halves to the even one (exact
    arithmetic).

    >>> entries(Fraction(1, 10), 15), entries(Fraction(1, 10), 25)
    (2, 2)
    """
    # Python rounds a Fraction exactly, halves to even, which is the rule written in
    # `select`.
    return round(density * total)


def _instead(value: object) -> str:
    """The number that was most likely meant."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return f": give {value.item():.6g}"
    if not isinstance(value, str):
        return ""
    try:
        number = float(value.strip().removesuffix("%"))
    except ValueError:
        return ": 0.9 is nine tenths"
    return (
        f": give {number / 100 if value.strip().endswith('%') else number:g}, no text"
    )


def _exact(name: str, value: float) -> Fraction:
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not math.isfinite(value)
    ):
        raise ArgumentError(
            f"{name}={value!r} is not a finite number{_instead(value)}."
        )
    # The printed decimal is what the user meant: Fraction(0.9) would be a number near
    # nine tenths.
    exact = (
        Fraction(value)
        if isinstance(value, Rational)
        else Fraction(repr(float(value)))
    )
    if name == "compression" and exact < 1:
        raise ArgumentError(
            f"compression={value!r} is below 1: it is total / kept, so 10 keeps a tenth."
        )
    if name != "compression" and not 0 <= exact <= 1:
        raise ArgumentError(
            f"{name}={value!r} is not between 0 and 1. For 'n times smaller' use compression=n."
        )
    return exact


_DENSITY: dict[str, Callable[[Fraction], Fraction]] = {
    "sparsity": lambda value: 1 - value,
    "density": lambda value: value,
    "compression": lambda value: 1 / value,
}
