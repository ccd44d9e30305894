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
from secateurs.graph.untouched import keeping
from secateurs.ship.fast.trace import arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A program, what it was traced with, and why its batch size is fixed ("" if it is not)."""

    program: Any
    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    why_fixed: str
    names: tuple[str, ...]
    """What the inputs are called, in the order of a call."""


def traced(model: nn.Module, example: Example) -> Traced:
    """The model as an exported program: with any batch size, or else with that of the example."""
    args, kwargs = arguments(example)
    doubled = (
        tuple(map(_two, args)),
        {name: _two(value) for name, value in kwargs.items()},
    )
    try:
        return _traced(model, doubled, {0: torch.export.Dim("batch", min=1)}, "")
    except Exception as error:
        # The tracer raises errors of any kind: their
        # first line says why the batch is fixed.
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    try:
        return _traced(model, (args, kwargs), None, why)
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]
        raise ShipError(
            f"{type(model).__name__} cannot be traced by torch.export: {text}"
        ) from error


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
    why: str,
) -> Traced:
    args, kwargs = given
    shapes = None if batch is None else _shapes(model, args, kwargs, batch)
    with quietly(), torch.no_grad(), keeping(model):
        program = torch.export.export(
            model, args, kwargs, dynamic_shapes=shapes, strict=False
        )
    names = tuple(program.graph_signature.user_inputs)
    return Traced(
        program=program, args=args, kwargs=kwargs, why_fixed=why, names=names
    )


def _shapes(
    model: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], batch: Any
) -> dict[str, Any]:
    """The first dimension of every input is the batch; inputs go by the names of `forward`."""
    bound = signature(model.forward).bind(*args, **kwargs).arguments
    return {
        name: (batch,) * len(value)
        if isinstance(value, tuple)
        else dict.fromkeys(value, batch)
        if isinstance(value, dict)
        else batch
        for name, value in bound.items()
    }


def _two(tensor: Tensor) -> Tensor:
    """Two samples: torch.export takes a dimension of one for a constant."""
    sample = tensor.detach()[:1]
    return torch.cat([sample, sample]).contiguous()
