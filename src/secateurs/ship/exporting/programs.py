"""A model traced by torch.export, with any batch size where the model allows it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ShipError
from secateurs.graph import Example
from secateurs.graph.quiet import quietly
from secateurs.graph.reading.refusals import cache_advice
from secateurs.graph.untouched import keeping
from secateurs.ship.fast.trace import arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Which sizes of a call a program takes: why its batch is fixed ("" if it is not), and the
    same of the length of token sequences (None where no input has one).
    """

    why_fixed: str
    why_length: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A program, what it was traced with, and which sizes it takes."""

    program: Any
    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    free: Free
    names: tuple[str, ...]
    """What the inputs are called, in the order of a call."""


def traced(model: nn.Module, example: Example) -> Traced:
    """The model as an exported program: with any batch size and any length of token sequences,
    else with any batch size, or else with the sizes of the example.
    """
    args, kwargs = arguments(example)
    doubled = (
        tuple(map(_two, args)),
        {name: _two(value) for name, value in kwargs.items()},
    )
    batch = torch.export.Dim("batch", min=1)
    length = "" if length_of(args, kwargs) is not None else None
    if length is not None:
        try:
            return _traced(model, doubled, batch, Free(why_fixed="", why_length=""))
        except Exception as error:
            # The tracer raises errors of any kind: their
            # first line says why a size is fixed.
            length = _why(error)
    try:
        return _traced(model, doubled, batch, Free(why_fixed="", why_length=length))
    except Exception as error:
        free = Free(why_fixed=_why(error), why_length=length)
    try:
        return _traced(model, (args, kwargs), None, free)
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]
        raise ShipError(
            f"{type(model).__name__} cannot be traced by torch.export: {text}"
            f"{cache_advice(model)}"
        ) from error


def length_of(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> int | None:
    """The length of the token sequences of a call: inputs of whole numbers, [batch, length]."""
    lengths = {
        len(value[0]) for value in (*args, *kwargs.values()) if is_tokens(value)
    }
    # Sequences of two lengths (a question, an answer) are left as they are. One of a single
    # token would be taken for a constant.
    return lengths.pop() if len(lengths) == 1 and max(lengths) > 1 else None


def is_tokens(value: Tensor) -> bool:
    """Whether an input holds token ids, or marks of them."""
    return (
        value.ndim == 2 and not value.is_floating_point() and not value.is_complex()
    )


def _why(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


@contextmanager
def silently() -> Iterator[None]:
    """Without any warning of exporters: no code of the user's runs in them."""
    with warnings.catch_warnings(), torch.no_grad(), quietly():
        warnings.simplefilter("ignore")
        yield


def _traced(
    model: nn.Module,
    given: tuple[tuple[Tensor, ...], dict[str, Tensor]],
    batch: Any,
    free: Free,
) -> Traced:
    args, kwargs = given
    shapes = None
    if batch is not None:
        shapes = _shapes(model, args, kwargs, batch, long=free.why_length == "")
    with quietly(), torch.no_grad(), keeping(model):
        program = torch.export.export(
            model, args, kwargs, dynamic_shapes=shapes, strict=False
        )
    names = tuple(program.graph_signature.user_inputs)
    return Traced(program=program, args=args, kwargs=kwargs, free=free, names=names)


def _shapes(
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: dict[str, Tensor],
    batch: Any,
    *,
    long: bool,
) -> dict[str, Any]:
    """The first dimension of every input is the batch, and with `long` the second one of tokens
    their length; inputs go by the names of `forward`.
    """
    bound = signature(model.forward).bind(*args, **kwargs).arguments

    def sizes(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(sizes, value))
        if isinstance(value, dict):
            return {name: sizes(inner) for name, inner in value.items()}
        # DYNAMIC: a limit, such as the number of positions, is found by the tracer.
        length = {1: torch.export.Dim.DYNAMIC} if long and is_tokens(value) else {}
        return {0: batch, **length}

    return {name: sizes(value) for name, value in bound.items()}


def _two(tensor: Tensor) -> Tensor:
    """Two samples: torch.export takes a dimension of one for a constant."""
    sample = tensor.detach()[:1]
    return torch.cat([sample, sample]).contiguous()
