"""Budgets in work instead of entries: the density at which a share of the multiplications is
left."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from secateurs.errors import ArgumentError
from secateurs.graph import Example, capture
from secateurs.parameters import Params
from secateurs.ship.macs import macs

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


def fitted_to_macs(
    model: nn.Module,
    example: Example | None,
    share: float,
    cut: Callable[[float], Result],
    masks_of: Callable[[Result], Params],
) -> Result:
    """The densest of the cuts that leave at most a share of the dense multiplications.

    Work falls as the density falls, so halving finds it; each try scores and cuts anew.
    """
    if example is None:
        raise ArgumentError(
            "macs= counts multiplications: give an example= of the input."
        )
    # One capture serves all tries: masks change weights, never the graph.
    graph = capture(model, example, opaque=True)
    low, high, best = 0.0, 1.0, None
    stopped: ArgumentError | None = None
    for _ in range(STEPS):
        density = (low + high) / 2
        try:
            done = cut(density)
        except ArgumentError as error:  # a floor that so few entries cannot keep
            low, stopped = density, error
            continue
        work = macs(model, graph, masks=masks_of(done))
        if work.nonzero <= share * work.dense:
            low, best = density, done
        else:
            high = density
    if best is None:
        raise ArgumentError(
            f"macs={share!r} cannot be reached: what the recipe leaves alone (floor=, where=) "
            "already multiplies more. Ask for more, or choose more parameters."
        ) from stopped
    return best
