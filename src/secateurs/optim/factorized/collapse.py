"""From factors to an exactly sparse model: which weights count as zero, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks import SparsityReport
from secateurs.optim.factorized.arguments import number
from secateurs.optim.factorized.cutting.gap import gap
from secateurs.optim.factorized.cutting.magnitudes import quantile
from secateurs.optim.factorized.factors.maths import EPS

Threshold = float | str
"""A magnitude, "eps" (1.19e-7, as in the paper), "gap" (the widest gap of the log-magnitudes), or
"target".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapsed:
    """What a collapse left: masks by parameter name (True = kept), the sparsity report, and the
    threshold used.

    `above_eps` counts the weights that the paper's threshold would have kept: the difference to the
    report's count is what a larger threshold removed, which changes the function.

    `only_cut` counts the weights, of this cut and of those during the run, that were removed by
    rank or threshold though training had not brought them below 1e-3. `strength` is the largest λ
    as it was in force, steered and scheduled: at the end, or when the target was met. `losses` are
    the losses on the batch before and after this cut, where one was given.
    """

    masks: dict[str, Tensor]
    report: SparsityReport
    threshold: float
    above_eps: int
    only_cut: int = 0
    strength: float = 0.0
    losses: tuple[float, float] | None = None

    @property
    def sparsity(self) -> float:
        """Share of exact zeros among all parameters of the optimizer."""
        return self.report.sparsity

    @property
    def compression(self) -> float:
        """All parameters of the optimizer over the non-zero ones."""
        return self.report.compression


def threshold_of(
    which: Threshold | None,
    weights: Sequence[Tensor],
    *,
    total: int,
    target: float | None,
) -> float:
    """The magnitude below which a weight is zeroed."""
    if by_rank(which, target):
        which = "target"
    if isinstance(which, str) or which is None:
        return _named(which or "eps", weights, total, target)
    value = (
        which.item() if isinstance(which, Tensor) and which.numel() == 1 else which
    )
    if not (number(value) and value >= 0):
        raise ArgumentError(
            f"threshold={which!r}: a magnitude is a finite number from 0 up. Or 'eps', 'gap',"
            " 'target'."
        )
    return float(value)


def by_rank(which: Threshold | None, target: float | None) -> bool:
    """Whether this threshold, None being the default, is the one that meets the target."""
    return (
        which == "target"
        if isinstance(which, str)
        else which is None and target is not None
    )


def by_density(weights: Sequence[Tensor], density: float, *, total: int) -> float:
    """The magnitude that leaves this share of all parameters."""
    # The target is a share of all parameters, and those without factors stay dense.
    dense = total - sum(w.numel() for w in weights)
    return max(EPS, quantile(weights, kept=max(0, round(density * total) - dense)))


def _named(
    which: str, weights: Sequence[Tensor], total: int, target: float | None
) -> float:
    if which == "eps":
        return EPS
    if which == "gap":
        if not weights:
            raise ArgumentError(
                "threshold='gap' lies between factorized weights, and none is: every depth is None."
            )
        return gap(weights)
    if which == "target" and target is not None:
        return by_density(weights, 1 - target, total=total)
    reason = "needs target_sparsity=" if which == "target" else "is unknown"
    raise ArgumentError(
        f"threshold={which!r} {reason}. Known: a number, 'eps', 'gap', 'target'."
    )
