"""Parameters whose costs are upper bounds, or known to first order only."""

from secateurs.graph import Graph, affines


def repeated(graph: Graph) -> tuple[str, ...]:
    """Parameters used by two nodes of which one can be reached from the other."""
    users: dict[str, list[str]] = {}
    for node in affines(graph):
        # A set: a node that reads a parameter in its weight and in its bias counts
        # once.
        for name in {
            n for s in (node.weight, node.bias) if s is not None for n in s.names
        } & set(graph.parameters):
            users.setdefault(name, []).append(node.name)
    several = {name: nodes for name, nodes in users.items() if len(nodes) > 1}
    return tuple(
        name
        for name in graph.parameters
        if name in several and _in_sequence(graph, several[name])
    )


def _in_sequence(graph: Graph, nodes: list[str]) -> bool:
    wanted = set(nodes)
    return any((_descendants(graph, name) & wanted) for name in nodes)


def _descendants(graph: Graph, name: str) -> set[str]:
    found: set[str] = set()
    stack = [name]
    while stack:
        for reader in graph.consumers[stack.pop()]:
            if reader not in found:
                found.add(reader)
                stack.append(reader)
    return found


def first_order_names(graph: Graph) -> tuple[str, ...]:
    """Parameters that enter through a function that is not a product."""
    names = [
        name
        for node in affines(graph)
        for source in (node.weight, node.bias)
        if source is not None
        for name, role in source.roles.items()
        if role == "other" and name in graph.parameters
    ]
    return tuple(dict.fromkeys(names))
