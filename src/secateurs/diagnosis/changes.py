"""What a pruning changed in one layer, beside the thresholds of the theorems."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from secateurs.diagnosis.norms import Use, layer_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One layer: `change` = ‖W* − W‖₂ beside the theorems' thresholds d^{−α} (magnitude) and
    d^{−α/4} (random).

    α is read off the number of pruned entries: D^{1−α} of D; d is the smaller side of the layer.
    `kind` says what the norms are: of the matrix; of the convolution on its maps (the largest, if
    it is used on several); of the unfolded kernel (no example given, or the layer not run by it).
    Where `kind` says "upper bound", `norm` and `change` are one, and `norm_lower`, `change_lower`
    are proven too; elsewhere the two agree.
    """

    name: str
    kind: str
    norm: float
    change: float
    pruned: int
    alpha: float | None
    magnitude_bound: float | None
    random_bound: float | None
    norm_lower: float = 0.0
    change_lower: float = 0.0

    @property
    def within(self) -> bool | None:
        """‖W* − W‖₂ ≤ d^{−α}? None when nothing was pruned."""
        return (
            None
            if self.magnitude_bound is None
            else self.change <= self.magnitude_bound
        )


def layer_change(
    name: str,
    owner: nn.Module,
    before: Tensor,
    after: Tensor,
    uses: frozenset[Use] | None,
) -> LayerChange:
    """The norms of one layer and of what was taken from it, with the α that its pruned entries
    stand for.
    """
    norm, change = (
        layer_norm(owner, weight, uses or frozenset())
        for weight in (before, before - after)
    )
    # Entries that were zero before were not pruned by anybody.
    pruned = int(((after == 0) & (before != 0)).sum())
    alpha = (
        1 - math.log(pruned) / math.log(before.numel())
        # ln 0, and a division by ln 1.
        if pruned and before.numel() > 1
        else None
    )
    width = min(before.shape[:2])
    return LayerChange(
        name=name,
        kind=norm.kind,
        norm=norm.upper,
        change=change.upper,
        pruned=pruned,
        alpha=alpha,
        magnitude_bound=None if alpha is None else float(width) ** -alpha,
        random_bound=None if alpha is None else float(width) ** (-alpha / 4),
        norm_lower=norm.lower,
        change_lower=change.lower,
    )
