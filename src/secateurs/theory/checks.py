"""What the statements of both papers are asked with, checked; powers that may leave float64."""

import math
from collections.abc import Sequence
from numbers import Integral

from secateurs.errors import ArgumentError, TheoryError


def check_unit(**values: float) -> None:
    """Every value lies strictly between 0 and 1."""
    _refuse(
        [
            f"{name} = {value:g} is not in (0, 1)"
            for name, value in values.items()
            # This form refuses NaN too.
            if not 0 < value < 1
        ]
    )


def check_positive(**values: float) -> None:
    """Every value is positive and finite."""
    wrong = [
        f"{name} = {value:g} is not positive and finite"
        for name, value in values.items()
    ]
    _refuse(
        [
            text
            for text, value in zip(wrong, values.values(), strict=True)
            if not 0 < value < math.inf
        ]
    )


def check_counts(
    counts: Sequence[int] | None, layers: int, alpha: float | None
) -> list[int]:
    """How much each inner layer loses, where it is not α that says so."""
    if (counts is None) == (alpha is None):
        raise ArgumentError(
            "give alpha= or counts=, and not both: how much each inner layer loses."
        )
    found = list(counts or ())
    if len(found) != layers:
        raise ArgumentError(
            f"counts has {len(found)} entries; there are {layers} inner layers."
        )
    _refuse(
        [
            f"counts holds {n!r}, not a number of entries"
            for n in found
            if _not_whole(n) and n != 0
        ]
    )
    return found


def check_moments(second: float, fourth: float, names: str) -> None:
    """E a⁴ ≥ (E a²)²: bounds on the two that no random variable can attain together are a slip."""
    # With slack: moments measured on data or typed with few digits are meant to be
    # equal.
    if fourth < second**2 * (1 - 1e-5):
        raise TheoryError(
            f"{names} = {second:g}, {fourth:g}: E a⁴ >= (E a²)² always, so the second moment is at"
            f" most {math.sqrt(fourth):.6g}; give that, or the right fourth moment."
        )


def check_depth(depth: int) -> None:
    """At least one layer lies between the first and the last."""
    check_whole(depth=depth)
    if depth < 3:
        raise TheoryError(
            f"depth = {depth}: the theorems prune the inner layers 2..l-1 only, so l >= 3 layers"
            " are needed."
        )


def check_whole(**values: int) -> None:
    """Every value is a whole number of at least one."""
    _refuse(
        [
            f"{name} = {value!r} {_not_whole(value)}"
            for name, value in values.items()
            if _not_whole(value)
        ]
    )


def check_widths(widths: Sequence[int]) -> None:
    """Widths d_0…d_l of at least three layers, each a whole number of at least one."""
    if isinstance(widths, str) or not isinstance(widths, Sequence):
        raise ArgumentError(
            f"widths = {widths!r}: give whole numbers d_0…d_l such as [784, 300, 300, 10]."
        )
    _refuse(
        [
            f"width d_{k} = {width!r} {_not_whole(width)}"
            for k, width in enumerate(widths)
            if _not_whole(width)
        ]
    )
    check_depth(len(widths) - 1)


def _not_whole(value: object) -> str:
    # True is an Integral of value 1, and surely a slip. numpy's integers are welcome.
    if not isinstance(value, Integral) or isinstance(value, bool):
        return "is not a whole number"
    return "" if value >= 1 else "is below 1"  # type: ignore[operator]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ArgumentError(f"{'; '.join(problems)}.")
