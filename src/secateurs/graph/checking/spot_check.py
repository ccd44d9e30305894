"""Compares a graph with the model it was read from, on random inputs.

Reading a model goes through a tracer, a resolution of in-place changes and a rule per operator. A
slip in any of them would make every later number wrong in silence, so the result is always checked.
"""

import torch
from torch import Tensor, nn

from secateurs.errors import CaptureError, ParameterError
from secateurs.graph.checking.answers import coarsest, own_answer
from secateurs.graph.example import Call
from secateurs.graph.ir import Graph
from secateurs.graph.primitives import Activation, Affine
from secateurs.graph.propagate import Evaluate, propagate

# Inputs of at most this many numbers are checked at two points and in float64. Larger ones at one
# point in the model's own precision: float64 convolutions at 224×224 cost 14 times the reading.
_SMALL = 4096


class _Peak(Evaluate):
    """Ordinary values, and the largest of all: what rounding errors are measured against.

    alive: every activation let something through, so that a wrong branch would have been seen.
    """

    def __init__(self) -> None:
        self.peak = 0.0
        self.alive = True

    def affine(self, node: Affine, x: Tensor | None, params: object) -> Tensor:
        y = super().affine(node, x, params)
        self.peak = max(self.peak, float(y.abs().max()) if y.numel() else 0.0)
        return y

    def activation(self, node: Activation, x: Tensor) -> Tensor:
        # A layer that is off on this input answers 0 whatever was misread behind it.
        self.alive &= bool((x > 0).any())
        return super().activation(node, x)


@torch.no_grad()
def spot_check(model: nn.Module, call: Call, graph: Graph) -> frozenset[str] | None:
    """Refuse a graph that does not compute what the model computes.

    Returns the parameters that were zero as a whole, such as fresh biases: how they are used could
    not be seen. None where nothing could: no finite values, or nothing passed an activation.
    """
    small = sum(t.numel() for t in call.tensors) <= _SMALL
    try:
        state = graph.state(
            model, dtype=torch.float64 if small else _own_dtype(model)
        )
    except ParameterError:
        # NaN or infinite weights: whoever needs values refuses them later.
        return None
    seen = [
        _compare(model, call.replaced(tensors), graph, state, small=small)
        for tensors in _inputs(call, several=small)
    ]
    # A weight of zeros hides what is read wrongly beside it, so such a program is not
    # remembered as checked.
    if not all(seen):
        return None
    return frozenset(n for n in graph.parameters if not bool(state[n].any()))


def _own_dtype(model: nn.Module) -> torch.dtype:
    """float32 for models of float32 alone; else float64 (half precision is slow and coarse)."""
    dtypes = {p.dtype for p in model.parameters()}
    return torch.float32 if dtypes == {torch.float32} else torch.float64


def _inputs(call: Call, *, several: bool) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [
            _normal(t, generator) * scale + shift if t.is_floating_point() else t
            for t in call.tensors
        ]
        # Ids and flags stay the example's own: a drawn id may lie outside of a vocabulary.
        # Two draws of different size and middle: what one hides the other may show.
        for scale, shift in ([(1.0, 0.0), (0.3, 0.5)] if several else [(1.0, 0.0)])
    ]


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    # Rounded first: both sides see the same numbers.
    return drawn.to(like.dtype).to(like.device)


def _compare(
    model: nn.Module,
    call: Call,
    graph: Graph,
    state: dict[str, Tensor],
    *,
    small: bool,
) -> bool:
    """Raise on a difference; whether one would have shown."""
    flow = _Peak()
    dtype = torch.float64 if small else _own_dtype(model)
    fed = [t.to(dtype) if t.is_floating_point() else t for t in call.tensors]
    ours = propagate(graph, flow, fed, state).double()
    # A model with conversions rounds on the way, whatever dtype it is fed.
    theirs, precise = own_answer(model, call, graph, dtype)
    precise &= dtype == torch.float64
    if not bool(
        theirs.isfinite().all()
    ):  # overflow on this input: nothing to compare
        return False
    scale = max(float(t.abs().max()) if t.numel() else 0.0 for t in (ours, theirs))
    # Constants made in float32 by the model's code keep seven digits, whatever runs around them.
    share = 1e-6 if precise else min(0.5, 2000 * coarsest(model, graph))
    # Relative to the largest value on the way: outputs may cancel to far less, and
    # rounding does not.
    allowed = share * max(scale, flow.peak)
    gap = (
        float((ours - theirs).abs().max())
        if ours.shape == theirs.shape
        else float("inf")
    )
    # `not … <=` so that a NaN is a difference.
    if ours.numel() and not gap <= allowed:
        raise CaptureError(
            f"the graph read from {type(model).__name__} does not compute what the model computes:"
            f" on a random input they differ by {gap:.3g}, outputs reach {scale:.3g}. Nothing is"
            " returned, because every number from it would be wrong. Values changed in place under"
            " several names are the usual reason: write y = f(x) instead of f_(x)."
        )
    return flow.alive and bool(ours.any())
