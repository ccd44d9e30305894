"""The schemes `plan` can ask about: which theorem speaks, what it removes, what print says of the
same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.guarantee import Guarantee, Needed, floor_power
from secateurs.theory.planning.chain import Chain
from secateurs.theory.planning.search import Promise, Shares
from secateurs.theory.pruning.masked_norms import Law, RandomLayer, masked_norm_bound
from secateurs.theory.pruning.theorem_1 import theorem_1, theorem_1_width
from secateurs.theory.pruning.theorem_1_explicit import (
    pruned_counts,
    setting_of,
    theorem_1_explicit,
)
from secateurs.theory.pruning.theorem_2 import NormBounds, largest_alpha, theorem_2, theorem_2_width
from secateurs.theory.pruning.theorems_2_and_3_explicit import (
    linear_layers,
    random_guarantee,
    theorem_2_explicit,
)

Scheme = Literal["magnitude", "random", "filters"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The theorem behind one scheme for one network.

    `promise` (widths, alpha, delta) is the explicit one; `printed` (alpha, delta) the same put to
    the printed theorem, `needed` (alpha, epsilon, delta) the widths its conditions ask for; `limit`
    the largest α that they allow.
    """

    promise: Promise
    shares: Shares
    printed: Callable[[float, float], Guarantee | None]
    needed: Callable[[float, float, float], Needed | None]
    limit: float


def asked(scheme: str, setting: Setting) -> Asked:
    """The theorem for `scheme`: linear chains take "magnitude" and "random", convolutions
    "filters".
    """
    if setting.chain.taps and scheme != "filters":
        raise ArgumentError(
            f"scheme = {scheme!r}: these are convolutions; plan() covers scheme='filters' for them"
            " (Theorem 3)."
        )
    if scheme not in _SCHEMES or (scheme == "filters" and not setting.chain.taps):
        raise ArgumentError(
            f"scheme = {scheme!r}: 'magnitude' or 'random' for linear layers, 'filters' for a model"
            " with convolutions, or for widths with kernel= and input_size=."
        )
    return _SCHEMES[scheme](setting)


