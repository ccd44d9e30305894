"""How a convolution runs, as a value."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Layout: TypeAlias = Literal[
    "direct", "flat", "rows", "columns", "winograd", "near", "matrix"
]
LINE = 64  # bytes of a cache line, to which planes are padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a convolution runs: copies, vectors at a time, output channels at a time.

    The channels of a block share one list of places.

    Near sums take `tile` rows of one vector at a time.

    For one output position `tile` is 0 (sparse) or −1 (dense) and the sums are dot products.
    """

    layout: Layout
    tile: int
    block: int
    parts: int = (
        1  # turns over the input channels; of Winograd's tiles the rows at a time
    )

    def __str__(self) -> str:
        if self.tile < 1:
            return "dense dot" if self.tile else "sparse dot"
        turns = f" in {self.parts}" if self.parts > 1 else ""
        return f"{self.layout} {self.tile}×{self.block}{turns}"


def stride(numbers: int, size: int) -> int:
    """Numbers from one plane to the next: whole lines.

    Their count is odd, so that the same rows of all planes do not share a few cache sets.

    >>> stride(1, 4), stride(1024, 4), stride(49, 4)
    (1, 1040, 80)
    """
    if numbers == 1:
        return 1
    lines = -(-numbers * size // LINE)
    return (lines | 1) * LINE // size
