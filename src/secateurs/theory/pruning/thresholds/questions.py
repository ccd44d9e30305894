"""What the explicit theorems are asked: how much each inner layer loses, its scale, the setting."""

from collections.abc import Sequence
from itertools import pairwise

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_counts, check_positive, check_unit
from secateurs.theory.powers import floor_power
from secateurs.theory.pruning.error_propagation import Between

UNIFORM = "entries of every layer iid uniform on ±K/√max(d_k, d_{k−1})"


def pruned_counts(
    widths: Sequence[int], alpha: float | None, counts: Sequence[int] | None = None
) -> list[int]:
    """⌊D_k^{1−α}⌋ for the inner layers, or the counts given for them."""
    sizes = [a * b for a, b in pairwise(widths[1:-1])]
    if counts is None and alpha is not None:
        check_unit(alpha=alpha)
        return [floor_power(size, 1 - alpha) for size in sizes]
    return check_counts(counts, len(sizes), alpha)


def layer_scales(scale: float | Sequence[float], depth: int) -> list[float]:
    """K of every layer, from one or from a sequence."""
    scales = list(scale) if isinstance(scale, Sequence) else [scale] * depth
    if len(scales) != depth:
        raise ArgumentError(
            f"scale has {len(scales)} entries; there are {depth} layers."
        )
    for k, value in enumerate(scales, start=1):
        check_positive(
            **{
                f"scale of layer {k}"
                if isinstance(scale, Sequence)
                else "scale": value
            }
        )
    return scales


def setting_of(between: Sequence[Between] | None) -> str:
    """The assumption about all that is not a weight."""
    if between is None:
        return "activations Lipschitz with σ(0) = 0, no biases, ‖x‖₂ ≤ 1"
    return "activations and biases as given, in evaluation mode, ‖x‖₂ ≤ 1"
