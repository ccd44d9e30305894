"""The events behind Theorem 1: norms of whole layers, and of what lies below a threshold."""

import math
from collections.abc import Sequence

from secateurs.theory.guarantee import Guarantee
from secateurs.theory.pruning.error_propagation import Between, Links, telescope
from secateurs.theory.pruning.laws import MagnitudeLaw
from secateurs.theory.pruning.thresholds.questions import setting_of


def whole_links(
    law: MagnitudeLaw, widths: Sequence[int], scales: Sequence[float], share: float
) -> list[Links]:
    """The norms of all layers, unpruned."""
    shapes = zip(widths[1:], widths[:-1], strict=True)
    return [
        link(law.norm(shape, k / math.sqrt(max(shape)), share), share)
        for shape, k in zip(shapes, scales, strict=True)
    ]


def guarantee_of(
    widths: Sequence[int],
    links: Sequence[Links],
    between: Sequence[Between] | None,
    lipschitz: float,
    delta: float,
    law: MagnitudeLaw,
    *,
    name: str = "Theorem 1,",
) -> Guarantee:
    """What the norms and changes of all layers add up to at the output."""
    layers, trivial = telescope(widths, links, between, lipschitz)
    return Guarantee(
        theorem=f"{name} explicit constants",
        error=sum(layer.contribution for layer in layers),
        probability=1 - delta,
        trivial=trivial,
        assumptions=(law.entries, setting_of(between)),
        layers=layers,
    )


def change_below(
    law: MagnitudeLaw,
    shape: tuple[int, int],
    count: int,
    level: float,
    unit: float,
    share: float,
) -> float:
    """The norm of what lies below the level: no more than that of the whole layer (Jensen)."""
    # Norm bounds divide by their unit, so nothing is asked of nothing.
    if level == 0 or count == 0:
        return 0.0
    whole = law.norm(shape, unit, share)
    if level >= law.top:
        return whole
    # Both hold; for large counts the whole layer is the better one.
    return min(whole, unit * law.below(shape, count, level, share))


def link(
    norm: float, failure: float, *, change: float = 0.0, removed: int = 0
) -> Links:
    """What is kept of a layer is at most the layer and the pruned part together."""
    return Links(
        norm=norm, kept=norm + change, change=change, removed=removed, failure=failure
    )
