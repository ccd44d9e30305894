"""Where an operator stands in the user's model, and where the model's code changes precision."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx

from secateurs.graph.lower import Value
from secateurs.graph.operators import casts, dtype_of
from secateurs.graph.primitives import Cast, Place


def place_of(node: fx.Node) -> Place:
    """The innermost module that runs this operator."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    # The class itself or its dotted name, by the version of torch.
    kind = kind if isinstance(kind, str) else kind.__name__
    module = path.removeprefix("model").removeprefix(".")
    return Place(
        module=module, kind=kind.rsplit(".", 1)[-1], operation=str(node.target)
    )


def cast_at(
    node: fx.Node, read: Iterable[fx.Node], env: Mapping[str, Any]
) -> Cast | None:
    """The conversion of an activation to another precision, where this operator makes one.

    `read`: what the operator reads after renaming. Inside a no-grad region its own arguments name
    the region's inputs, which nobody has computed.
    """
    before = [dtype_of(n) for n in read if isinstance(env[n.name], Value)]
    after, found = dtype_of(node), None
    for dtype in before:
        # Also a conversion that changes nothing for this model: in another precision it
        # would.
        if (
            dtype is not None
            and after is not None
            and (dtype != after or casts(node))
        ):
            found = Cast(place=place_of(node), source=dtype, target=after)
    return found
