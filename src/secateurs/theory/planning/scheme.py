"""A way to prune as five functions of a network, and what they share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from secateurs.theory.guarantee import Guarantee, Needed
from secateurs.theory.planning.chains.chain import Chain
from secateurs.theory.planning.search import Part
from secateurs.theory.powers import floor_power
from secateurs.theory.pruning.tails.layer import Law

SchemeName = Literal[
    "magnitude",
    "global",
    "random",
    "random-without",
    "filters",
    "filters-without",
    "filters-magnitude",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The network and what is assumed of it: K of each layer, a factor `reach` on all outputs, the
    law, Lemma 4's C.
    """

    chain: Chain
    scales: tuple[float, ...]
    reach: float
    constant: float
    law: Law

    @property
    def lipschitz(self) -> float:
        """L_{1:l−1}, with all that stands before the first and behind the last layer."""
        return self.reach * math.prod(b.lipschitz for b in self.chain.between or ())


def _no_guarantee(setting: Setting, alpha: float, delta: float) -> None:
    """Print has no such statement."""


def _no_width(setting: Setting, alpha: float, epsilon: float, delta: float) -> None:
    """Print has no such statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way to prune, as five functions of a `Setting`.

    Attributes:
        guarantee: (setting, widths, alpha, delta) ↦ what is proved with explicit constants.
        shares: (setting, widths, alpha) ↦ what each pruned layer loses.
        printed: (setting, alpha, delta) ↦ the same put to the theorem as printed, None without one.
        needed: (setting, alpha, epsilon, delta) ↦ the widths its conditions ask for.
        limit: (setting) ↦ the largest α that they allow.
    """

    guarantee: Callable[[Setting, Sequence[int], float, float], Guarantee]
    shares: Callable[[Setting, Sequence[int], float], list[Part]]
    printed: Callable[[Setting, float, float], Guarantee | None] = _no_guarantee
    needed: Callable[[Setting, float, float, float], Needed | None] = _no_width
    limit: Callable[[Setting], float] = lambda setting: 1.0
    filters: bool = False


def positions_cut(
    power: float, setting: Setting, widths: Sequence[int], alpha: float
) -> list[Part]:
    """⌊D^{1−α·power}⌋ distinct positions of each pruned layer."""
    sizes = setting.chain.inner(widths)
    return [Part(size=d, share=floor_power(d, 1 - alpha * power) / d) for d in sizes]


def level(sizes: Tensor, count: int, size: int) -> float:
    """The largest of the smallest magnitudes; at other widths, that of the same share."""
    # Rounded up, so that at other widths the level is never too low.
    return float(sizes[-(-count * len(sizes) // size) - 1])
