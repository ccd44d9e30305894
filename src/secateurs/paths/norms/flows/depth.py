"""The longest path, counted in edges."""

from collections.abc import Sequence
from typing import Any

from secateurs.graph import Activation, Add, Affine, Input, Pool, Structural


class Depth:
    """Affine maps and pools are layers of edges; activations and reorderings are not."""

    def input(self, node: Input, value: Any) -> int:
        """A path starts here."""
        return 0

    def affine(self, node: Affine, x: int | None, params: Any) -> int:
        """One edge more; a constant is a neuron without antecedents."""
        # A node that only adds a bias is part of the neuron before it.
        return 0 if x is None else x + (node.weight is not None)

    def activation(self, node: Activation, x: int) -> int:
        """What a neuron does with its sum."""
        return x

    def pool(self, node: Pool, x: int) -> int:
        """One edge more."""
        return x + 1

    def structural(self, node: Structural, xs: Sequence[int]) -> int:
        """The longest of the branches."""
        return max(xs)

    def add(self, node: Add, xs: Sequence[int]) -> int:
        """The longest of the branches."""
        return max(xs)
