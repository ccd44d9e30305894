"""Budgets in work instead of entries: the density at which a share of the multiplications or of
the time is left."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from secateurs.channels.macs import macs
from secateurs.errors import ArgumentError
from secateurs.graph import Example, capture
from secateurs.parameters import Params
from secateurs.ship import LatencyTable, latency_table

Result = TypeVar("Result")

STEPS = 14
"""Halvings of the density: the last one is below a ten-thousandth."""


def densest_of_macs(
    budget: float,
    model: nn.Module,
    example: Example | None,
    cut: Callable[[float], Result],
    masks_of: Callable[[Result], Params],
) -> Result:
    """The densest cut that leaves at most this share of the multiplications."""
    if example is None:
        raise ArgumentError("macs= counts multiplications: give an example= of the input.")
    # One capture serves all tries: masks change weights, never the graph.
    graph = capture(model, example, opaque=True)

    def left(done: Result) -> float:
        work = macs(model, graph, masks=masks_of(done))
        return work.nonzero / work.dense

    return _densest("macs", budget, left, cut)


def densest_of_time(
    budget: float,
    model: nn.Module,
    example: Example | None,
    table: LatencyTable | None,
    cut: Callable[[float], Result],
    masks_of: Callable[[Result], Params],
) -> tuple[Result, str]:
    """The densest cut that leaves at most this share of the time, and a note on how it was told.

    The times of the layers are those of the table given, or measured now.
    """
    if table is None:
        if example is None:
            raise ArgumentError(
                "latency= is read from times of the layers: give an example= of the input, or a "
                "latencies= table measured before."
            )
        table = latency_table(model, example)
    times = table

    def left(done: Result) -> float:
        return times.seconds(_densities(masks_of(done))) / times.dense

    found = _densest("latency", budget, left, cut)
    took = times.seconds(_densities(masks_of(found)))
    return found, (
        f"estimated {1e3 * took:.3g} of {1e3 * times.dense:.3g} ms ({took / times.dense:.0%}) from "
        f"times of single layers ({times.kind}, {times.threads} thread(s)); secateurs.measure "
        "tells what the finished network takes"
    )


def _densest(
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


def _densities(masks: Params) -> dict[str, float]:
    """The density of each mask."""
    return {name: float(mask.double().mean()) for name, mask in masks.items()}
