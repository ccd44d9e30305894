"""The order of a weight's dimensions, from the operators that take it while an example runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from secateurs.parameters import Params
from secateurs.prune.axes.operators import OPERATORS, Place
from secateurs.prune.axes.order import Order
from secateurs.scores.calling import call


class _Uses(TorchFunctionMode):
    """Notes which dimensions of the watched weights operators read as outputs and inputs."""

    def __init__(self, watched: Params) -> None:
        super().__init__()
        self._by_storage = {
            p.untyped_storage().data_ptr(): (n, p) for n, p in watched.items()
        }
        self.found: dict[str, set[tuple[int, int] | None]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        place = OPERATORS.get(func)
        if place is not None:
            self._note(place, args, kwargs)
        return func(*args, **kwargs)

    def _note(
        self, place: "Place", args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        # An operator sees a view of the parameter (a transpose, one expert): the
        # storage names it.
        weight = args[place.argument] if len(args) > place.argument else None
        if weight is None:
            weight = next((kwargs[k] for k in place.names if k in kwargs), None)
        if not isinstance(weight, Tensor) or weight.ndim < 2:
            return
        name, parameter = self._by_storage.get(
            weight.untyped_storage().data_ptr(), ("", torch.empty(0))
        )
        if name:
            dims = [_dimension(parameter, weight, d) for d in (place.out, place.into)]
            known = None if None in dims else (dims[0], dims[1])
            self.found.setdefault(name, set()).add(known)  # type: ignore[arg-type]


def _dimension(parameter: Tensor, view: Tensor, dim: int) -> int | None:
    """The dimension of the parameter that this dimension of a view of it runs along."""
    # A view keeps the strides of its parameter, whatever its shape has become.
    stride, size = view.stride(dim), view.shape[dim]
    fits = [d for d in range(parameter.ndim) if parameter.stride(d) == stride]
    fits = [
        d
        for d in fits
        if parameter.shape[d] >= size and (parameter.shape[d] > 1 or size == 1)
    ]
    # Equal strides (dimensions of size 1) leave it open, and a guess would prune
    # columns for rows.
    return fits[0] if len(fits) == 1 else None


def by_use(
    model: nn.Module, weights: Params, example: Any
) -> dict[str, Order | None]:
    """The orders that operators show; None where it is (outputs, inputs, *rest) already."""
    was = {module: module.training for module in model.modules()}
    # Dropout and batch statistics must neither draw nor move for a mere look.
    model.eval()
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            _Uses(weights) as uses,
        ):
            call(model, example)
    finally:
        for module, mode in was.items():
            module.training = mode
    orders: dict[str, Order | None] = {}
    for name, found in uses.found.items():
        (one, *others) = found
        # Two uses that disagree, or a view that cannot be traced, leave the order
        # unknown.
        if others or one is None:
            continue
        shape = tuple(weights[name].shape)
        out, into = one
        # Dimensions that are neither (experts) number the outputs: each expert has its
        # own.
        batch = tuple(d for d in range(len(shape)) if d not in one)
        orders[name] = (
            None
            if (out, into) == (0, 1)
            else Order(view=shape, outs=(*batch, out), ins=(into,))
        )
    return orders
