"""A model traced by torch.export, for any batch size if the model allows it."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateurs.base.parameters import check_model, refuse_scripted
from secateurs.errors import ArgumentError, ShipError, first_line
from secateurs.graph import Example
from secateurs.graph.export import TRACING, cache_advice
from secateurs.graph.replay import fill_caches
from secateurs.graph.untouched import keeping, quietly, untouched
from secateurs.ship.fast.module import Fixed
from secateurs.ship.fast.trace import arguments, random_call


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """The sizes of a call that a program accepts: why its batch is fixed ("" if it is not), and
    likewise for the length of token sequences (None if no input has one).
    """

    why_fixed: str
    why_length: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """A program, the arguments it was traced with, and the sizes it accepts."""

    program: Any
    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    free: Free
    names: tuple[str, ...]
    """What the inputs are called, in the order of a call."""


def model_to_write(model: nn.Module) -> nn.Module:
    """The model, or the one that a program was made from, since the kernels of a program cannot be
    traced. What cannot be written is refused: no module, a scripted one, one that still trains.
    """
    model = model.plain if isinstance(model, Fixed) else model
    check_model(model)
    refuse_scripted(model)
    if any(module.training for module in model.modules()):
        raise ArgumentError("only models in evaluation mode are exported: call model.eval() first.")
    return model


def trace_program(model: nn.Module, example: Example) -> TracedProgram:
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
            return _trace(model, doubled, batch, Free(why_fixed="", why_length=""))
        except Exception as error:
            # The tracer raises errors of any kind, whose first line says why a size is fixed.
            length = _why(error)
    try:
        return _trace(model, doubled, batch, Free(why_fixed="", why_length=length))
    except Exception as error:
        free = Free(why_fixed=_why(error), why_length=length)
    try:
        return _trace(model, (args, kwargs), None, free)
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]
        raise ShipError(
            f"{type(model).__name__} cannot be traced by torch.export: {text}{cache_advice(model)}"
        ) from error


def length_of(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> int | None:
    """The length of the token sequences of a call: inputs of integers, [batch, length]."""
    lengths = {len(value[0]) for value in (*args, *kwargs.values()) if is_tokens(value)}
    # Sequences of two lengths (a question, an answer) are left as they are. A length of one would
    # be taken for a constant.
    return lengths.pop() if len(lengths) == 1 and max(lengths) > 1 else None


def is_tokens(value: Tensor) -> bool:
    """Whether an input holds token ids, or a mask of tokens."""
    return value.ndim == 2 and not value.is_floating_point() and not value.is_complex()


def _why(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


@contextmanager
def silently() -> Iterator[None]:
    """Suppress all warnings of exporters, which run no user code."""
    with warnings.catch_warnings(), torch.no_grad(), quietly():
        warnings.simplefilter("ignore")
        yield


def _trace(
    model: nn.Module,
    given: tuple[tuple[Tensor, ...], dict[str, Tensor]],
    batch: Any,
    free: Free,
) -> TracedProgram:
    args, kwargs = given
    shapes = None
    if batch is not None:
        shapes = _shapes(model, args, kwargs, batch, long=free.why_length == "")
    fill_caches(model, args, kwargs)
    with TRACING, quietly(), torch.no_grad(), keeping(model):
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    names = tuple(program.graph_signature.user_inputs)
    return TracedProgram(program=program, args=args, kwargs=kwargs, free=free, names=names)


def _shapes(
    model: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: dict[str, Tensor],
    batch: Any,
    *,
    long: bool,
) -> dict[str, Any]:
    """The first dimension of every input is the batch, and with `long` the second one of token
    inputs is their length; inputs are keyed by the argument names of `forward`.
    """
    bound = signature(model.forward).bind(*args, **kwargs).arguments

    def sizes(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(sizes, value))
        if isinstance(value, dict):
            return {name: sizes(inner) for name, inner in value.items()}
        # DYNAMIC: the tracer finds limits, such as the number of positions.
        length = {1: torch.export.Dim.DYNAMIC} if long and is_tokens(value) else {}
        return {0: batch, **length}

    return {name: sizes(value) for name, value in bound.items()}


def _two(tensor: Tensor) -> Tensor:
    """Two samples, since torch.export takes a dimension of one for a constant."""
    sample = tensor.detach()[:1]
    return torch.cat([sample, sample]).contiguous()


# Whether an exported program computes what the model does, on inputs of several batch sizes.

Runner: TypeAlias = Callable[[tuple[Tensor, ...], dict[str, Tensor]], Sequence[Tensor]]
"""Runs the exported program on the arguments of a call; gives its output tensors in order."""

Called: TypeAlias = tuple[tuple[Tensor, ...], dict[str, Tensor]]
BATCHES = (1, 3)


@torch.no_grad()
def largest_difference(model: nn.Module, run: Runner, example: Example, free: Free) -> float:
    """max |f − g| / max |f| over the example and, if other sizes are accepted, random inputs."""
    args, kwargs = arguments(example)
    calls = [(args, kwargs)]
    if not free.why_fixed:
        # An example of zeros shows little, and other sizes reveal a batch fixed by mistake.
        calls += [random_call(args, kwargs, batch) for batch in BATCHES]
        if free.why_length == "":
            # Shorter ones only, since a longer one may exceed the positions.
            calls += [_shorten(call, length) for call, length in _shorter(calls)]
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


def _shorten(call: Called, length: int) -> Called:
    def first(value: Tensor) -> Tensor:
        return value[:, :length].contiguous() if is_tokens(value) else value

    args, kwargs = call
    return tuple(map(first, args)), {name: first(v) for name, v in kwargs.items()}


def refuse_beyond(difference: float, tolerance: float, what: str) -> None:
    """Refuse a result that differs too much; a NaN differs, too."""
    if not difference <= tolerance:
        raise ShipError(
            f"the exported {what} differs from the model by {difference:.1e} of the largest output "
            f"({tolerance:.0e} is allowed); nothing was written. Give tolerance= if that is"
            " close enough."
        )


def outputs_differ_by(ours: object, theirs: object) -> float:
    """max |f − g| / max |f|, the largest over the tensors of two outputs of one structure."""
    pairs = list(zip(_tensors(ours), _tensors(theirs), strict=True))
    # Different shapes might broadcast and then look equal.
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
    # If all outputs are zero, the difference is taken as it is.
    return float((ours - theirs).abs().max()) / (scale or 1.0)
