"""Which operators change a value in place, and which may return a view of their argument."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
# Operators that return their first argument itself in evaluation mode, or where the dtype is the
# same already, though their schemas do not say so.
_DROPOUTS = {
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
}
# Another name for the whole of their argument: same memory, shape and values.
_NAMES = {aten.detach.default, aten.alias.default}
# Operators that may return a view of an argument without saying so.
_SILENT_ALIASES = {
    *_DROPOUTS,
    aten.type_as.default,
    aten.einsum.default,
    aten._unsafe_view.default,
    aten.broadcast_tensors.default,
    aten.atleast_1d.default,
    aten.atleast_2d.default,
    aten.atleast_3d.default,
    aten.meshgrid.default,
    aten.meshgrid.indexing,
    aten.cartesian_prod.default,
    aten.unsafe_chunk.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten._reshape_alias.default,
    aten.pin_memory.default,
    aten.to_dense.default,
    aten.rrelu.default,
}


def skip_identities(module: fx.GraphModule) -> None:
    """Let the readers of an eval-mode dropout read its argument: it is the same memory."""
    _skip(module, _is_identity)


def skip_names(module: fx.GraphModule) -> None:
    """Let the readers of a detached value read the value itself: it is the same memory."""
    _skip(module, lambda node: node.target in _NAMES)


def _skip(module: fx.GraphModule, skipped: Callable[[fx.Node], bool]) -> None:
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            for node in list(inner.graph.nodes):
                if skipped(node):
                    node.replace_all_uses_with(node.args[0])
                    inner.graph.erase_node(node)


def _is_identity(node: fx.Node) -> bool:
    """A dropout that drops nothing: identity(x), and a change of it in place is a change of x."""
    # Only an explicit False: anything else may drop entries.
    return node.target in _DROPOUTS and node.args[2] is False


def hidden_aliases(module: fx.GraphModule) -> list[str]:
    """Operators left in the graph that may return their argument itself without saying so."""
    inner = (m for m in module.modules() if isinstance(m, fx.GraphModule))
    nodes = (node for graph_module in inner for node in graph_module.graph.nodes)
    return sorted(
        {str(node.target) for node in nodes if node.target in _SILENT_ALIASES}
    )


def changed_value(node: fx.Node, packed: Any) -> fx.Node | None:
    """The value an operator changes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return None
    target = packed[0][0]
    return target if isinstance(target, fx.Node) else None


def aliased_value(node: fx.Node, packed: Any) -> fx.Node | None:
    """The value an operator may return a view of."""
    if node.op != "call_function":
        return None
    # The first tensor is the one that views and in-place operators speak of.
    first = next(iter(nodes_in(packed)), None)
    schema = getattr(node.target, "_schema", None)
    # Getitem of a split, an einsum.
    if schema is None or node.target in _SILENT_ALIASES:
        return first
    may_alias = any(r.alias_info is not None for r in schema.returns)
    return first if may_alias else None


def nodes_in(packed: Any) -> list[fx.Node]:
    """The operators among packed arguments."""
    found: list[fx.Node] = []
    fx.node.map_aggregate(
        packed, lambda a: found.append(a) if isinstance(a, fx.Node) else None
    )
    return found
