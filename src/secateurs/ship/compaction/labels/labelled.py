"""Labels of all values and tensors of a graph, and the layers between them."""

from dataclasses import dataclass, field

from torch import Tensor

from secateurs.graph import (
    Affine,
    Graph,
    Node,
    Source,
)
from secateurs.ship.compaction.labels.groups import Groups
from secateurs.ship.compaction.outputs import own_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A weight between two lots of channels, with the labels of both."""

    node: Affine
    weight_in: int
    weight_out: int
    groups: int
    into: Tensor
    out: Tensor

    @property
    def x(self) -> str:
        """The value it reads."""
        return self.node.inputs[0]

    @property
    def weight(self) -> Source:
        """Its weight."""
        if self.node.weight is None:
            raise ValueError(f"{self.node.name} has no weight.")
        return self.node.weight


@dataclass(slots=True)
class Labelled:
    """Labels of all values, of the dimensions of all tensors, and the layers between them."""

    graph: Graph
    groups: Groups = field(default_factory=Groups)
    values: dict[str, Tensor] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    dims: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    loose: set[tuple[str, int]] = field(default_factory=set)
    frozen: dict[str, str] = field(default_factory=dict)

    def roots(self, name: str) -> Tensor:
        """The labels of a value, each as the first of its group."""
        return self.groups.roots(self.values[name])


def told(node: Node) -> str:
    """A node as an account names it: its operator and the module that runs it."""
    return f"{node.place.operation} in {own_name(node.place.module) or 'the model itself'}"
