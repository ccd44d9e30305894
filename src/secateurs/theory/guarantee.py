"""What a theorem promises: a bound, its probability, and the conditions it stands on."""

import math
from dataclasses import dataclass, field

from secateurs.errors import TheoryError


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
    2 · trivial without biases (`error_propagation` has the proof, and why not `trivial` once); from
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
        return tuple(
            condition for condition in self.conditions if not condition.holds
        )

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
            raise TheoryError(
                f"{self.theorem} does not apply: {'; '.join(map(str, self.failed))}."
            )
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
            float(max(1, math.ceil(10**exponent - 1e-9)))
            if exponent < 300
            else math.inf
        )
