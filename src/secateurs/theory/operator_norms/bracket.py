"""An operator norm between two proven bounds."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNorm:
    """lower ≤ ‖W‖₂ ≤ upper, both proven up to rounding; `value` is the best estimate.

    Attributes:
        exact: Proven within 1e-5, by the method named.
        failure: Where a random start was used and nothing else proves the value, the probability
            among all starts that a norm above value·(1 + 1e-6) was missed; None if not known.
    """

    value: float
    lower: float
    upper: float
    exact: bool
    method: str
    failure: float | None = None

    def times(self, factor: float) -> "OperatorNorm":
        """The norm of the map times a positive factor."""
        return replace(
            self,
            value=self.value * factor,
            lower=self.lower * factor,
            upper=self.upper * factor,
        )

    def __float__(self) -> float:
        return self.value


def largest_of(found: list[OperatorNorm]) -> OperatorNorm:
    """The norm of a direct sum: the largest of its parts'."""
    best = max(found, key=lambda norm: norm.value)
    upper = max(norm.upper for norm in found)
    exact = all(norm.exact for norm in found)
    # The chance that any of the groups was missed is at most the sum.
    failure = sum(norm.failure or 0.0 for norm in found) or None
    return OperatorNorm(
        value=best.value,
        lower=best.value,
        upper=upper,
        exact=exact,
        method=best.method,
        failure=failure,
    )
