"""The largest magnitude that goes in each layer: known, or a quantile of its order statistic."""

from collections.abc import Sequence

from secateurs.errors import ArgumentError
from secateurs.theory.pruning.laws import MagnitudeLaw, magnitude_law
from secateurs.theory.pruning.order_statistics import threshold_quantile
from secateurs.theory.pruning.tails.layer import Law


def known_levels(
    law: Law, thresholds: Sequence[float] | None, inner: int
) -> list[float] | None:
    """The thresholds given, checked against the law; None where they follow from it."""
    magnitude_law(law)
    if (law == "bounded") != (thresholds is not None):
        raise ArgumentError(
            f"law = {law!r} with thresholds = {thresholds}: what magnitude pruning removes is known"
            " by law for iid entries only; for others give law='bounded' and the thresholds= seen"
            " in the network."
        )
    if thresholds is not None and not (
        len(thresholds) == inner and all(0 <= t <= 1 for t in thresholds)
    ):
        raise ArgumentError(
            f"thresholds = {list(thresholds)}: give one share in [0, 1] for each of {inner} layers."
        )
    return None if thresholds is None else list(thresholds)


def level_of(
    law: MagnitudeLaw,
    shape: tuple[int, int],
    count: int,
    failure: float,
    known: float | None,
) -> float:
    """The threshold in the unit of the layer: zero when nothing is pruned, the top when all is."""
    size = shape[0] * shape[1]
    if count > size:
        raise ArgumentError(
            f"{count} entries cannot be pruned from a layer of {size}."
        )
    if count == 0:
        return 0.0
    if known is not None:
        return known
    if count == size:
        return law.top
    # The (r + 1)-th smallest: it bounds the r that go, whose law given it is known.
    return law.quantile(threshold_quantile(count + 1, size, failure=failure))
