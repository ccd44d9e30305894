"""A network as one C file: no dependency, static memory, `predict(const float *x, float *y)`."""

import torch
from torch import nn

from secateurs.errors import ShipError
from secateurs.graph import Example
from secateurs.graph.untouched import untouched
from secateurs.ship.c_source.writer import Writer
from secateurs.ship.fast import rules
from secateurs.ship.fast.operations import (
    Enter,
    Leave,
    Outside,
)
from secateurs.ship.fast.read import read
from secateurs.ship.fast.trace import check, refuse_mixing, trace
from secateurs.ship.fast.values import Steps

# `rules` is imported for what its files do: they register the operators.
__all__ = ["c_source", "rules"]


def c_source(model: nn.Module, example: Example) -> str:
    """The C99 source of a model in evaluation mode, for one image at a time.

    Only non-zero weights are written: as straight code where a layer is a small matrix, as tables
    and loops elsewhere. What nobody reads is not computed. The file begins with the bytes it needs.

    Args:
        model: in evaluation mode, with one input and one output; masks are zeros in its weights.
        example: what it is called with.

    Raises:
        ShipError: an operator that has no C, by name; several inputs or outputs; samples of a batch
            that act on each other.

    >>> source = c_source(nn.Linear(2, 1).eval(), torch.zeros(1, 2))
    >>> "void predict(const float *restrict x, float *restrict y)" in source
    True
    """
    check(model)
    dtype = next(
        (p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32
    )
    with untouched(model):
        refuse_mixing(model, example)
        steps = read(trace(model, example), dtype)
    _check(steps, type(model).__name__)
    return Writer(steps=steps, name=type(model).__name__).text()


def _check(steps: Steps, name: str) -> None:
    outside = [s for s in steps.steps if isinstance(s, Outside)]
    if outside:
        listed = "; ".join(
            f"{s.target} at {s.place or 'the model itself'} ({s.why})"
            for s in outside[:6]
        )
        raise ShipError(
            f"{name} calls what has no C: {listed}. Replace it, or use `accelerate`."
        )
    entered = sum(isinstance(s, Enter) for s in steps.steps)
    left = sum(isinstance(s, Leave) for s in steps.steps)
    if (entered, left) != (1, 1) or len(steps.outputs) != 1:
        raise ShipError(
            f"{name} has {len(steps.inputs)} inputs and {len(steps.outputs)} outputs where a C "
            "file has one of each. Export the part between."
        )
