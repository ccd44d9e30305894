"""Which dimension of a weight is output and which is input, from whoever uses it.

Patterns and rows are defined on (outputs, inputs, rest). Linear layers and convolutions keep their
weights so; transposed convolutions, the `Conv1D` of GPT-2 and fused experts do not. Types that are
known say it; for the others the model is run on an example, and the operators that take the weight
say it. What stays unknown is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from secateurs.errors import PatternError
from secateurs.masks.pattern import pattern_of
from secateurs.masks.shapes.nm import NM
from secateurs.masks.shapes.slices import Channel, Filter, Kernel
from secateurs.masks.shapes.tiles import Block
from secateurs.parameters import Params, owned
from secateurs.prune.axes.kinds import by_type
from secateurs.prune.axes.order import Order, Orders
from secateurs.prune.axes.uses import by_use

ORDERED = (NM, Block, Kernel, Filter, Channel)
"""Patterns of this library for which the order of dimensions matters."""


def orders_of(
    model: nn.Module,
    parameters: Params,
    *,
    pattern: object,
    scope: object,
    example: Any,
) -> Orders:
    """The orders that a recipe needs; none where order does not matter, an error where unknown."""
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    # Most recipes end here: where order does not matter no unknown layer should be
    # refused.
    if not isinstance(pattern_of(pattern), ORDERED) and scope != "row":  # type: ignore[arg-type]
        return Orders(orders={}, shapes=shapes)
    # The type of the module tells most; only what is left is watched while the example
    # runs.
    owners = {name: owner for name, _, owner in owned(model)}
    orders: dict[str, Order] = {}
    unknown: list[str] = []
    for name, parameter in parameters.items():
        order = by_type(owners[name], tuple(parameter.shape))
        if isinstance(order, Order):
            orders[name] = order
        elif order is None:
            unknown.append(name)
    if unknown and example is not None:
        seen = by_use(model, {name: parameters[name] for name in unknown}, example)
        unknown = [name for name in unknown if name not in seen]
        orders |= {name: order for name, order in seen.items() if order is not None}
    if unknown:
        raise PatternError(_refusal(unknown, owners, shapes, example))
    return Orders(orders=orders, shapes=shapes)


def refuse_turned(
    model: nn.Module, parameters: Params, recipe: Any, example: Any
) -> None:
    """Pruning during training takes weights as they lie: refuse those that lie another way."""
    turned = orders_of(
        model, parameters, pattern=recipe.pattern, scope=recipe.scope, example=example
    ).orders
    if turned:
        raise PatternError(
            f"{', '.join(map(repr, list(turned)[:8]))} are not kept as (outputs, inputs, ...), and"
            " pruning during training takes patterns and rows along that order: use prune_ once"
            " and hold, pattern='unstructured', or leave them out with where=."
        )


def _refusal(
    unknown: Sequence[str],
    owners: Mapping[str, nn.Module],
    shapes: Mapping[str, tuple[int, ...]],
    example: Any,
) -> str:
    listed = ", ".join(
        f"{name!r} {shapes[name]} of {type(owners[name]).__name__}"
        for name in unknown[:8]
    )
    way = (
        "pass example=, one input of the model, and its operators will tell"
        if example is None
        else "no linear or convolution operator took them while the example ran, or two disagree"
    )
    return (
        f"which dimension is the output of {listed} is not known: {way}. Or leave them out with"
        " where=, or take pattern='unstructured' and another scope."
    )
