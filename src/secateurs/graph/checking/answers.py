"""What the model itself answers to a call, in a dtype of our choice."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from secateurs.errors import CaptureError, first_line
from secateurs.graph.example import Call
from secateurs.graph.export import keeping
from secateurs.graph.ir import Graph
from secateurs.graph.reading.outputs import outputs_of
from secateurs.stateless import call_with


def own_answer(
    model: nn.Module,
    call: Call,
    graph: Graph,
    dtype: torch.dtype,
    *,
    cast: Mapping[str, Tensor],
) -> tuple[Tensor, bool]:
    """What the model answers, and whether in this dtype: else it is in its own precision.

    `cast` is as for `answers`.
    """
    if not graph.casts:
        try:
            return answers(model, call, dtype, cast=cast)[graph.output_name], True
        except (
            Exception
        ):  # a plain tensor or a dtype written in the code meets float64
            pass
    try:
        return answers(model, call, None)[graph.output_name], False
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} was traced, but does not run on a random input of shape"
            f" {call.shapes}: {first_line(error)}."
        ) from error


@torch.no_grad()
def answers(
    model: nn.Module,
    call: Call,
    dtype: torch.dtype | None,
    *,
    cast: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """All outputs of a call with copies of the parameters and buffers in this dtype, in float64.

    `cast` holds tensors of the model that somebody has cast to this dtype and no longer needs: they
    are used where they are copies, and the call may write into them.
    """
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # Copies: a forward pass may write into a buffer.
    state = {}
    for name, tensor in own.items():
        ready = cast.get(name) if cast else None
        # A cast to the tensor's own dtype copies nothing: that is the model's own memory.
        if ready is None or ready.dtype == tensor.dtype:
            ready = _copied(tensor, dtype)
        state[name] = ready
    moved = call.replaced([_cast(t, dtype) for t in call.tensors])
    with torch.random.fork_rng(), keeping(model):
        result = call_with(model, state, moved.args, moved.kwargs)
    return {name: t.double() for name, t in outputs_of(result).items()}


def _copied(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy in this dtype, made once: a cast and then a clone would move every weight twice."""
    wanted = dtype if dtype and tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(wanted, copy=True)


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return (
        tensor.to(dtype)
        if dtype is not None and tensor.is_floating_point()
        else tensor
    )


def coarsest(model: nn.Module, graph: Graph) -> float:
    """The largest machine epsilon the model computes in."""
    dtypes = [p.dtype for p in model.parameters()] + [
        cast.target for cast in graph.casts
    ]
    return max(
        (torch.finfo(d).eps for d in dtypes), default=torch.finfo(torch.float32).eps
    )
