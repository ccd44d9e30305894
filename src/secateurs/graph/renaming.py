"""In-place operators as new values: after `y = x.add_(z)`, whoever reads `x` later reads `y`.

That is exact as long as no other name for the same memory is read afterwards. Where one is, `None`
is returned and the tracer's own functionalisation (slower) has to be used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from secateurs.errors import UnsupportedOperation

aten = torch.ops.aten
# Operators that return their first argument itself in evaluation mode, or where the dtype is the
# same already, though their schemas do not say so.
_DROPOUTS = {
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
}
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


@dataclass(slots=True)
class Renamed:
    """The operators of a graph, inlined, with arguments that respect in-place changes."""

    order: list[fx.Node]
    packed: dict[str, tuple[Any, Any]]
    outputs: list[Any]

    def arguments(self, node: fx.Node) -> tuple[Any, Any]:
        """The arguments after renaming."""
        return self.packed[node.name]

    def needed(self, result: Any) -> Iterator[fx.Node]:
        """The operators the result depends on, in order."""
        wanted: set[str] = set()
        stack = [result.name]
        while stack:
            name = stack.pop()
            if name not in wanted:
                wanted.add(name)
                stack.extend(node.name for node in _nodes(self.packed.get(name, ())))
        return (node for node in self.order if node.name in wanted)


def resolved(program: ExportedProgram, model: str) -> tuple[ExportedProgram, Renamed]:
    """The program with its in-place operators resolved.

    Renaming is tried first, because the tracer's own functionalisation is slower and trusts the
    operators' schemas, some of which hide an alias.
    """
    skip_identities(program.graph_module)
    renamed = rename_in_place(program.graph_module)
    if renamed is not None:
        return program, renamed
    hidden = hidden_aliases(program.graph_module)
    if hidden:
        raise UnsupportedOperation(
            f"{model} changes values in place, and {', '.join(hidden)} may"
            " return its input itself, so that who reads which value is unknown. Write the"
            " change out of place: y = f(x) instead of f_(x)."
        )
    functional = program.run_decompositions({})
    renamed = rename_in_place(functional.graph_module)
    if renamed is None:
        raise UnsupportedOperation(f"{model} changes values in place through views.")
    return functional, renamed


def rename_in_place(module: fx.GraphModule) -> Renamed | None:
    """Resolve in-place operators by renaming; None where views of a changed value are read
    afterwards.
    """
    order, packed, outputs = _inline(module, {})
    current: dict[str, fx.Node] = {}
    memory: dict[str, str] = {}
    stale: set[str] = set()
    for node in order:
        args = fx.node.map_aggregate(
            packed[node.name], lambda a: current.get(getattr(a, "name", ""), a)
        )
        # Another name of changed memory is read: renaming would hand it the old value.
        if any(read.name in stale for read in _nodes(args)):
            return None
        packed[node.name] = args
        target = _changed(node, args)
        if target is not None:
            # Every other name of the same memory shows the change as well.
            stale |= {
                name for name, root in memory.items() if root == _root(memory, target)
            } - {target.name}
            stale |= {_root(memory, target)} - {target.name}
            _redirect(current, target, node)
        source = target or _aliased(node, args)
        memory[node.name] = _root(memory, source) if source is not None else node.name
        # The result of the change itself is up to date.
        stale.discard(node.name)
    final = [current.get(getattr(o, "name", ""), o) for o in outputs]
    return (
        None
        if any(getattr(o, "name", "") in stale for o in final)
        else Renamed(order, packed, final)
    )


def skip_identities(module: fx.GraphModule) -> None:
    """Let the readers of an eval-mode dropout read its argument: it is the same memory."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            for node in list(inner.graph.nodes):
                if _is_identity(node):
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


def _inline(
    module: fx.GraphModule, known: dict[str, Any]
) -> tuple[list[fx.Node], dict[str, tuple[Any, Any]], list[Any]]:
    """The operators in order, with the bodies of no-grad regions spliced in."""
    order: list[fx.Node] = []
    packed: dict[str, tuple[Any, Any]] = {}
    outputs: list[Any] = []
    for node in module.graph.nodes:
        args = fx.node.map_aggregate(
            (node.args, dict(node.kwargs)), lambda a: _lookup(known, a)
        )
        if node.op == "output":
            outputs = list(args[0][0])
        # torch.no_grad() inside a forward becomes a nested graph; its body is read in
        # place.
        elif _is_region(node):
            body = getattr(module, node.args[1].target)
            slots = [n for n in body.graph.nodes if n.op == "placeholder"]
            inner = dict(zip((n.name for n in slots), args[0][2:], strict=True))
            _prefix(body, node.name)
            inner = {f"{node.name}/{k}": v for k, v in inner.items()}
            more, more_packed, results = _inline(body, inner)
            order += more
            packed |= more_packed
            known[node.name] = tuple(results)
        elif (
            node.target.__name__ == "getitem" and isinstance(args[0][0], tuple)
            if callable(node.target)
            else False
        ):
            known[node.name] = args[0][0][args[0][1]]
        # An argument of the region: the value outside stands for it.
        elif node.op == "placeholder" and node.name in known:
            continue
        else:
            order.append(node)
            packed[node.name] = args
    return order, packed, outputs


def _prefix(body: fx.GraphModule, name: str) -> None:
    """Names inside a region repeat those outside; make them unique."""
    for node in body.graph.nodes:
        if not node.name.startswith(f"{name}/"):
            node.name = f"{name}/{node.name}"


def _lookup(known: dict[str, Any], leaf: Any) -> Any:
    return known.get(leaf.name, leaf) if isinstance(leaf, fx.Node) else leaf


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and "wrap_with_set_grad_enabled" in str(
        node.target
    )


def _changed(node: fx.Node, packed: Any) -> fx.Node | None:
    """The value an operator changes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return None
    target = packed[0][0]
    return target if isinstance(target, fx.Node) else None


def _aliased(node: fx.Node, packed: Any) -> fx.Node | None:
    """The value an operator may return a view of."""
    if node.op != "call_function":
        return None
    # The first tensor is the one that views and in-place operators speak of.
    first = next(iter(_nodes(packed)), None)
    schema = getattr(node.target, "_schema", None)
    # Getitem of a split, an einsum.
    if schema is None or node.target in _SILENT_ALIASES:
        return first
    may_alias = any(r.alias_info is not None for r in schema.returns)
    return first if may_alias else None


def _redirect(current: dict[str, fx.Node], old: fx.Node, new: fx.Node) -> None:
    # Chains: what was renamed before to the old value now means the new one.
    for name, node in list(current.items()):
        if node.name == old.name:
            current[name] = new
    current[old.name] = new


def _root(memory: dict[str, str], node: fx.Node) -> str:
    return memory.get(node.name, node.name)


def _nodes(packed: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_aggregate(
        packed, lambda a: found.append(a) if isinstance(a, fx.Node) else None
    )
    return found
