"""The chain of layers that `plan` speaks about: widths, ranges of the entries, what is between
them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from secateurs.theory.planning.chains.fits import Fit
from secateurs.theory.pruning.error_propagation import Between


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Widths (channels) d_0…d_l and, for each layer, K of the entries' range ±K/√(taps · max(d_k,
    d_{k−1})).

    Read off a model: the layers' `names`, how their entries fit the laws assumed (`fits`), what
    lies `between` them (first: before layer 1), and of inner linear layers the `magnitudes`,
    sorted, as shares of the range; `filter_norms`, of inner convolutions the ℓ¹ norms of the
    filters, sorted, in the same unit; `deviations`, K for entries whose root mean square is the
    unit. Convolutions first, then linear layers: `taps`, `frequencies` and `repeats` (a factor on
    the norm, for circular padding beyond "same") of each convolution, `last_map` the positions of
    the maps that the first linear layer sees.
    """

    widths: tuple[int, ...]
    scales: tuple[float, ...]
    names: tuple[str, ...]
    fits: tuple[Fit, ...] = ()
    between: tuple[Between, ...] | None = None
    magnitudes: tuple[Tensor, ...] = ()
    taps: tuple[int, ...] = ()
    frequencies: tuple[int, ...] = ()
    repeats: tuple[float, ...] = ()
    last_map: int = 1
    filter_norms: tuple[Tensor, ...] = ()
    deviations: tuple[float, ...] = ()

    @property
    def scale(self) -> float:
        """The largest K."""
        return max(self.scales)

    def inner(self, widths: Sequence[int]) -> list[int]:
        """How many entries (filters) each layer has that is pruned: not the first, not the last,
        and of a network with convolutions only these.
        """
        # Among convolutions only these are pruned; in a linear chain all but first and
        # last.
        stop = len(self.taps) + 1 if self.taps else len(widths) - 1
        return [a * b for a, b in pairwise(widths[1:stop])]
