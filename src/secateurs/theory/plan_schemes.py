"""The schemes `plan` can ask about: which theorem speaks, what it removes, what print says of the same."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from secateurs.errors import ArgumentError
from secateurs.theory.explicit_random import random_guarantee, theorem_2_explicit
from secateurs.theory.guarantee import Guarantee, floor_power
from secateurs.theory.magnitude_pruning import theorem_1, theorem_1_explicit
from secateurs.theory.masked_norms import RandomLayer
from secateurs.theory.plan_search import Promise, Share
from secateurs.theory.random_pruning import NormBounds, largest_alpha, theorem_2
from secateurs.theory.reading import Chain

Scheme = Literal["magnitude", "random", "filters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The theorem behind one scheme for one network.

    `promise` (widths, alpha, delta) is the explicit one; `printed` the same α put to the printed theorem; `limit` the
    largest α that the conditions of print allow.
    """

    promise: Promise
    share: Share
    printed: Callable[[float], Guarantee | None]
    limit: float


def asked(scheme: str, chain: Chain, *, scale: float, lipschitz: float, constant: float) -> Asked:
    """The theorem for `scheme`: linear chains take "magnitude" and "random", convolutions "filters"."""
    if chain.taps and scheme != "filters":
        raise ArgumentError(
            f"scheme = {scheme!r}: this model has convolutions; plan() covers scheme='filters' for them (Theorem 3)."
        )
    if scheme not in _SCHEMES or (scheme == "filters" and not chain.taps):
        raise ArgumentError(
            f"scheme = {scheme!r}: 'magnitude' or 'random' for linear layers, 'filters' for convolutions."
        )
    return _SCHEMES[scheme](chain, scale, lipschitz, constant)


def _magnitude(chain: Chain, scale: float, lipschitz: float, constant: float) -> Asked:
    def promise(widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
        return theorem_1_explicit(widths, alpha=alpha, delta=delta, scale=scale, lipschitz=lipschitz)

    def printed(alpha: float) -> Guarantee:
        return theorem_1(
            min(chain.widths[1:-1]),
            depth=len(chain.widths) - 1,
            alpha=alpha,
            scale=scale,
            lipschitz=lipschitz,
            constant=constant,
            as_printed=True,
        )

    def share(widths: Sequence[int], alpha: float) -> float:
        sizes = _sizes(widths)
        return math.fsum(math.pow(size, 1 - alpha) for size in sizes) / sum(sizes)

    return Asked(promise=promise, share=share, printed=printed, limit=1.0)


def _random(chain: Chain, scale: float, lipschitz: float, constant: float) -> Asked:
    def promise(widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
        return theorem_2_explicit(widths, alpha=alpha, delta=delta, scale=scale, lipschitz=lipschitz)

    def printed(alpha: float) -> Guarantee:
        depth = len(chain.widths) - 1
        norms = NormBounds(bounds=(1.5 * scale,) * depth, failures=(1e-3,) * depth)
        moments = {"k1": scale**2 / 3, "k2": scale**4 / 5, "lipschitz": lipschitz, "constant": constant}
        return theorem_2(chain.widths, alpha=alpha, norms=norms, as_printed=True, require=False, **moments)

    return Asked(promise=promise, share=_drawn_share(1.0), printed=printed, limit=largest_alpha(chain.widths))


def _filters(chain: Chain, scale: float, lipschitz: float, constant: float) -> Asked:
    """⌊(d_k d_{k−1})^{1−α/2}⌋ filters of every inner convolution: d^{2−α} for equal channels."""

    def promise(widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
        layers = chain_layers(chain, widths, scale)
        draws = [floor_power(layer.positions, 1 - alpha / 2) for layer in layers[1:-1]]
        return random_guarantee(
            layers,
            draws,
            delta=delta,
            reach=lipschitz,
            theorem="Theorem 3, explicit constants",
            entries="±K/√(q² max(d_k, d_{k−1})), q = 1 for the linear layer",
            setting="activations and pooling 1-Lipschitz with σ(0) = 0, no biases, ‖x‖₂ ≤ 1",
        )

    return Asked(
        promise=promise,
        share=_drawn_share(0.5),
        # Print has two free exponents and one channel count; there is no one statement to compare with.
        printed=lambda alpha: None,
        limit=min(1.0, 2 * largest_alpha(chain.widths)),
    )


def chain_layers(chain: Chain, widths: Sequence[int], scale: float) -> list[RandomLayer]:
    """The layers of a convolutional chain with other channel counts; the linear layer sees the same maps."""
    convs = [
        RandomLayer(
            rows=rows,
            columns=columns,
            bound=scale / math.sqrt(taps * max(rows, columns)),
            taps=taps,
            frequencies=frequencies,
        )
        for (columns, rows), taps, frequencies in zip(pairwise(widths[:-1]), chain.taps, chain.frequencies, strict=True)
    ]
    columns = widths[-2] * chain.last_map
    last = RandomLayer(rows=widths[-1], columns=columns, bound=scale / math.sqrt(max(widths[-1], columns)))
    return [*convs, last]


def _drawn_share(power: float) -> Share:
    """Drawing with replacement hits fewer positions than draws: 1 − (1 − 1/D)^N of them, N = D^{1−α·power}."""

    def share(widths: Sequence[int], alpha: float) -> float:
        sizes = _sizes(widths)
        missed = (math.pow(1 - 1 / size, math.pow(size, 1 - alpha * power)) for size in sizes)
        return 1 - math.fsum(size * share for size, share in zip(sizes, missed, strict=True)) / sum(sizes)

    return share


def _sizes(widths: Sequence[int]) -> list[int]:
    return [a * b for a, b in pairwise(widths[1:-1])]


_SCHEMES = {"magnitude": _magnitude, "random": _random, "filters": _filters}
