"""The scopes that come with the library: how one budget is shared out among parameters."""

import math
from fractions import Fraction

from secateurs.errors import ArgumentError
from secateurs.masks.amount import entries
from secateurs.masks.budget import SCOPES, Demand, share


@SCOPES.register("global")
def global_scope(demand: Demand) -> None:
    """All entries compete; `demand.keep` is met exactly."""
    return


@SCOPES.register("layer")
def layer(demand: Demand) -> dict[str, int]:
    """Every parameter keeps round(density · size), halves to even, on its own (at least its
    floor).
    """
    counts = {
        name: entries(demand.density, size) for name, size in demand.sizes.items()
    }
    short = {
        name: count for name, count in counts.items() if count > demand.capacity[name]
    }
    if short:
        text = ", ".join(
            f"{name!r} {count} of {demand.capacity[name]}"
            for name, count in short.items()
        )
        raise ArgumentError(
            f"more entries asked than may be kept: {text}. Lower the density, or use"
            " scope='uniform', which shares what is missing out among the other parameters."
        )
    return {name: max(count, demand.floor[name]) for name, count in counts.items()}


@SCOPES.register("row")
def row(demand: Demand) -> dict[str, int]:
    """Every output row (dimension 0) keeps round(density · length) entries, halves to even, on its
    own: Wanda's comparison group. Rows with fewer entries left keep those.
    """
    counts = {}
    for name, shape in demand.shapes.items():
        # A vector is one row: otherwise each entry would compete with itself alone.
        rows = shape[0] if len(shape) > 1 else 1
        each = entries(demand.density, demand.sizes[name] // max(rows, 1))
        allowed = demand.allowed.get(name)
        if allowed is None:
            counts[name] = rows * each
        else:
            counts[name] = int(allowed.reshape(rows, -1).sum(1).clamp(max=each).sum())
    return counts


@SCOPES.register("uniform")
def uniform(demand: Demand) -> dict[str, int]:
    """The same density everywhere, rounded so that the total is exact.

    (Evci et al. 2020 also keep the first layer dense; leave it out of the scores for that.)
    """
    return share(dict.fromkeys(demand.shapes, 1), demand)


@SCOPES.register("erk")
def erk(demand: Demand) -> dict[str, int]:
    """Erdős–Rényi kernel: density ∝ (sum of the dimensions)/(product of the dimensions), total
    exact.

    Narrow layers stay denser than wide ones; where the rule asks for more than everything, the
    layer is dense and the rest is shared out among the others (Mocanu et al. 2018; Evci et al.
    2020, section 3.1).
    """
    return share(
        {
            name: Fraction(sum(s), max(math.prod(s), 1))
            for name, s in demand.shapes.items()
        },
        demand,
    )
