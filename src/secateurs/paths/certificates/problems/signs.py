"""Whether two parameter vectors have one sign pattern, and whether one is dominated."""

from dataclasses import dataclass

from secateurs.graph import Graph, affines
from secateurs.paths.certificates.flows.pair import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Whether the two parameter vectors have one sign pattern, and whether g's is dominated by
    f's.
    """

    same: bool
    dominated: bool
    differing: int
    first: str


def compare_signs(graph: Graph, pair: Pair) -> Signs:
    """Look at every effective weight and bias of the graph (batch norm folded to a slope and an
    offset).
    """
    differing, dominated, first = 0, True, ""
    for node in affines(graph):
        both = [pair.weights(node), pair.biases(node)]
        for one, two in (
            (a, b)
            for a, b in (x for x in both if x is not None)
            if a is not None and b is not None
        ):
            # A tensor that both networks share needs no look.
            # Signs first: the product of two tiny weights underflows to −0.
            opposite = (
                int((one.sign() * two.sign() < 0).sum()) if one is not two else 0
            )
            first = first or (str(node.place) if opposite else "")
            differing += opposite
            dominated &= bool((two.abs() <= one.abs()).all())
    return Signs(
        same=differing == 0,
        dominated=dominated and differing == 0,
        differing=differing,
        first=first,
    )
