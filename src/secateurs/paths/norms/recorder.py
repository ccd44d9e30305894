"""An evaluation that remembers the value of every node."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Evaluate,
    Input,
    Pool,
    Structural,
)


class Recorder(Evaluate):
    """Ordinary evaluation that remembers every value."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def input(self, node: Input, value: Tensor) -> Tensor:
        return self._kept(node.name, value)

    def affine(self, node: Affine, x: Tensor | None, params: Any) -> Tensor:
        return self._kept(node.name, super().affine(node, x, params))

    def activation(self, node: Activation, x: Tensor) -> Tensor:
        return self._kept(node.name, super().activation(node, x))

    def pool(self, node: Pool, x: Tensor) -> Tensor:
        return self._kept(node.name, super().pool(node, x))

    def structural(self, node: Structural, xs: Sequence[Tensor]) -> Tensor:
        return self._kept(node.name, super().structural(node, xs))

    def add(self, node: Add, xs: Sequence[Tensor]) -> Tensor:
        return self._kept(node.name, super().add(node, xs))

    def _kept(self, name: str, value: Tensor) -> Tensor:
        self.values[name] = value
        return value