def _magnitude(setting: Setting) -> Asked:
    chain, depth = setting.chain, len(setting.scales)
    if setting.law == "bounded" and len(chain.magnitudes) != depth - 2:
        raise ArgumentError(
            "law='bounded' with scheme='magnitude' looks up what is pruned: give a model, not"
            " widths."
        )
    options: dict[str, Any] = {
        "scale": max(setting.scales),
        "lipschitz": setting.lipschitz,
        "constant": setting.constant,
    }

    def promise(widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
        return theorem_1_explicit(
            widths,
            alpha=alpha,
            delta=delta,
            scale=setting.scales,
            lipschitz=setting.reach,
            law=setting.law,
            thresholds=_thresholds(chain, widths, alpha) if setting.law == "bounded" else None,
            between=chain.between,
        )

    def printed(alpha: float, delta: float) -> Guarantee:
        return theorem_1(
            min(chain.widths[1:-1]), depth=depth, alpha=alpha, as_printed=True, **options
        )

    def needed(alpha: float, epsilon: float, delta: float) -> Needed:
        return theorem_1_width(depth=depth, alpha=alpha, epsilon=epsilon, delta=delta, **options)

    def shares(widths: Sequence[int], alpha: float) -> list[float]:
        sizes = _sizes(widths)
        return [floor_power(size, 1 - alpha) / size for size in sizes]

    return Asked(promise=promise, shares=shares, printed=printed, needed=needed, limit=1.0)


def _thresholds(chain: Chain, widths: Sequence[int], alpha: float) -> list[float]:
    """The largest of the smallest magnitudes; at other widths, that of the same share of the
    entries.
    """
    found = []
    for sizes, size, count in zip(
        chain.magnitudes, _sizes(widths), pruned_counts(widths, alpha), strict=True
    ):
        found.append(float(sizes[-(-count * len(sizes) // size) - 1]))
    return found


def _random(setting: Setting) -> Asked:
    chain = setting.chain

    def promise(widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
        return theorem_2_explicit(
            widths,
            alpha=alpha,
            delta=delta,
            scale=setting.scales,
            lipschitz=setting.reach,
            law=setting.law,
            between=chain.between,
        )

    def printed(alpha: float, delta: float) -> Guarantee:
        options = _moments(setting) | {"norms": _norms(setting, delta)}
        return theorem_2(chain.widths, alpha=alpha, as_printed=True, require=False, **options)

    def needed(alpha: float, epsilon: float, delta: float) -> Needed:
        options = _moments(setting) | {"norms": _norms(setting, delta)}
        depth = len(setting.scales)
        return theorem_2_width(
            depth=depth, alpha=alpha, epsilon=epsilon, delta=delta, as_printed=True, **options
        )

    return Asked(
        promise=promise,
        shares=_drawn_shares(1.0),
        printed=printed,
        needed=needed,
        limit=largest_alpha(chain.widths),
    )


def _moments(setting: Setting) -> dict[str, Any]:
    """K1 and K2 of Theorem 2: uniform entries, or signs, which have the largest moments of all
    bounded ones.
    """
    k = max(setting.scales)
    k1, k2 = (k**2 / 3, k**4 / 5) if setting.law == "uniform" else (k**2, k**4)
    return {"k1": k1, "k2": k2, "lipschitz": setting.lipschitz, "constant": setting.constant}


def _norms(setting: Setting, delta: float) -> NormBounds:
    """Proven norm bounds whose failures take half of δ in condition (5)."""
    depth = len(setting.scales)
    failure = delta / (2 + depth * (depth - 1))
    bounds = [
        masked_norm_bound(layer, failure=failure, law=setting.law)
        for layer in linear_layers(setting.chain.widths, setting.scales)
    ]
    return NormBounds(bounds=tuple(bounds), failures=(failure,) * depth)


def _filters(setting: Setting) -> Asked:
    """⌊(d_k d_{k−1})^{1−α/2}⌋ filters of every inner convolution: d^{2−α} for equal channels."""
    chain = setting.chain

    def promise(widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
        layers = chain_layers(chain, widths, setting.scales)
        return random_guarantee(
            layers,
            [floor_power(layer.positions, 1 - alpha / 2) for layer in layers[1:-1]],
            delta=delta,
            reach=setting.reach,
            law=setting.law,
            between=chain.between,
            theorem="Theorem 3, explicit constants",
            entries="±K/√(q² max(d_k, d_{k−1})), q = 1 for the linear layer",
            setting=setting_of(chain.between),
        )

    return Asked(
        promise=promise,
        shares=_drawn_shares(0.5),
        # Print has two free exponents and one channel count; there is no one statement to compare
        # with.
        printed=lambda alpha, delta: None,
        needed=lambda alpha, epsilon, delta: None,
        limit=min(1.0, 2 * largest_alpha(chain.widths)),
    )


def chain_layers(chain: Chain, widths: Sequence[int], scales: Sequence[float]) -> list[RandomLayer]:
    """The layers of a convolutional chain with other channel counts; the linear layer sees the same
    maps.
    """
    if len(widths) < 4:
        raise TheoryError("a chain of fewer than two convolutions has no inner one to prune.")
    shapes = zip(
        pairwise(widths[:-1]),
        chain.taps,
        chain.frequencies,
        chain.repeats,
        scales[:-1],
        strict=True,
    )
    convs = [
        RandomLayer(
            rows=rows,
            columns=columns,
            bound=factor * scale / math.sqrt(taps * max(rows, columns)),
            taps=taps,
            frequencies=frequencies,
        )
        for (columns, rows), taps, frequencies, factor, scale in shapes
    ]
    return [*convs, *linear_layers([widths[-2] * chain.last_map, widths[-1]], scales[-1:])]


def _drawn_shares(power: float) -> Shares:
    """Drawing with replacement hits fewer positions than draws: 1 − (1 − 1/D)^N of them, N =
    ⌊D^{1−α·power}⌋.
    """

    def shares(widths: Sequence[int], alpha: float) -> list[float]:
        return [_hit(size, floor_power(size, 1 - alpha * power)) for size in _sizes(widths)]

    return shares


def _hit(size: int, draws: int) -> float:
    return 1.0 if size == 1 else -math.expm1(draws * math.log1p(-1 / size))


def _sizes(widths: Sequence[int]) -> list[int]:
    return [a * b for a, b in pairwise(widths[1:-1])]


_SCHEMES = {"magnitude": _magnitude, "random": _random, "filters": _filters}
