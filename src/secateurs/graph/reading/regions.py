"""Bodies of regions that change no value (gradients on or off, autocast off), spliced into the
program that holds them.
"""

from typing import Any

from torch import fx


def inlined(
    module: fx.GraphModule, known: dict[str, Any]
) -> tuple[list[fx.Node], dict[str, tuple[Any, Any]], list[Any]]:
    """The operators in order, with the bodies of regions spliced in."""
    order: list[fx.Node] = []
    packed: dict[str, tuple[Any, Any]] = {}
    outputs: list[Any] = []
    for node in module.graph.nodes:
        args = fx.node.map_aggregate(
            (node.args, dict(node.kwargs)), lambda a: _lookup(known, a)
        )
        if node.op == "output":
            outputs = list(args[0][0])
        # A `with` inside a forward becomes a nested graph; its body is read in place.
        elif (at := body_at(node)) is not None:
            body = getattr(module, node.args[at].target)
            slots = [n for n in body.graph.nodes if n.op == "placeholder"]
            given = args[0][at + 1 :]
            inner = dict(zip((n.name for n in slots), given, strict=True))
            _prefix(body, node.name)
            inner = {f"{node.name}/{k}": v for k, v in inner.items()}
            more, more_packed, results = inlined(body, inner)
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


def body_at(node: fx.Node) -> int | None:
    """Which argument of a region is its body; None for an operator, or a region that computes
    otherwise than it is written.
    """
    if node.op != "call_function":
        return None
    kind = str(node.target)
    if "wrap_with_set_grad_enabled" in kind:
        return 1
    # (device, dtype, enabled, cache, body, …): autocast that is on rounds to another precision.
    off = "wrap_with_autocast" in kind and node.args[2] is False
    return 4 if off else None
