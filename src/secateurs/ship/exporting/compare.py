"""Whether an exported program computes what the model does, on inputs of several batch sizes."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateurs.errors import ShipError, first_line
from secateurs.graph import Example
from secateurs.graph.untouched import untouched
from secateurs.ship.exporting.programs import Free, is_tokens, length_of
from secateurs.ship.fast.trace import arguments, random_call

Runner: TypeAlias = Callable[
    [tuple[Tensor, ...], dict[str, Tensor]], Sequence[Tensor]
]
"""Runs the exported program on the arguments of a call; gives its output tensors in order."""

Called: TypeAlias = tuple[tuple[Tensor, ...], dict[str, Tensor]]
BATCHES = (1, 3)


@torch.no_grad()
def largest_difference(
    model: nn.Module, run: Runner, example: Example, free: Free
) -> float:
    """max |f − g| / max |f| over the example and, where other sizes are taken, random inputs."""
    args, kwargs = arguments(example)
    calls = [(args, kwargs)]
    if not free.why_fixed:
        # An example of zeros shows little, and other
        # sizes show a batch fixed by mistake.
        calls += [random_call(args, kwargs, batch) for batch in BATCHES]
        if free.why_length == "":
            # Shorter ones only: a longer one may have no positions.
            calls += [_cut(call, length) for call, length in _shorter(calls)]
    found = []
    for a, k in calls:
        try:
            with untouched(model):
                wanted = model(*a, **k)
        except Exception as error:
            raise ShipError(
                f"{type(model).__name__} does not run on inputs of shape"
                f" {[tuple(t.shape) for t in (*a, *k.values())]}, so nothing can be compared with"
                f" it: {first_line(error)}"
            ) from error
        with untouched(model):  # a program that draws random numbers, too
            found.append(outputs_differ_by(wanted, run(a, k)))
    return max(found)


def _shorter(calls: list[Called]) -> list[tuple[Called, int]]:
    """The last call at half of its length and at two tokens."""
    length = length_of(*calls[-1]) or 0
    return [(calls[-1], cut) for cut in {length // 2, 2} if 1 < cut < length]


def _cut(call: Called, length: int) -> Called:
    def first(value: Tensor) -> Tensor:
        return value[:, :length].contiguous() if is_tokens(value) else value

    args, kwargs = call
    return tuple(map(first, args)), {name: first(v) for name, v in kwargs.items()}


def refuse_beyond(difference: float, tolerance: float, what: str) -> None:
    """Refuse a result that differs too much; a NaN differs, too."""
    if not difference <= tolerance:
        raise ShipError(
            f"the exported {what} differs from the model by {difference:.1e} of the largest output "
            f"({tolerance:.0e} is allowed); nothing was written. Say tolerance= if that is enough."
        )


def outputs_differ_by(ours: object, theirs: object) -> float:
    """max |f − g| / max |f|, the largest over the tensors of two outputs of one structure."""
    pairs = list(zip(_tensors(ours), _tensors(theirs), strict=True))
    # Shapes that differ might broadcast, and then look equal.
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max((_relative(a.double(), b.double()) for a, b in pairs), default=0.0)


def _tensors(outputs: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _relative(ours: Tensor, theirs: Tensor) -> float:
    # Equal infinities are equal, though their difference is NaN.
    if not ours.numel() or torch.equal(ours, theirs):
        return 0.0
    scale = float(ours.abs().max())
    # Where all outputs are zero the difference counts as it is.
    return float((ours - theirs).abs().max()) / (scale or 1.0)
