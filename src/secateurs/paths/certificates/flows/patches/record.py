"""What a relaxation leaves behind for backward passes on windows, and the slopes they carry."""

from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from secateurs.graph import Node
from secateurs.paths.certificates.flows.patches.cones import Map, map_of
from secateurs.paths.certificates.flows.relu.plane import Plane

Planes: TypeAlias = tuple[Plane, Plane]
"""Above and below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bent:
    """The planes around an activation: of f, of g, and of their difference."""

    z: Planes
    g: Planes
    d: Planes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Weights and biases of f and g at an affine node."""

    weights: tuple[Tensor | None, Tensor | None]
    biases: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The input: middle and radius."""

    middle: Tensor
    radius: Tensor


Known: TypeAlias = Bent | Mapped | Box | None


@dataclass(slots=True)
class Record:
    """What a relaxation has passed through so far: the nodes in order, and what it knew at each."""

    nodes: dict[str, Node] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)

    def add(self, node: Node, known: Known = None) -> None:
        """Remember a node."""
        self.nodes[node.name], self.known[node.name] = node, known

    def map(self, name: str) -> Map:
        """The shape of a node as a map."""
        shape = map_of(self.nodes[name].shape)
        if shape is None:
            raise TypeError(f"{name} is no map.")
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """Coefficients of z, of δ and of z' in a window, (channels, height, width, directions, rows).

    The directions are ± the neuron. z has four: ± z itself, then what ± δ brings to z.
    """

    z: Tensor
    d: Tensor
    g: Tensor
