"""The latest graphs, by what their models did when they were traced (`replay_key`)."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from secateurs.graph.ir import Graph

_LATEST = 32
"""A graph holds names, literals and the constants of the model's code, never its weights."""


class Remembered:
    """Graphs by their replay keys, each with the key of its program."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[str, tuple[Graph, str]] = OrderedDict()

    def graph(
        self, key: str | None, tensors: Mapping[str, Tensor]
    ) -> tuple[Graph, str] | None:
        """The graph filed under a replay key, and the key of its program.

        None where these tensors choose other indices than those that the graph was read with.
        """
        if key is None or key not in self._graphs:
            return None
        graph, program = self._graphs[key]
        return (own(graph), program) if graph.decides_the_same(tensors) else None

    def remember(self, key: str | None, graph: Graph, program: str) -> None:
        """File a graph; the oldest goes where there are too many. None is no key."""
        if key is None:
            return
        self._graphs[key] = (own(graph), program)
        while len(self._graphs) > _LATEST:
            self._graphs.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._graphs.clear()


def own(graph: Graph) -> Graph:
    """A graph with mappings and tensors of its own: what a caller does to his stays his."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    return replace(
        graph,
        parameters=dict(graph.parameters),
        buffers=dict(graph.buffers),
        constants={name: copied(tensor) for name, tensor in graph.constants.items()},
    )


REMEMBERED = Remembered()
"""Of this process."""
