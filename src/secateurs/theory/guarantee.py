"""What a theorem promises: a bound, its probability, and the conditions it stands on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral

from secateurs.errors import ArgumentError, TheoryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of a theorem: `value` must be at least `limit`."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        # ≥: theorems state their conditions so, and equality is allowed.
        return self.value >= self.limit

    def __str__(self) -> str:
        relation = ">=" if self.holds else "< needed"
        return f"{self.name}: {self.value:.6g} {relation} {self.limit:.6g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBound:
    """One layer in a guarantee: of its entries (filters) `removed` go; ‖W*‖ ≤ `norm`, ‖W* − W‖ ≤
    `change`.

    `contribution` is its part of the error, `failure` its part of the probability that is given
    away.
    """

    removed: int
    norm: float
    change: float
    contribution: float
    failure: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """sup_x ‖f(x) − F(x)‖ ≤ `error` with probability at least `probability`, if the conditions
    hold.

    `trivial` bounds sup_x ‖F(x) − F(0)‖: the constant F(0), zero without biases, errs no more than
    that. Of the explicit theorems no error exceeds what the sizes of both networks' outputs allow,
    2 · trivial without biases (`laws` has the proof, and why not `trivial` once); from
    `trivial` on the guarantee is `vacuous`. Their `layers` say where the error comes from.
    """

    theorem: str
    error: float
    probability: float
    trivial: float
    conditions: tuple[Condition, ...] = ()
    assumptions: tuple[str, ...] = field(default=())
    layers: tuple[LayerBound, ...] = ()

    @property
    def failed(self) -> tuple[Condition, ...]:
        """The conditions that do not hold."""
        return tuple(condition for condition in self.conditions if not condition.holds)

    @property
    def vacuous(self) -> bool:
        """True when the statement says nothing: no probability left, no better than zero, or a
        condition fails.
        """
        return (
            self.probability <= 0
            # `not <`: an error that is NaN or equal to the trivial bound says nothing
            # either.
            or not self.error < self.trivial
            or bool(self.failed)
        )

    def require(self) -> "Guarantee":
        """This guarantee, or an error that names every condition that fails, with the numbers."""
        if self.failed:
            raise TheoryError(f"{self.theorem} does not apply: {'; '.join(map(str, self.failed))}.")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """The widths that each condition of a theorem asks for, as log10 (they can exceed any
    float).
    """

    log10: dict[str, float]

    @property
    def binding(self) -> str:
        """The condition that asks for most."""
        return max(self.log10, key=lambda name: self.log10[name])

    @property
    def width(self) -> float:
        """The smallest width that meets all of them; inf beyond 10^300."""
        exponent = self.log10[self.binding]
        return (
            # The slack keeps a width that is met exactly from being rounded up to the
            # next one.
            float(max(1, math.ceil(10**exponent - 1e-9))) if exponent < 300 else math.inf
        )


# What the statements of both papers are asked with, checked; powers that may leave float64.


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
    wrong = [f"{name} = {value:g} is not positive and finite" for name, value in values.items()]
    _refuse(
        [
            text
            for text, value in zip(wrong, values.values(), strict=True)
            if not 0 < value < math.inf
        ]
    )


def check_counts(counts: Sequence[int] | None, layers: int, alpha: float | None) -> list[int]:
    """How much each inner layer loses, where it is not α that says so."""
    if (counts is None) == (alpha is None):
        raise ArgumentError(
            "give alpha= or counts=, and not both: how much each inner layer loses."
        )
    found = list(counts or ())
    if len(found) != layers:
        raise ArgumentError(f"counts has {len(found)} entries; there are {layers} inner layers.")
    _refuse(
        [f"counts holds {n!r}, not a number of entries" for n in found if _not_whole(n) and n != 0]
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


# Powers that may leave the range of float64, and the floor that print takes of them.


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
