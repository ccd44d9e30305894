"""How far the output of a chain moves when its inner layers do: the part of Theorems 1 to 3 without
chance.

Layer k maps y_{k−1} to σ_k(W_k y_{k−1} + b_k), σ_k is L_k-Lipschitz, and only inner W_k change. If
‖W*_k‖ ≤ N_k before, ‖W_k‖ ≤ M_k after and ‖W*_k − W_k‖ ≤ η_k, then

    ‖y*_k‖ ≤ R_k = L_k N_k R_{k−1} + ‖σ_k(b_k)‖,   because σ_k(Wy + b) lies within L_k‖Wy‖ of
    σ_k(b), ‖y_k − y*_k‖ ≤ L_k (M_k ‖y_{k−1} − y*_{k−1}‖ + η_k R_{k−1}),

so sup‖f − F‖ ≤ Σ_k η_k L_k R_{k−1} Π_{j>k} L_j M_j. That sum grows beyond what one knows without
it: if ‖W_k‖ ≤ N_k, too, both y_k and y*_k lie within L_k N_k R_{k−1} of σ_k(b_k), so that

    ‖y_k − y*_k‖ ≤ 2 L_k N_k R_{k−1},

and the smaller of the two is taken behind every layer. Without biases the error is thus never more
than twice the `trivial` bound reach · Π L_k N_k. Once that bound does not hold: with two pruned
layers what is kept can point away from the whole, and there are matrices, every one and every part
of norm at most N_k, with ‖W*_3 W*_2 − W_3 W_2‖ > N_3 N_2.

The chance is paid for already. Of l = m + 2 layers m are pruned. The limit at the c-th of them
(c ≥ 2, since η ≤ N) asks for ‖W*‖ ≤ N at all layers (not at the m-th, if c < m), for ‖W‖ ≤ N at no
more than m, and for η at the m − c behind it: at most 3m events, and 3m are charged for drawn
masks. For the smallest weights W is the mean of W* given the kept entries, whose removed ones have
fair signs, so its exponential moments are no larger (Jensen); there M = N + η needs no event, and
at most m + 2 + c + 2(m − c) ≤ 3m + 2 are needed of the 3m + 2 that are charged (of 2m + 2 with
known thresholds, 2m + 3 with one threshold for all layers, where the m − c thresholds drop out).

Biases, and σ_k(0) ≠ 0, drop out of the
difference of two layers but not out of R_{k−1}, the size of what a changed layer is fed: print,
which has neither, says too little with them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import LayerBound


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What stands behind a layer, σ_k with the bias b_k inside: ‖σ_k(b_k)‖ ≤ `bias` + `rest` √d_k;
    `lipschitz` is L_k.

    The theorems as printed have neither biases nor σ_k(0) ≠ 0. For other widths the norm of the
    biases is taken to stay (as under torch's initialisation), and `rest`, the root mean square of
    σ_k(0), too.
    """

    lipschitz: float = 1.0
    bias: float = 0.0
    rest: float = 0.0

    def at_zero(self, width: int) -> float:
        """A bound on ‖σ_k(b_k)‖."""
        return self.bias + self.rest * math.sqrt(width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Bounds of one layer: ‖W*‖, ‖W‖ ≤ `norm`, ‖W*−W‖ ≤ `change`, ‖W‖ ≤ `kept`, which all that are
    used hold but with chance `failure`.
    """

    norm: float
    kept: float
    change: float = 0.0
    removed: int = 0
    failure: float = 0.0


def telescope(
    widths: Sequence[int],
    layers: Sequence[Links],
    between: Sequence[Between] | None,
    reach: float,
) -> tuple[tuple[LayerBound, ...], float]:
    """The layers with their parts of the error, and reach · Π L_k N_k, which bounds how far F moves
    on the unit ball.

    `between` starts with what the input passes before layer 1; `reach` multiplies everything.
    """
    behind = [Between()] * len(widths) if between is None else list(between)
    if len(behind) != len(widths):
        raise ArgumentError(
            f"between has {len(behind)} entries; one for the input and each layer are"
            f" {len(widths)}."
        )
    bounds = tuple(
        LayerBound(
            removed=layer.removed,
            norm=layer.norm,
            change=layer.change,
            contribution=reach * part,
            failure=layer.failure,
        )
        for layer, part in zip(
            layers, _contributions(widths, layers, behind), strict=True
        )
    )
    moved = math.prod(b.lipschitz for b in behind) * math.prod(
        layer.norm for layer in layers
    )
    return bounds, reach * moved


def _contributions(
    widths: Sequence[int], layers: Sequence[Links], behind: Sequence[Between]
) -> list[float]:
    """The part of every layer in ‖y_l − y*_l‖, never more than the sizes of both allow."""
    # ‖x‖ ≤ 1, after whatever stands before the first layer.
    size = behind[0].lipschitz + behind[0].at_zero(widths[0])
    parts: list[float] = []
    for width, layer, sigma in zip(widths[1:], layers, behind[1:], strict=True):
        # Not computed where nothing changes: 0 · ∞ would be NaN in a very wide or
        # deep chain.
        parts = [
            sigma.lipschitz * layer.kept * part if part else 0.0 for part in parts
        ]
        added = sigma.lipschitz * layer.change * size if layer.change else 0.0
        parts.append(added)
        moved = sigma.lipschitz * layer.norm * size
        if sum(parts) > 2 * moved:
            parts = _scale(parts, 2 * moved)
        size = moved + sigma.at_zero(width)
    return parts


def _scale(parts: Sequence[float], total: float) -> list[float]:
    """The same shares of another total; equal shares among those that are infinite."""
    if math.inf in parts:
        parts = [float(part == math.inf) for part in parts]
    whole = sum(parts)
    return [total * (part / whole) for part in parts]
