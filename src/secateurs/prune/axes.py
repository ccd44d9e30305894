"""Which dimension of a weight is its outputs and which its inputs.

Patterns and rows are defined on (outputs, inputs, *rest). Linear layers and convolutions keep their
weights so; transposed convolutions, the `Conv1D` of GPT-2 and fused experts do not. For known types
the type decides; for the others the model is run on an example, and the operators that take the
weight decide. A weight whose order stays unknown is refused by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.overrides import TorchFunctionMode

from secateurs.base.copies import evaluating
from secateurs.base.parameters import Params
from secateurs.base.prunable import owned_parameters
from secateurs.errors import PatternError
from secateurs.masks.patterns import NM, Block, Channel, Filter, Kernel, pattern_of
from secateurs.scores.task import call

ORDERED = (NM, Block, Kernel, Filter, Channel)
"""Patterns of this library for which the order of dimensions matters."""


def orders_of(
    model: nn.Module,
    parameters: Params,
    *,
    pattern: object,
    scope: object,
    example: Any,
) -> "Orders":
    """The orders that a pattern and a scope need: none where order does not matter, an error where
    it is unknown.
    """
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    # Most recipes end here: where order does not matter, no unknown layer should be refused.
    if not isinstance(pattern_of(pattern), ORDERED) and scope != "row":  # type: ignore[arg-type]
        return Orders(orders={}, shapes=shapes)
    # The type of the module decides most orders; only the other weights are watched while the
    # example runs.
    owners = {name: owner for name, _, owner in owned_parameters(model)}
    orders: dict[str, AxisOrder] = {}
    unknown: list[str] = []
    for name, shape in shapes.items():
        if _has_outputs_first(owners[name], shape):
            continue
        order = _order_by_type(owners[name], shape)
        if order is None:
            unknown.append(name)
        else:
            orders[name] = order
    if unknown and example is not None:
        found = _orders_by_use(model, {name: parameters[name] for name in unknown}, example)
        unknown = [name for name in unknown if name not in found]
        orders |= {name: order for name, order in found.items() if order is not None}
    if unknown:
        raise PatternError(_refusal(unknown, owners, shapes, example))
    return Orders(orders=orders, shapes=shapes)


def refuse_reordered(model: nn.Module, parameters: Params, recipe: Any, example: Any) -> None:
    """Pruning during training uses weights as stored: refuse those stored in another order."""
    turned = orders_of(
        model, parameters, pattern=recipe.pattern, scope=recipe.scope, example=example
    ).orders
    if turned:
        raise PatternError(
            f"{', '.join(map(repr, list(turned)[:8]))} are not stored as (outputs, inputs, ...), "
            "and pruning during training takes patterns and rows along that order: use prune_ "
            "once and hold, pattern='unstructured', or leave them out with where=."
        )


def _refusal(
    unknown: Sequence[str],
    owners: Mapping[str, nn.Module],
    shapes: Mapping[str, tuple[int, ...]],
    example: Any,
) -> str:
    listed = ", ".join(
        f"{name!r} {shapes[name]} of {type(owners[name]).__name__}" for name in unknown[:8]
    )
    way = (
        "pass example=, one input of the model, and its operators will show it"
        if example is None
        else "no linear or convolution operator took them while the example ran, or two disagree"
    )
    return (
        f"which dimension is the output of {listed} is not known: {way}. Or leave them out with"
        " where=, or take pattern='unstructured' and another scope."
    )


# A weight seen as (outputs, inputs, *rest), and back.


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The orders of the weights that are not kept as (outputs, inputs, *rest)."""

    orders: Mapping[str, "AxisOrder"]
    shapes: Mapping[str, tuple[int, ...]]

    def outputs_first(self, tensors: Params) -> dict[str, Tensor]:
        """Every tensor as (outputs, inputs, *rest)."""
        return {
            n: self.orders[n].outputs_first(t) if n in self.orders else t
            for n, t in tensors.items()
        }

    def restore(self, tensors: Params) -> dict[str, Tensor]:
        """Every tensor in the shape of its parameter."""
        return {
            n: self.orders[n].restore(t, self.shapes[n]) if n in self.orders else t
            for n, t in tensors.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOrder:
    """A weight seen as (outputs, inputs, *rest): `view` splits it, `outs` and `ins` are positions
    in the view.
    """

    view: tuple[int, ...]
    outs: tuple[int, ...]
    ins: tuple[int, ...]

    @property
    def _permutation(self) -> tuple[int, ...]:
        first = (*self.outs, *self.ins)
        return (*first, *(d for d in range(len(self.view)) if d not in first))

    def outputs_first(self, tensor: Tensor) -> Tensor:
        """The tensor as (outputs, inputs, *rest)."""
        permuted = tensor.reshape(self.view).permute(self._permutation)
        sizes = [self._size(self.outs), self._size(self.ins)]
        return permuted.reshape(*sizes, *permuted.shape[len(self.outs) + len(self.ins) :])

    def restore(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """The inverse of `outputs_first`."""
        # Groups of outputs that `outputs_first` has joined are taken apart again.
        permuted = tensor.reshape([self.view[d] for d in self._permutation])
        back = [self._permutation.index(d) for d in range(len(self.view))]
        return permuted.permute(back).reshape(tuple(shape)).contiguous()

    def _size(self, dims: Sequence[int]) -> int:
        size = 1
        for d in dims:
            size *= self.view[d]
        return size


# The order of a weight's dimensions, from the type of the module that holds it.


_OUTPUTS_FIRST = (
    nn.Linear,
    nn.Bilinear,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    _ConvNd,
)


def _has_outputs_first(owner: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the type says that a weight is kept as (outputs, inputs, *rest); vectors have no
    inputs.
    """
    transposed = isinstance(owner, _ConvTransposeNd)
    return len(shape) < 2 or (isinstance(owner, _OUTPUTS_FIRST) and not transposed)


def _order_by_type(owner: nn.Module, shape: tuple[int, ...]) -> AxisOrder | None:
    """The order of types that keep another one; None where the type says nothing."""
    if isinstance(owner, _ConvTransposeNd):
        # (inputs, outputs per group, *kernel); the outputs of all groups are the outputs.
        view = (owner.groups, shape[0] // owner.groups, *shape[1:])
        return AxisOrder(view=view, outs=(0, 2), ins=(1,))
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag) or _is_conv1d(owner):
        # A row of an embedding belongs to one input (a token), its columns are the outputs.
        return AxisOrder(view=shape, outs=(1,), ins=(0,))
    return None


def _is_conv1d(owner: nn.Module) -> bool:
    """GPT-2's linear layer keeps (inputs, outputs), as does that of an expert."""
    kind = type(owner)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith(("transformers.", "secateurs."))


# The order of a weight's dimensions, from the operators that take it while an example runs.


def _orders_by_use(model: nn.Module, weights: Params, example: Any) -> dict[str, AxisOrder | None]:
    """The orders that operators show; None where it is (outputs, inputs, *rest) already."""
    with (
        # Nothing is trained here: dropout must not draw, nor batch statistics move.
        evaluating(model),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        _Uses(weights) as uses,
    ):
        call(model, example)
    orders: dict[str, AxisOrder | None] = {}
    for name, found in uses.found.items():
        (one, *others) = found
        # Two uses that disagree, or a view that cannot be traced, leave the order unknown.
        if others or one is None:
            continue
        shape = tuple(weights[name].shape)
        out, into = one
        # Dimensions that are neither (experts) number the outputs: each expert has its own.
        batch = tuple(d for d in range(len(shape)) if d not in one)
        orders[name] = (
            None
            if (out, into) == (0, 1)
            else AxisOrder(view=shape, outs=(*batch, out), ins=(into,))
        )
    return orders


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """Where an operator takes its weight, and its output and input dimension there."""

    argument: int
    names: tuple[str, ...]
    out: int
    into: int


_LINEAR = WeightPlace(1, ("weight",), 0, 1)

_PRODUCT = WeightPlace(1, ("other", "mat2"), -1, -2)

_SUM = WeightPlace(2, ("mat2", "batch2"), -1, -2)

OPERATORS: dict[Callable[..., Any], WeightPlace] = {
    **dict.fromkeys((F.linear, F.conv1d, F.conv2d, F.conv3d), _LINEAR),
    **dict.fromkeys((torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm), _PRODUCT),
    **dict.fromkeys((Tensor.bmm, Tensor.__matmul__), _PRODUCT),
    **dict.fromkeys((torch.addmm, torch.baddbmm, Tensor.addmm, Tensor.baddbmm), _SUM),
}

# Grouped products of experts, where this torch has them.
for _name in ("_grouped_mm", "grouped_mm"):
    for _home in (torch, F):
        if hasattr(_home, _name):
            OPERATORS[getattr(_home, _name)] = _PRODUCT


class _Uses(TorchFunctionMode):
    """Notes which dimensions of the watched weights operators read as outputs and inputs."""

    def __init__(self, watched: Params) -> None:
        super().__init__()
        self._by_storage = {p.untyped_storage().data_ptr(): (n, p) for n, p in watched.items()}
        self.found: dict[str, set[tuple[int, int] | None]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = OPERATORS.get(func)
        if place is not None:
            self._note(place, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, place: "WeightPlace", args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # An operator sees a view of the parameter (a transpose, one expert): the storage names it.
        weight = args[place.argument] if len(args) > place.argument else None
        if weight is None:
            weight = next((kwargs[k] for k in place.names if k in kwargs), None)
        if not isinstance(weight, Tensor) or weight.ndim < 2:
            return
        watched = self._by_storage.get(weight.untyped_storage().data_ptr())
        if watched is not None:
            name, parameter = watched
            dims = [_dimension(parameter, weight, d) for d in (place.out, place.into)]
            known = None if None in dims else (dims[0], dims[1])
            self.found.setdefault(name, set()).add(known)  # type: ignore[arg-type]


def _dimension(parameter: Tensor, view: Tensor, dim: int) -> int | None:
    """The dimension of the parameter that this dimension of a view of it runs along."""
    # A view keeps the strides of its parameter, whatever its shape has become.
    stride, size = view.stride(dim), view.shape[dim]
    fits = [d for d in range(parameter.ndim) if parameter.stride(d) == stride]
    fits = [d for d in fits if parameter.shape[d] >= size and (parameter.shape[d] > 1 or size == 1)]
    # Equal strides (dimensions of size 1) leave it open, and a guess would prune columns for rows.
    return fits[0] if len(fits) == 1 else None
