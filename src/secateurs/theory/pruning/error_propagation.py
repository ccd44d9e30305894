"""How far the output of a chain moves when its inner layers do: the part of Theorems 1 to 3 without
chance.

Layer k maps y_{k−1} to σ_k(W_k y_{k−1} + b_k), σ_k is L_k-Lipschitz, and only inner W_k change. If
‖W*_k‖ ≤ N_k before, ‖W_k‖ ≤ M_k after and ‖W*_k − W_k‖ ≤ η_k, then

    ‖y*_k‖ ≤ R_k = L_k N_k R_{k−1} + ‖σ_k(b_k)‖,   because σ_k(Wy + b) lies within L_k‖Wy‖ of
    σ_k(b), ‖y_k − y*_k‖ ≤ L_k (M_k ‖y_{k−1} − y*_{k−1}‖ + η_k R_{k−1}),

so sup‖f − F‖ ≤ Σ_k η_k L_k R_{k−1} Π_{j>k} L_j M_j. Biases, and σ_k(0) ≠ 0, drop out of the
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
    """Bounds of one layer: ‖W*‖ ≤ `norm`, ‖W*−W‖ ≤ `change`, ‖W‖ ≤ `kept`, which all hold but with
    chance `failure`.
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
    fed = _sizes(widths, layers, behind)
    grown = _growth(layers, behind)
    bounds = tuple(
        LayerBound(
            removed=layer.removed,
            norm=layer.norm,
            change=layer.change,
            # Not computed where nothing changes: 0 · ∞ would be NaN in a very wide or
            # deep chain.
            contribution=reach * layer.change * size * factor
            if layer.change
            else 0.0,
            failure=layer.failure,
        )
        for layer, size, factor in zip(layers, fed, grown, strict=True)
    )
    moved = math.prod(b.lipschitz for b in behind) * math.prod(
        layer.norm for layer in layers
    )
    return bounds, reach * moved


def _sizes(
    widths: Sequence[int], layers: Sequence[Links], behind: Sequence[Between]
) -> list[float]:
    """R_0 … R_{l−1}: how large the input of each layer can be."""
    # ‖x‖ ≤ 1, after whatever stands before the first layer.
    sizes = [behind[0].lipschitz + behind[0].at_zero(widths[0])]
    for width, layer, sigma in zip(
        widths[1:-1], layers[:-1], behind[1:-1], strict=True
    ):
        sizes.append(sigma.lipschitz * layer.norm * sizes[-1] + sigma.at_zero(width))
    return sizes


def _growth(layers: Sequence[Links], behind: Sequence[Between]) -> list[float]:
    """L_k Π_{j>k} L_j M_j for each layer."""
    # From the last layer backwards, so that each product is the one behind it times one
    # layer.
    grown = [behind[-1].lipschitz]
    for layer, sigma in zip(
        reversed(layers[1:]), reversed(behind[1:-1]), strict=True
    ):
        grown.append(grown[-1] * layer.kept * sigma.lipschitz)
    return grown[::-1]
