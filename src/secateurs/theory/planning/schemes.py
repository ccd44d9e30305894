"""The schemes `plan` can ask about: which theorem speaks, what it removes, what print says."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.guarantee import Guarantee, Needed, floor_power
from secateurs.theory.planning.chain import Chain
from secateurs.theory.planning.search import Part
from secateurs.theory.pruning.masked_norms import Law, RandomLayer, masked_norm_bound
from secateurs.theory.pruning.theorem_1 import theorem_1, theorem_1_width
from secateurs.theory.pruning.theorem_1_explicit import (
    pruned_counts,
    setting_of,
    theorem_1_explicit,
    theorem_1_global,
)
from secateurs.theory.pruning.theorem_2 import (
    NormBounds,
    largest_alpha,
    theorem_2,
    theorem_2_width,
)
from secateurs.theory.pruning.theorem_3_magnitude import filter_guarantee
from secateurs.theory.pruning.theorems_2_and_3_explicit import (
    linear_layers,
    random_guarantee,
    theorem_2_explicit,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A scheme put to one network."""

    scheme: Scheme
    setting: Setting

    def promise(self, widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
        """The explicit guarantee at these widths."""
        return self.scheme.guarantee(self.setting, widths, alpha, delta)

    def shares(self, widths: Sequence[int], alpha: float) -> list[Part]:
        """What each pruned layer loses."""
        return self.scheme.shares(self.setting, widths, alpha)

    def printed(self, alpha: float, delta: float) -> Guarantee | None:
        """What print says of the same."""
        return self.scheme.printed(self.setting, alpha, delta)

    def needed(self, alpha: float, epsilon: float, delta: float) -> Needed | None:
        """The widths that print asks for."""
        return self.scheme.needed(self.setting, alpha, epsilon, delta)

    @property
    def limit(self) -> float:
        """The largest α that print's conditions allow."""
        return self.scheme.limit(self.setting)


def asked(name: str, setting: Setting) -> Asked:
    """The scheme of this name: linear chains take those of entries, convolutions those of
    filters."""
    scheme = SCHEMES.get(name)
    if scheme is None or scheme.filters != bool(setting.chain.taps):
        kind = [n for n, s in SCHEMES.items() if s.filters == bool(setting.chain.taps)]
        raise ArgumentError(
            f"scheme = {name!r}: this network has {'' if setting.chain.taps else 'no '}"
            f"convolutions; for it give one of {', '.join(map(repr, kind))}. (Widths with kernel="
            " and input_size= stand for convolutions.)"
        )
    return Asked(scheme=scheme, setting=setting)


def _magnitude(
    setting: Setting, widths: Sequence[int], alpha: float, delta: float
) -> Guarantee:
    counts = pruned_counts(widths, alpha)
    levels = None
    if setting.law == "bounded":
        found = _pruned(setting, widths, counts)
        levels = [_level(sizes, count, size) for sizes, count, size in found]
    options = _magnitude_options(setting)
    return theorem_1_explicit(
        widths, counts=counts, delta=delta, thresholds=levels, **options
    )


def _global(
    setting: Setting, widths: Sequence[int], alpha: float, delta: float
) -> Guarantee:
    """The smallest of all inner layers together; for a given network the threshold is looked up."""
    counts = pruned_counts(widths, alpha)
    options = _magnitude_options(setting)
    if setting.law != "bounded":
        return theorem_1_global(widths, counts=counts, delta=delta, **options)
    found = list(_pruned(setting, widths, counts))
    sides = [max(pair) for pair in pairwise(widths[1:-1])]
    units = [
        k / math.sqrt(side) for k, side in zip(setting.scales[1:-1], sides, strict=True)
    ]
    magnitudes = [
        sizes * unit for (sizes, _, _), unit in zip(found, units, strict=True)
    ]
    threshold = _looked_up(magnitudes, found)
    shares = [min(1.0, threshold / unit) for unit in units]
    below = [
        round(float((sizes <= share).double().mean()) * size)
        for (sizes, _, size), share in zip(found, shares, strict=True)
    ]
    return theorem_1_explicit(
        widths, counts=below, delta=delta, thresholds=shares, **options
    )


def _looked_up(
    magnitudes: Sequence[Tensor], found: Sequence[tuple[Tensor, int, int]]
) -> float:
    """The largest of the smallest magnitudes of all layers; at other widths each known entry stands
    for as many as the layer has grown by.
    """
    pairs = zip(magnitudes, found, strict=True)
    weights = [torch.full((len(m),), size / len(m)) for m, (_, _, size) in pairs]
    levels, order = torch.cat(list(magnitudes)).sort()
    reached = torch.cat(weights).double()[order].cumsum(0)
    total = sum(count for _, count, _ in found)
    return float(levels[int((reached < total - 1e-6).sum())])


def _magnitude_options(setting: Setting) -> dict[str, Any]:
    return {
        "scale": setting.scales,
        "lipschitz": setting.reach,
        "law": setting.law,
        "between": setting.chain.between,
    }


def _pruned(
    setting: Setting, widths: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[Tensor, int, int]]:
    """Sorted magnitudes of each inner layer, how many go and how many there are at these widths."""
    known = setting.chain.magnitudes
    if len(known) != len(counts):
        raise ArgumentError(
            "law='bounded' with scheme='magnitude' or 'global' looks up what is pruned: give a"
            " model, not widths."
        )
    return zip(known, counts, setting.chain.inner(widths), strict=True)


def _level(sizes: Tensor, count: int, size: int) -> float:
    """The largest of the smallest magnitudes; at other widths, that of the same share."""
    return float(sizes[-(-count * len(sizes) // size) - 1])


def _magnitude_printed(setting: Setting, alpha: float, delta: float) -> Guarantee:
    width = min(setting.chain.widths[1:-1])
    return theorem_1(
        width,
        depth=len(setting.scales),
        alpha=alpha,
        as_printed=True,
        **_theorem_1_options(setting),
    )


def _magnitude_needed(
    setting: Setting, alpha: float, epsilon: float, delta: float
) -> Needed:
    return theorem_1_width(
        depth=len(setting.scales),
        alpha=alpha,
        epsilon=epsilon,
        delta=delta,
        **_theorem_1_options(setting),
    )


def _theorem_1_options(setting: Setting) -> dict[str, Any]:
    return {
        "scale": max(setting.scales),
        "lipschitz": setting.lipschitz,
        "constant": setting.constant,
    }


def _cut(
    power: float, setting: Setting, widths: Sequence[int], alpha: float
) -> list[Part]:
    """⌊D^{1−α·power}⌋ distinct positions of each pruned layer."""
    sizes = setting.chain.inner(widths)
    return [Part(size=d, share=floor_power(d, 1 - alpha * power) / d) for d in sizes]


def _drawn(
    power: float, setting: Setting, widths: Sequence[int], alpha: float
) -> list[Part]:
    """Drawing with replacement hits fewer positions than draws: 1 − (1 − 1/D)^N of them."""
    sizes = setting.chain.inner(widths)
    return [
        Part(size=d, share=_hit(d, floor_power(d, 1 - alpha * power))) for d in sizes
    ]


def _hit(size: int, draws: int) -> float:
    return 1.0 if size == 1 else -math.expm1(draws * math.log1p(-1 / size))


def _random(
    replacement: bool,
    setting: Setting,
    widths: Sequence[int],
    alpha: float,
    delta: float,
) -> Guarantee:
    return theorem_2_explicit(
        widths,
        alpha=alpha,
        delta=delta,
        scale=setting.scales,
        lipschitz=setting.reach,
        law=setting.law,
        between=setting.chain.between,
        replacement=replacement,
    )


def _random_printed(setting: Setting, alpha: float, delta: float) -> Guarantee:
    options = _moments(setting) | {"norms": _norms(setting, delta)}
    return theorem_2(
        setting.chain.widths, alpha=alpha, as_printed=True, require=False, **options
    )


def _random_needed(
    setting: Setting, alpha: float, epsilon: float, delta: float
) -> Needed:
    options = _moments(setting) | {"norms": _norms(setting, delta)}
    depth = len(setting.scales)
    return theorem_2_width(
        depth=depth,
        alpha=alpha,
        epsilon=epsilon,
        delta=delta,
        as_printed=True,
        **options,
    )


def _moments(setting: Setting) -> dict[str, Any]:
    """K1 and K2 of Theorem 2 for each law; signs have the largest moments of bounded entries."""
    second, fourth = _MOMENTS[setting.law]
    k = max(setting.scales)
    return {
        "k1": second * k**2,
        "k2": fourth * k**4,
        "lipschitz": setting.lipschitz,
        "constant": setting.constant,
    }


_MOMENTS = {
    "uniform": (1 / 3, 1 / 5),
    "bounded": (1.0, 1.0),
    "normal": (1.0, 3.0),
    "subgaussian": (1.0, 16.0),  # E w⁴ ≤ ∫ 4t³ · 2e^{−t²/2} dt
}


def _norms(setting: Setting, delta: float) -> NormBounds:
    """Proven norm bounds whose failures take half of δ in condition (5)."""
    depth = len(setting.scales)
    failure = delta / (2 + depth * (depth - 1))
    bounds = [
        masked_norm_bound(layer, failure=failure, law=setting.law)
        for layer in linear_layers(setting.chain.widths, setting.scales)
    ]
    return NormBounds(bounds=tuple(bounds), failures=(failure,) * depth)


def _filters(
    replacement: bool,
    setting: Setting,
    widths: Sequence[int],
    alpha: float,
    delta: float,
) -> Guarantee:
    """⌊D^{1−α/2}⌋ of the D filters of every inner convolution: d^{2−α} for equal channels."""
    layers = chain_layers(setting.chain, widths, setting.scales)
    return random_guarantee(
        layers,
        _filter_counts(setting, widths, alpha),
        delta=delta,
        reach=setting.reach,
        law=setting.law,
        between=setting.chain.between,
        theorem="Theorem 3, explicit constants",
        entries=FILTER_ENTRIES,
        setting=setting_of(setting.chain.between),
        replacement=replacement,
    )


def _filters_magnitude(
    setting: Setting, widths: Sequence[int], alpha: float, delta: float
) -> Guarantee:
    """As many filters, those of smallest ℓ¹ norm (appendix C.2)."""
    counts = _filter_counts(setting, widths, alpha)
    return filter_guarantee(
        chain_layers(setting.chain, widths, setting.scales),
        counts,
        delta=delta,
        reach=setting.reach,
        law=setting.law,
        entries=FILTER_ENTRIES,
        setting=setting_of(setting.chain.between),
        caps=_caps(setting, widths, counts) if setting.law == "bounded" else None,
        between=setting.chain.between,
    )


FILTER_ENTRIES = "±K/√(q² max(d_k, d_{k−1})), q = 1 for the linear layers"


def _filter_counts(setting: Setting, widths: Sequence[int], alpha: float) -> list[int]:
    """Inner linear layers lose nothing."""
    cut = [floor_power(size, 1 - alpha / 2) for size in setting.chain.inner(widths)]
    return cut + [0] * (len(widths) - 3 - len(cut))


def _caps(
    setting: Setting, widths: Sequence[int], counts: Sequence[int]
) -> list[float]:
    """The largest ℓ¹ norm pruned of each convolution, looked up."""
    sizes = setting.chain.inner(widths)
    known = setting.chain.filter_norms
    if len(known) != len(sizes):
        raise ArgumentError(
            "law='bounded' with scheme='filters-magnitude' looks up the filters: give a model, not"
            " widths."
        )
    caps = [
        _level(norms, n, d) for norms, n, d in zip(known, counts, sizes, strict=False)
    ]
    return caps + [0.0] * (len(counts) - len(caps))


def chain_layers(
    chain: Chain, widths: Sequence[int], scales: Sequence[float]
) -> list[RandomLayer]:
    """The layers of a convolutional chain with other channel counts; the linear layers behind see
    the same maps.
    """
    convs = len(chain.taps)
    if convs < 2:
        raise TheoryError(
            "a chain of fewer than two convolutions has no inner one to prune."
        )
    shapes = zip(
        pairwise(widths[: convs + 1]),
        chain.taps,
        chain.frequencies,
        chain.repeats,
        scales[:convs],
        strict=True,
    )
    found = [
        RandomLayer(
            rows=rows,
            columns=columns,
            bound=factor * scale / math.sqrt(taps * max(rows, columns)),
            taps=taps,
            frequencies=frequencies,
        )
        for (columns, rows), taps, frequencies, factor, scale in shapes
    ]
    behind = [widths[convs] * chain.last_map, *widths[convs + 1 :]]
    return [*found, *linear_layers(behind, scales[convs:])]


def _random_limit(setting: Setting) -> float:
    return largest_alpha(setting.chain.widths)


def _filters_limit(setting: Setting) -> float:
    channels = setting.chain.widths[: len(setting.chain.taps) + 2]
    return min(1.0, 2 * largest_alpha(channels))


SCHEMES: dict[str, Scheme] = {
    "magnitude": Scheme(
        guarantee=_magnitude,
        shares=partial(_cut, 1.0),
        printed=_magnitude_printed,
        needed=_magnitude_needed,
    ),
    "global": Scheme(guarantee=_global, shares=partial(_cut, 1.0)),
    "random": Scheme(
        guarantee=partial(_random, True),
        shares=partial(_drawn, 1.0),
        printed=_random_printed,
        needed=_random_needed,
        limit=_random_limit,
    ),
    "random-without": Scheme(
        guarantee=partial(_random, False), shares=partial(_cut, 1.0)
    ),
    "filters": Scheme(
        guarantee=partial(_filters, True),
        shares=partial(_drawn, 0.5),
        limit=_filters_limit,
        filters=True,
    ),
    "filters-without": Scheme(
        guarantee=partial(_filters, False), shares=partial(_cut, 0.5), filters=True
    ),
    "filters-magnitude": Scheme(
        guarantee=_filters_magnitude, shares=partial(_cut, 0.5), filters=True
    ),
}
"""Print has statements for "magnitude" and "random"; for filters it has two free exponents and one
channel count, so that there is no one statement to compare with."""
