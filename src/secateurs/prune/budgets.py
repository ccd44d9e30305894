"""Budgets in work instead of entries: the density at which a share of the multiplications or of
the time is left."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from secateurs.errors import ArgumentError
from secateurs.graph import Example, capture
from secateurs.parameters import Params
from secateurs.ship.macs import macs
from secateurs.ship.timing import LatencyTable, latency_table

Result = TypeVar("Result")

STEPS = 14
"""Halvings of the density: the last one is below a ten-thousandth."""


def check_share(name: str, value: object) -> None:
    """Refuse what is no share."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= 1
    ):
        raise ArgumentError(f"{name}={value!r} is not a share between 0 and 1.")


def fitted_to_work(
    name: str,
    budget: float,
    left: Callable[[Result], float],
    cut: Callable[[float], Result],
) -> Result:
    """The densest of the cuts of which at most this share of the work is left.

    Work falls as the density falls, so halving finds it; each try scores and cuts anew.
    """
    low, high, best = 0.0, 1.0, None
    stopped: ArgumentError | None = None
    for _ in range(STEPS):
        density = (low + high) / 2
        try:
            done = cut(density)
        except ArgumentError as error:  # a floor that so few entries cannot keep
            low, stopped = density, error
            continue
        if left(done) <= budget:
            low, best = density, done
        else:
            high = density
    if best is None:
        raise ArgumentError(
            f"{name}={budget!r} cannot be reached: what the recipe leaves alone (floor=, where=) "
            "already takes more. Ask for more, or choose more parameters."
        ) from stopped
    return best


def macs_left(
    model: nn.Module, example: Example | None, masks_of: Callable[[Result], Params]
) -> Callable[[Result], float]:
    """The share of the dense multiplications that the masks of a cut leave."""
    if example is None:
        raise ArgumentError(
            "macs= counts multiplications: give an example= of the input."
        )
    # One capture serves all tries: masks change weights, never the graph.
    graph = capture(model, example, opaque=True)

    def share(done: Result) -> float:
        work = macs(model, graph, masks=masks_of(done))
        return work.nonzero / work.dense

    return share


def table_of(
    model: nn.Module, example: Example | None, given: LatencyTable | None
) -> LatencyTable:
    """The table of a latency budget: the one given, or one measured now."""
    if given is not None:
        return given
    if example is None:
        raise ArgumentError(
            "latency= is read from times of the layers: give an example= of the input, or a "
            "latencies= table measured before."
        )
    return latency_table(model, example)


def estimated(table: LatencyTable, masks: Params) -> str:
    """What the table says of these masks, and that it is no measurement."""
    took = table.seconds(densities_of(masks))
    return (
        f"estimated {1e3 * took:.3g} of {1e3 * table.dense:.3g} ms ({took / table.dense:.0%}) from "
        f"times of single layers ({table.kind}, {table.threads} thread(s)); secateurs.measure "
        "tells what the finished network takes"
    )


def densities_of(masks: Params) -> dict[str, float]:
    """The density of each mask."""
    return {name: float(mask.double().mean()) for name, mask in masks.items()}
