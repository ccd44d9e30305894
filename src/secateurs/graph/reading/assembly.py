"""From a builder's nodes to a graph: what one output depends on, and which output that is."""

from collections.abc import Iterable, Sequence

from secateurs.errors import CaptureError
from secateurs.graph.builder import Builder
from secateurs.graph.ir import Graph
from secateurs.graph.lower import Value
from secateurs.graph.primitives import Cast, Node
from secateurs.graph.reading.given import Given
from secateurs.graph.sources import Source


def chosen_output(
    leaves: Sequence[str], wanted: str | int | None, model: str
) -> tuple[int, str]:
    """The position and name of the output to read, among the dotted paths of all outputs."""
    if not leaves:
        raise CaptureError(f"{model} returns no tensor.")
    if wanted is not None:
        name = str(wanted)
        if name not in leaves:
            raise CaptureError(
                f"there is no output {name!r}; the model returns {', '.join(leaves)}."
            )
        return leaves.index(name), name
    # What language models and torchvision's segmentation models call their main output.
    for favourite in ("logits", "out"):
        if favourite in leaves:
            return leaves.index(favourite), favourite
    return 0, leaves[0]


def assembled(
    build: Builder,
    given: Given,
    casts: Iterable[Cast],
    *,
    output: Value,
    output_name: str,
    outputs: Sequence[str],
) -> Graph:
    """Keep what the output depends on; all inputs stay, so that callers feed what the model
    takes.
    """
    needed = _needed(build.nodes, output.name)
    nodes: tuple[Node, ...] = (
        *given.inputs,
        *(n for n in build.nodes if n.name in needed),
    )
    read = {n for node in nodes for s in _sources(node) for n in s.names}
    return Graph(
        nodes=nodes,
        inputs=tuple(given.inputs),
        output=output.name,
        output_name=output_name,
        parameters={n: s for n, s in given.parameters.items() if n in read},
        buffers={n: s for n, s in given.buffers.items() if n in read},
        constants={n: t for n, t in build.constants.items() if n in read},
        outputs=tuple(outputs),
        casts=tuple(casts),
        decided=tuple(build.decided),
    )


def _needed(nodes: Sequence[Node], output: str) -> set[str]:
    """The names of all that an output depends on."""
    by_name = {node.name: node for node in nodes}
    needed: set[str] = set()
    stack = [output]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            # Inputs are no nodes of the builder.
            stack.extend(by_name[name].inputs if name in by_name else ())
    return needed


def _sources(node: Node) -> list[Source]:
    return [
        s
        for s in (getattr(node, "weight", None), getattr(node, "bias", None))
        if s is not None
    ]
