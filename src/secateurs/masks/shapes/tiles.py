"""Tiles of a matrix that are kept or cut whole."""

import math
from dataclasses import dataclass

from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.shapes.grouped import Grouped


@dataclass(frozen=True, slots=True)
class Block(Grouped):
    """Tiles of `height` outputs × `width` inputs of the weight read as a matrix `(outputs,
    everything else)`.
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1:
            raise ArgumentError(
                f"a block of {self.height} x {self.width} has no entries."
            )

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        if len(shape) < 2:
            return "is not a matrix"
        width = math.prod(shape[1:])
        fits = shape[0] % self.height == 0 and width % self.width == 0
        return (
            ""
            if fits
            else (
                f"is a {shape[0]} x {width} matrix, which {self.height} x {self.width} tiles do not"
                " fill"
            )
        )

    def rows(self, tensor: Tensor) -> Tensor:
        """The entries as `(tiles, entries per tile)`, tiles in row-major order."""
        height, width = self.height, self.width
        matrix = tensor.reshape(tensor.shape[0], -1)
        tiles = matrix.reshape(
            matrix.shape[0] // height, height, matrix.shape[1] // width, width
        )
        return tiles.transpose(1, 2).reshape(-1, height * width)

    def spread(self, groups: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One value per tile, copied to every entry of the tile."""
        tiles = groups.reshape(shape[0] // self.height, -1)
        wide = tiles.repeat_interleave(self.height, 0).repeat_interleave(
            self.width, 1
        )
        return wide.reshape(shape)

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"
