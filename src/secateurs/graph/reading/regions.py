"""Bodies of no-grad regions, spliced into the program that holds them."""

from typing import Any

from torch import fx


def inlined(
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


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and "wrap_with_set_grad_enabled" in str(
        node.target
    )
