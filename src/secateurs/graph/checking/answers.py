"""What the model itself answers to calls, in a dtype of our choice."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.errors import CaptureError, first_line
from secateurs.graph.example import Call
from secateurs.graph.ir import Graph
from secateurs.graph.reading.outputs import outputs_of
from secateurs.graph.untouched import keeping
from secateurs.graph.wrapper import kind_of
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
            f"{kind_of(model)} was traced, but does not run on a random input of shape"
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
    state = _state(model, dtype, cast or {})
    with keeping(model):
        result = _run(model, call, dtype, state)
    return {name: t.double() for name, t in outputs_of(result).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One of several calls: what is fed, and whether gradients are recorded meanwhile, or not even
    prepared for.
    """

    call: Call
    gradients: bool
    inference: bool = False


def answers_in_turn(
    model: nn.Module, runs: Sequence[Run], dtype: torch.dtype | None
) -> list[dict[str, Tensor] | Exception]:
    """All outputs of calls that follow each other, each finding what the one before has left; what
    a call raises stands in its place.

    The states of random numbers are none that any other run begins with.
    """
    # Gradients are not recorded in inference mode, whatever is asked.
    with torch.inference_mode(False), keeping(model):
        return [*_in_turn(model, runs, dtype)]


def _in_turn(
    model: nn.Module, runs: Sequence[Run], dtype: torch.dtype | None
) -> Iterator[dict[str, Tensor] | Exception]:
    state = _state(model, dtype, {})
    own = dict(model.named_parameters())
    # What the model's code sees when a user calls it: parameters, with their gradients.
    for name, parameter in own.items():
        state[name] = nn.Parameter(state[name], parameter.requires_grad)
    for number, run in enumerate(runs):
        _seed(4711 + number)
        try:
            with (
                torch.inference_mode(run.inference),
                torch.set_grad_enabled(run.gradients),
            ):
                result = _run(model, run.call, dtype, state)
            found = outputs_of(result)
            yield {name: t.detach().double() for name, t in found.items()}
        except Exception as error:
            yield error


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _state(
    model: nn.Module, dtype: torch.dtype | None, cast: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Copies of all parameters and buffers: a forward pass may write into a buffer."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {}
    for name, tensor in own.items():
        ready = cast.get(name)
        # A cast to the tensor's own dtype copies nothing: that is the model's own memory.
        if ready is None or ready.dtype == tensor.dtype:
            ready = _copied(tensor, dtype)
        state[name] = ready
    return state


def _run(
    model: nn.Module,
    call: Call,
    dtype: torch.dtype | None,
    state: Mapping[str, Tensor],
) -> object:
    moved = call.replaced([_cast(t, dtype) for t in call.tensors])
    return call_with(model, state, moved.args, moved.kwargs)


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
