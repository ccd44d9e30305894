"""An operator that no lowering rule covers, read by its opaque rule or as a mixture of
everything."""

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from secateurs.graph.builder import Builder
from secateurs.graph.lower import OPAQUES, Gap, Many, Unknown, Value
from secateurs.graph.operators import functional, runnable
from secateurs.graph.sources import Source


def read_opaquely(build: Builder, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """The operator as a node; what it mixes is what its rule says, or everything."""
    operator: Any = functional(node.target)
    expected = node.meta.get("val")
    if operator in OPAQUES:
        try:
            value = OPAQUES[operator](build, *args, **kwargs)
        # Arguments the rule was not written for: then everything counts as mixed.
        except (Gap, TypeError, AttributeError, IndexError, ValueError, RuntimeError):
            value = None
        if value is not None and _fits(value, expected):
            return value
    return mixture(build, runnable(operator, node), args, kwargs, expected)


def mixture(
    build: Builder, operator: Any, args: Any, kwargs: Any, expected: Any
) -> Any:
    """A node of which nothing is known but its shape."""
    leaves, spec = pytree.tree_flatten((list(args), dict(kwargs)))
    slots = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Value | Source)]

    def function(*xs: Tensor) -> Any:
        filled = list(leaves)
        for slot, x in zip(slots, xs, strict=True):
            filled[slot] = x
        call_args, call_kwargs = pytree.tree_unflatten(filled, spec)
        return operator(*call_args, **call_kwargs)

    given = [leaves[slot] for slot in slots]
    if isinstance(expected, Tensor):
        return build.opaque(function, *given, shape=expected.shape)
    if isinstance(expected, tuple | list):
        place = build.place

        def pick(i: int) -> Value:
            # Named by the operator, not by the indexing that picks its result.
            build.place = place
            return build.opaque(
                lambda *xs: function(*xs)[i], *given, shape=expected[i].shape
            )

        return Many(pick)
    # A number that the model's code computes from its input.
    return Unknown()


def _fits(value: Value, expected: Any) -> bool:
    """A rule that is wrong is found where it is wrong."""
    return isinstance(expected, Tensor) and value.shape == tuple(expected.shape)


def same_dims(build: Builder, *xs: Value | Source) -> list[list[int | None]]:
    """The dimensions that elementwise functions carry: all, lined up from the right, except where
    an input is broadcast."""
    shape = torch.broadcast_shapes(*[x.shape for x in xs])  # type: ignore[no-untyped-call]
    found = []
    for x in xs:
        offset = len(shape) - len(x.shape)
        found.append(
            [
                offset + i if size == shape[offset + i] else None
                for i, size in enumerate(x.shape)
            ]
        )
    return found
