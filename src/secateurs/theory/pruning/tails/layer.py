"""A layer of random entries, and the laws its entries may have."""

from dataclasses import dataclass
from typing import Literal

Law = Literal["uniform", "bounded", "normal", "subgaussian"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomLayer:
    """rows × columns positions of `taps` independent mean-zero entries on ±bound; `frequencies`
    matrices P^(u,v).
    """

    rows: int
    columns: int
    bound: float
    taps: int = 1
    frequencies: int = 1

    @property
    def positions(self) -> int:
        return self.rows * self.columns
