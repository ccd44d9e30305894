"""How much can be pruned? The theorems of Qian & Klabjan (2021), asked as a user asks them."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from secateurs.base.printing import AsJson
from secateurs.errors import ArgumentError
from secateurs.theory.chain import Chain, read_chain
from secateurs.theory.guarantee import (
    Guarantee,
    Needed,
    check_positive,
    check_unit,
    check_widths,
    floor_power,
    setting_of,
)
from secateurs.theory.laws import misfit
from secateurs.theory.magnitude import (
    linear_layers,
    theorem_1,
    theorem_1_explicit,
    theorem_1_global,
    theorem_1_width,
)
from secateurs.theory.random_matrices import (
    LATALA_CONSTANT,
    Law,
    largest_alpha,
    masked_norm_bound,
)
from secateurs.theory.random_pruning import (
    NormBounds,
    drawn_guarantee,
    filter_guarantee,
    theorem_2,
    theorem_2_width,
)

# A plan: its numbers, and the words of `print(plan(...))`.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """One layer of a plan: of its rows × columns entries (filters) `removed` are cut or drawn, on
    average `sparsity`.

    ‖W*‖ ≤ `norm` and ‖W* − W‖ ≤ `change` but with chance `failure`; `contribution` is its part of
    the total error.
    """

    name: str
    shape: tuple[int, int]
    removed: int
    sparsity: float
    norm: float
    change: float
    contribution: float
    failure: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(AsJson):
    """What theory promises for these widths, in numbers; `str(plan)` says it in words, `to_json()`
    for machines.

    * `error`: sup_{‖x‖≤1}‖f(x) − F(x)‖ guaranteed with probability 1 − delta; `trivial` bounds
      sup‖F(x) − F(0)‖.
    * `layers`: how much each layer loses, and what that adds to the error.
    * `probability`: the guaranteed probability of an error of at most epsilon (None without
      epsilon).
    * `smallest_width`: all hidden layers this wide suffice (for epsilon, or for a guarantee that is
      not vacuous).
    * `smallest_alpha`: the most that may be pruned at these widths (α small = many weights), a
      share of `most_sparsity` of the inner weights; `largest_alpha`: the least that the conditions
      of Theorems 2, 3 as printed allow.
    * `binding`: what stands in the way of epsilon (of any guarantee), and the layer that adds most.
    * `misfits`: layers of the model whose entries do not look like what `law` says.
    * `printed`: the same question put to the theorem as printed, at the given alpha (None for
      filters); `needed` the widths that its conditions ask for (`needed.binding` names the one that
      asks for most).
    """

    scheme: str
    widths: tuple[int, ...]
    alpha: float
    sparsity: float
    delta: float
    epsilon: float | None
    law: str
    error: float
    trivial: float
    layers: tuple[PlannedLayer, ...]
    probability: float | None
    smallest_width: float
    smallest_alpha: float | None
    most_sparsity: float | None
    largest_alpha: float
    binding: str
    vacuous: bool
    printed: Guarantee | None
    needed: Needed | None
    assumptions: tuple[str, ...]
    misfits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(sentences(self))


def sentences(found: Plan) -> Iterator[str]:
    """The lines, as one would ask: what is promised, where it is lost, how to get more, what is
    assumed.
    """
    yield (
        f"{found.scheme} pruning of {len(found.widths) - 3} inner layer(s), widths "
        f"{'-'.join(map(str, found.widths))}, alpha = {found.alpha:.4g} "
        f"({100 * found.sparsity:.3g} % of the inner weights)."
    )
    yield (
        f"With probability {1 - found.delta:g} the outputs differ by at most {found.error:.4g} on"
        f" the unit ball; those of the network itself lie within {found.trivial:.4g} of its output"
        " at zero."
    )
    if found.vacuous:
        yield "This guarantee is vacuous: it says no more than one knows without it."
    if found.epsilon is not None and found.probability is not None:
        yield (
            f"An error of at most {found.epsilon:g} is guaranteed with probability"
            f" {found.probability:.4g}."
        )
    yield from _layers(found)
    yield from _wishes(found)
    yield f"What binds: {found.binding}."
    yield from _print_says(found)
    yield from (f"Assumes {text}." for text in found.assumptions)
    yield from (f"Not as assumed: {text}." for text in found.misfits)


def _layers(found: Plan) -> Iterator[str]:
    wide = max(5, *(len(layer.name) for layer in found.layers))
    yield (
        f"  {'layer':{wide}} {'shape':>13} {'pruned':>8} {'norm <=':>10} {'change <=':>10}"
        f" {'adds':>10} {'fails':>8}"
    )
    for layer in found.layers:
        shape = f"{layer.shape[0]} x {layer.shape[1]}"
        yield (
            f"  {layer.name:{wide}} {shape:>13} {100 * layer.sparsity:>6.3g} % {layer.norm:>10.4g} "
            f"{layer.change:>10.4g} {layer.contribution:>10.4g} {layer.failure:>8.2g}"
        )


def _wishes(found: Plan) -> Iterator[str]:
    goal = (
        "a guarantee that says something"
        if found.epsilon is None
        else f"an error of {found.epsilon:g}"
    )
    wide = (
        f"{found.smallest_width:.0f}" if found.smallest_width < math.inf else f"more than {WIDEST}"
    )
    yield (
        f"Smallest sufficient hidden width for {goal} with probability {1 - found.delta:g}: {wide}."
    )
    most = "nothing" if found.smallest_alpha is None else f"alpha = {found.smallest_alpha:g}"
    share = "" if found.most_sparsity is None else f" ({100 * found.most_sparsity:.3g} %)"
    yield f"The most that may be pruned at these widths for the same goal: {most}{share}."


def _print_says(found: Plan) -> Iterator[str]:
    limit = f"up to {found.largest_alpha:.4g}" if found.largest_alpha < 1 else "in (0, 1)"
    # After the range: below 0 no α in (0, 1) is left.
    if found.largest_alpha <= 0:
        limit = "nowhere"
    yield f"Largest alpha: the conditions as printed allow it {limit}."
    printed, needed = found.printed, found.needed
    if printed is None:
        return
    failed = f"; {printed.failed[0]}" if printed.failed else ""
    word = f"vacuous{failed}" if printed.vacuous else "not vacuous"
    chance = max(0.0, printed.probability)
    yield f"{printed.theorem}: error {printed.error:.4g} with probability {chance:.4g} ({word})."
    other = [text for text in printed.assumptions[:2] if text not in found.assumptions]
    if other:
        yield f"It assumes, unlike the guarantee above: {'; '.join(other)}."
    if needed is not None:
        width = f"{needed.width:.4g}" if needed.width < math.inf else "more than 1e300"
        yield (
            f"For the same goal it asks for a width of {width}; its binding condition:"
            f" {needed.binding}."
        )


# The network as each way to prune sees it.

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

    @property
    def given(self) -> dict[str, Any]:
        """What Theorem 1 with explicit constants is asked with."""
        return {
            "scale": self.scales,
            "lipschitz": self.reach,
            "law": self.law,
            "between": self.chain.between,
        }

    @property
    def printed(self) -> dict[str, Any]:
        """The arguments of the theorems as printed."""
        return {"lipschitz": self.lipschitz, "constant": self.constant}

    def counts(self, widths: Sequence[int], alpha: float) -> list[int]:
        """⌊D^{1−α}⌋ of the D entries of each pruned layer, ⌊D^{1−α/2}⌋ of D filters: d^{2−α} for
        equal channels.
        """
        power = 0.5 if self.chain.convs else 1.0
        return [floor_power(size, 1 - alpha * power) for size in self.chain.inner(widths)]

    def looked_up(self, widths: Sequence[int], alpha: float) -> list[tuple[Tensor, int, int]]:
        """Of each pruned layer the sorted sizes of its entries (filters), how many go and how many
        there are at these widths.
        """
        inner = self.chain.inner(widths)
        known = self.chain.layers[1 : len(inner) + 1]
        if not all(layer.read for layer in known):
            raise ArgumentError(
                "law='bounded' with scheme='magnitude', 'global' or 'filters-magnitude' looks up"
                " what is pruned: give a model, not widths."
            )
        counts = self.counts(widths, alpha)
        return [
            (layer.sizes, count, size)
            for layer, count, size in zip(known, counts, inner, strict=True)
        ]


def setting_of_chain(
    chain: Chain,
    scale: float | None,
    lipschitz: float | None,
    constant: float,
    law: Law | None,
) -> Setting:
    """The network and what is assumed of it; constants that contradict the model are refused."""
    # What the model itself shows: a smaller constant given by hand would be wrong.
    read = math.prod(b.lipschitz for b in chain.between or ())
    if scale is not None:
        check_positive(scale=scale)
    if lipschitz is not None:
        check_positive(lipschitz=lipschitz)
        if lipschitz < read * (1 - 1e-9):
            raise ArgumentError(
                f"lipschitz = {lipschitz:g} is less than {read:g}, the product of the constants of"
                " this model's activations and norms. Leave it out, or give the widths."
            )
    own = tuple(layer.scale for layer in chain.layers)
    still = [layer.name for layer, k in zip(chain.layers, own, strict=True) if k == 0]
    if still and scale is None:
        raise ArgumentError(
            f"all weights of {', '.join(still)} are zero: no range can be read off them; give "
            "scale=."
        )
    assumed: Law = law or ("uniform" if chain.between is None else "bounded")
    # Entries with a range have that of the largest one; others the deviation of the entries.
    if assumed not in ("uniform", "bounded"):
        own = tuple(layer.deviation for layer in chain.layers)
    return Setting(
        chain=chain,
        scales=own if scale is None else (scale,) * len(own),
        # What the user's constant adds beyond the one that was read.
        reach=1.0 if lipschitz is None or read == 0 else lipschitz / read,
        constant=constant,
        law=assumed,
    )


# The guarantee of each way to prune: (setting, widths, alpha, delta) ↦ what is proved with explicit
# constants.


def random_guarantee(
    replacement: bool, setting: Setting, widths: Sequence[int], alpha: float, delta: float
) -> Guarantee:
    """Entries or whole filters drawn at random: Theorems 2 and 3 and appendix E.2."""
    convs = setting.chain.convs
    return drawn_guarantee(
        setting.chain.random_layers(widths, setting.scales),
        _filled_up(setting.counts(widths, alpha), widths),
        delta=delta,
        reach=setting.reach,
        law=setting.law,
        between=setting.chain.between,
        theorem=f"Theorem {3 if convs else 2}, explicit constants",
        entries=FILTER_ENTRIES if convs else "±K/√max(d_k, d_{k−1})",
        setting=setting_of(setting.chain.between),
        replacement=replacement,
    )


FILTER_ENTRIES = "±K/√(q² max(d_k, d_{k−1})), q = 1 for the linear layers"


def _filled_up(values: Sequence[Any], widths: Sequence[int]) -> list[Any]:
    """Linear layers behind convolutions lose nothing."""
    return [*values, *[0] * (len(widths) - 3 - len(values))]


def filters_by_norm(
    setting: Setting, widths: Sequence[int], alpha: float, delta: float
) -> Guarantee:
    """The filters of smallest ℓ¹ norm (appendix C.2); the largest pruned is looked up."""
    caps = None
    if setting.law == "bounded":
        caps = _filled_up([level(*each) for each in setting.looked_up(widths, alpha)], widths)
    return filter_guarantee(
        setting.chain.random_layers(widths, setting.scales),
        _filled_up(setting.counts(widths, alpha), widths),
        delta=delta,
        reach=setting.reach,
        law=setting.law,
        entries=FILTER_ENTRIES,
        setting=setting_of(setting.chain.between),
        caps=caps,
        between=setting.chain.between,
    )


def level(sizes: Tensor, count: int, size: int) -> float:
    """The largest of the smallest magnitudes; at other widths, that of the same share."""
    # Rounded up, so that at other widths the level is never too low.
    return float(sizes[-(-count * len(sizes) // size) - 1])


def magnitude(setting: Setting, widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
    """The smallest entries of each inner layer: Theorem 1 with explicit constants."""
    levels = None
    if setting.law == "bounded":
        levels = [level(*each) for each in setting.looked_up(widths, alpha)]
    return theorem_1_explicit(widths, alpha=alpha, delta=delta, thresholds=levels, **setting.given)


def across_layers(setting: Setting, widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
    """The smallest of all inner layers together; for a given network the threshold is looked up."""
    if setting.law != "bounded":
        return theorem_1_global(widths, alpha=alpha, delta=delta, **setting.given)
    found = setting.looked_up(widths, alpha)
    units = [layer.bound for layer in linear_layers(widths, setting.scales)[1:-1]]
    # In one unit: magnitudes of different layers are compared with each other here.
    magnitudes = [sizes * unit for (sizes, _, _), unit in zip(found, units, strict=True)]
    threshold = _common_level(magnitudes, found)
    # Above 1 a layer lies below the threshold as a whole.
    shares = [min(1.0, threshold / unit) for unit in units]
    below = [
        round(float((sizes <= share).double().mean()) * size)
        for (sizes, _, size), share in zip(found, shares, strict=True)
    ]
    return theorem_1_explicit(widths, counts=below, delta=delta, thresholds=shares, **setting.given)


def _common_level(magnitudes: Sequence[Tensor], found: Sequence[tuple[Tensor, int, int]]) -> float:
    """The largest of the smallest magnitudes of all layers; at other widths each known entry stands
    for as many as the layer has grown by.
    """
    pairs = zip(magnitudes, found, strict=True)
    weights = [torch.full((len(m),), size / len(m)) for m, (_, _, size) in pairs]
    levels, order = torch.cat(list(magnitudes)).sort()
    reached = torch.cat(weights).double()[order].cumsum(0)
    total = sum(count for _, count, _ in found)
    # Counts are sums of float weights: without the slack a count met exactly could ask
    # for one entry more.
    return float(levels[int((reached < total - 1e-6).sum())])


# What the paper says to the same question, of schemes that it has a statement for.


def magnitude_printed(setting: Setting, alpha: float, delta: float) -> Guarantee:
    """Theorem 1 as printed, stated for the smallest hidden width."""
    width = min(setting.chain.widths[1:-1])
    scale, depth = max(setting.scales), len(setting.scales)
    return theorem_1(
        width, depth=depth, alpha=alpha, scale=scale, as_printed=True, **setting.printed
    )


def magnitude_needed(setting: Setting, alpha: float, epsilon: float, delta: float) -> Needed:
    """The width that Theorem 1 as printed asks for."""
    return theorem_1_width(
        depth=len(setting.scales),
        alpha=alpha,
        epsilon=epsilon,
        delta=delta,
        scale=max(setting.scales),
        **setting.printed,
    )


def _random_pruning_options(setting: Setting, delta: float) -> dict[str, Any]:
    """K1 and K2 of Theorem 2 for each law, and proven norm bounds whose failures take half of δ in
    condition (5).
    """
    second, fourth = _MOMENTS[setting.law]
    # The paper has one K1 and one K2 for all layers, so the largest layer decides.
    k, depth = max(setting.scales), len(setting.scales)
    # The induction charges δ_l + Σ(l − i)δ_i = (1 + l(l − 1)/2) failures: half of δ in
    # all.
    failure = delta / (2 + depth * (depth - 1))
    bounds = [
        masked_norm_bound(layer, failure=failure, law=setting.law)
        for layer in linear_layers(setting.chain.widths, setting.scales)
    ]
    norms = NormBounds(bounds=tuple(bounds), failures=(failure,) * depth)
    return {"k1": second * k**2, "k2": fourth * k**4, "norms": norms, **setting.printed}


_MOMENTS = {
    "uniform": (1 / 3, 1 / 5),
    "bounded": (1.0, 1.0),
    "normal": (1.0, 3.0),
    "subgaussian": (1.0, 16.0),  # E w⁴ ≤ ∫ 4t³ · 2e^{−t²/2} dt
}
"""E w² and E w⁴ in units of K; signs have the largest moments of bounded entries."""


def random_guarantee_as_printed(setting: Setting, alpha: float, delta: float) -> Guarantee:
    """Theorem 2 as printed, with proven norm bounds."""
    options = _random_pruning_options(setting, delta)
    return theorem_2(setting.chain.widths, alpha=alpha, as_printed=True, require=False, **options)


def random_needed(setting: Setting, alpha: float, epsilon: float, delta: float) -> Needed:
    """The widths that Theorem 2 as printed asks for."""
    return theorem_2_width(
        depth=len(setting.scales),
        alpha=alpha,
        epsilon=epsilon,
        delta=delta,
        as_printed=True,
        **_random_pruning_options(setting, delta),
    )


# The schemes `plan` can ask about: which theorem speaks, and what the paper says.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way to prune.

    Attributes:
        guarantee: (setting, widths, alpha, delta) ↦ what is proved with explicit constants.
        printed: (setting, alpha, delta) ↦ the same put to the theorem as printed.
        needed: (setting, alpha, epsilon, delta) ↦ the widths its conditions ask for.
        limited: Whether conditions (3) and (4) of the paper limit α.
        replacement: Whether an entry can be drawn twice.
        filters: Whether whole filters go.
    """

    guarantee: Callable[[Setting, Sequence[int], float, float], Guarantee]
    printed: Callable[[Setting, float, float], Guarantee] | None = None
    needed: Callable[[Setting, float, float, float], Needed] | None = None
    limited: bool = False
    replacement: bool = False
    filters: bool = False

    def limit(self, chain: Chain) -> float:
        """The largest α that the paper allows."""
        if not self.limited:
            return 1.0
        if not self.filters:
            return largest_alpha(chain.widths)
        # There are d² filters where a linear layer has D entries: α counts twice.
        return min(1.0, 2 * largest_alpha(chain.widths[: chain.convs + 2]))


SCHEMES: dict[str, Scheme] = {
    "magnitude": Scheme(guarantee=magnitude, printed=magnitude_printed, needed=magnitude_needed),
    "global": Scheme(guarantee=across_layers),
    "random": Scheme(
        guarantee=partial(random_guarantee, True),
        printed=random_guarantee_as_printed,
        needed=random_needed,
        limited=True,
        replacement=True,
    ),
    "random-without": Scheme(guarantee=partial(random_guarantee, False)),
    "filters": Scheme(
        guarantee=partial(random_guarantee, True), limited=True, replacement=True, filters=True
    ),
    "filters-without": Scheme(guarantee=partial(random_guarantee, False), filters=True),
    "filters-magnitude": Scheme(guarantee=filters_by_norm, filters=True),
}
"""The paper has statements for "magnitude" and "random"; for filters it has two free exponents and
one channel count, so that there is no one statement to compare with.
"""


def scheme_for(name: str, chain: Chain) -> Scheme:
    """The scheme of this name: linear chains take those of entries, convolutions those of
    filters."""
    scheme, convolutions = SCHEMES.get(name), bool(chain.convs)
    # A scheme of entries says nothing of filters, and the other way round.
    if scheme is None or scheme.filters != convolutions:
        kind = [n for n, s in SCHEMES.items() if s.filters == convolutions]
        raise ArgumentError(
            f"scheme = {name!r} does not fit a network {'with' if convolutions else 'without'}"
            f" convolutions: give one of {', '.join(map(repr, kind))}. (Widths with kernel= and"
            " input_size= stand for convolutions.)"
        )
    return scheme


# Searches over the explicit guarantees: the smallest width, the most pruning, the probability of
# an error.

WIDEST = 2**24
"""Wider than any layer one could hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A scheme asked about a network at confidence 1 − `delta`, for an error of `epsilon` (None:
    for a guarantee that says something).
    """

    setting: Setting
    scheme: Scheme
    delta: float
    epsilon: float | None

    def shares(self, widths: Sequence[int], alpha: float) -> list[float]:
        """The (expected) share that each pruned layer loses."""
        pairs = zip(
            self.setting.chain.inner(widths), self.setting.counts(widths, alpha), strict=True
        )
        # Drawing with replacement hits fewer positions than draws: 1 − (1 − 1/D)^N of them.
        return [_hit(d, n) if self.scheme.replacement else n / d for d, n in pairs]

    def share(self, widths: Sequence[int], alpha: float) -> float:
        """The (expected) share of all weights of pruned layers that is removed."""
        sizes, shares = self.setting.chain.inner(widths), self.shares(widths, alpha)
        # fsum, so that the order of the layers changes no digit.
        return math.fsum(map(operator.mul, sizes, shares)) / sum(sizes)

    def exponent(self, widths: Sequence[int], alpha: float | None, sparsity: float | None) -> float:
        """α, or the least α that removes at most that share of the inner weights (layers lose whole
        entries, and differ in size).
        """
        if alpha is not None and sparsity is None:
            check_unit(alpha=alpha)
            return alpha
        if alpha is not None or sparsity is None:
            raise ArgumentError("give exactly one of alpha= and sparsity=.")
        check_unit(sparsity=sparsity)
        least, most = (self.share(widths, exponent) for exponent in (1.0, 0.0))
        if not least <= sparsity < most:
            raise ArgumentError(
                f"sparsity = {sparsity:g} corresponds to no alpha in (0, 1) for widths"
                f" {tuple(widths)}: between {least:.3g} and {most:.3g} are possible."
            )
        return _boundary(lambda exponent: self.share(widths, exponent) <= sparsity, 0.0, 1.0)

    def guarantee(
        self, widths: Sequence[int], alpha: float, delta: float | None = None
    ) -> Guarantee:
        """The guarantee of the scheme with explicit constants."""
        asked = self.delta if delta is None else delta
        return self.scheme.guarantee(self.setting, widths, alpha, asked)

    def reached(self, widths: Sequence[int], alpha: float) -> bool:
        """Whether the guarantee is within ε (without ε: says something)."""
        found = self.guarantee(widths, alpha)
        return not found.vacuous if self.epsilon is None else found.error <= self.epsilon

    def smallest_width(self, widths: Sequence[int], alpha: float) -> float:
        """All hidden layers this wide suffice; inf beyond `WIDEST`."""

        def enough(width: int) -> bool:
            return self.reached([widths[0], *[width] * (len(widths) - 2), widths[-1]], alpha)

        high = 1
        while not enough(high):
            high *= 2
            if high > WIDEST:
                return math.inf
        return float(_least(enough, high // 2, high))

    def smallest_alpha(self, widths: Sequence[int]) -> float | None:
        """The most that may be pruned, to three digits; None when not even α = 0.999 is covered."""

        def enough(thousandths: int) -> bool:
            return self.reached(widths, thousandths / 1000)

        return _least(enough, 0, 999) / 1000 if enough(999) else None

    def probability(self, widths: Sequence[int], alpha: float) -> float | None:
        """1 − the smallest δ whose error is at most ε; 0 when none is, None without ε."""
        if self.epsilon is None:
            return None
        epsilon = self.epsilon

        # On a logarithmic scale: interesting failure probabilities span many powers of ten.
        def enough(exponent: float) -> bool:
            return self.guarantee(widths, alpha, 10**exponent).error <= epsilon

        highest = math.log10(0.999)
        return 1 - 10 ** _boundary(enough, -30.0, highest) if enough(highest) else 0.0


def _hit(size: int, draws: int) -> float:
    # 1 − (1 − 1/D)^N by logarithms: for large D the power itself would round to 1.
    return 1.0 if size == 1 else -math.expm1(draws * math.log1p(-1 / size))


def _least(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest whole number above `low` for which it holds. It holds at `high`, and once true
    stays true.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _boundary(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where it begins to hold between `low` and `high`, by bisection from above."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def binding_of(found: Guarantee, epsilon: float | None, layers: Sequence[PlannedLayer]) -> str:
    """What stands in the way of the goal, in words; "none" where nothing does."""
    if found.failed:
        return str(found.failed[0])
    if found.probability <= 0:
        return f"probability: {found.probability:.4g} <= 0"
    most = max(layers, key=lambda layer: layer.contribution)
    where = f", of which {most.name} adds {most.contribution:.4g}"
    if not found.error < found.trivial:
        return f"error against a constant: {found.error:.4g} >= {found.trivial:.4g}{where}"
    if epsilon is not None and found.error > epsilon:
        return f"error: {found.error:.4g} > epsilon = {epsilon:.4g}{where}"
    return "none"


def plan(
    model_or_widths: nn.Module | Sequence[int],
    *,
    sparsity: float | None = None,
    alpha: float | None = None,
    epsilon: float | None = None,
    delta: float = 0.05,
    scheme: SchemeName = "magnitude",
    scale: float | None = None,
    lipschitz: float | None = None,
    constant: float = LATALA_CONSTANT,
    input_size: int | Sequence[int] | None = None,
    law: Law | None = None,
    kernel: int | None = None,
) -> Plan:
    """The guarantee for pruning the inner layers of a network, and what would be needed for more.

    Give `alpha` (each inner layer loses ⌊D^{1−α}⌋ of its D entries) or the `sparsity` of the inner
    layers (as much of it as whole entries allow). `scale` is K of the entries' range ±K/√max(d_k,
    d_{k−1}), 1 for widths; `lipschitz` is the product of the Lipschitz constants of the
    activations, 1 for widths.

    A model must be one chain of layers: an nn.Sequential, or any module whose captured graph is a
    single path. Biases, batch norms and activations with σ(0) ≠ 0 or larger constants are read off
    it and enter the bound (`guarantee`); everything else is refused by name. `law` says
    what is assumed of the entries:

    * "uniform", the default for widths, with the K of the largest entry;
    * "bounded", the default for a model: no more than independent entries of mean zero in that
      range (for magnitude pruning fair signs independent of the magnitudes, which are looked up);
    * "normal", where K/√max is the standard deviation, and "subgaussian", where it is the root of
      the variance proxy (for a model K comes from the root mean square of the entries).

    Where the model's entries speak against it, `misfits` says so. The schemes:

    * "magnitude" (`theorem_1_explicit`): the smallest entries of each inner layer; "global"
      (`theorem_1_global`): as many of all inner layers together;
    * "random" (`theorem_2_explicit`): that many positions drawn with replacement;
      "random-without": drawn without;
    * for convolutions with linear layers behind them and `input_size` (height and width),
      "filters" (`theorem_3_explicit`): ⌊D^{1−α/2}⌋ of D filters of each inner convolution are drawn
      with replacement, "filters-without": without, "filters-magnitude": those of smallest ℓ¹ norm
      (`theorem_3_magnitude`). The range is ±K/(q√max(d_k, d_{k−1})); zero padding and strides are
      covered by the circular convolution on the padded map. Linear layers lose nothing.

    Widths with a `kernel` and `input_size` stand for circular convolutions that keep their maps, of
    d_0 … d_{l−1} channels, and a linear layer. No unknown constant enters; `constant` (Lemma 4's C)
    is used for what the paper says.

    >>> print(plan([784, 1024, 1024, 10], alpha=0.5, delta=0.01))
    magnitude pruning of 1 inner layer(s), widths 784-1024-1024-10, alpha = 0.5 (0.0977 % of the
    inner weights).
    ...
    """
    chain = read_chain(model_or_widths, input_size, kernel)
    widths = chain.widths
    check_widths(widths)
    check_positive(constant=constant, **({} if epsilon is None else {"epsilon": epsilon}))
    check_unit(delta=delta)
    setting = setting_of_chain(chain, scale, lipschitz, constant, law)
    theorem = scheme_for(scheme, chain)
    question = PlanQuestion(setting=setting, scheme=theorem, delta=delta, epsilon=epsilon)
    exponent = question.exponent(widths, alpha, sparsity)
    # First the question itself; the searches below ask the same at other sizes.
    found = question.guarantee(widths, exponent)
    shares = [0.0, *_filled_up(question.shares(widths, exponent), widths), 0.0]
    layers = tuple(
        PlannedLayer(name=layer.name, shape=(rows, columns), sparsity=share, **asdict(bound))
        for layer, rows, columns, share, bound in zip(
            chain.layers, widths[1:], widths[:-1], shares, found.layers, strict=True
        )
    )
    most = question.smallest_alpha(widths)
    printed = theorem.printed and theorem.printed(setting, exponent, delta)
    needed = None
    if printed and theorem.needed:
        # Without ε the least one can ask for: an error below what a constant would have.
        goal = printed.trivial if epsilon is None else epsilon
        if 0 < goal < math.inf:
            needed = theorem.needed(setting, exponent, goal, delta)
    read = [(layer.name, misfit(layer.weight, setting.law)) for layer in chain.layers if layer.read]
    return Plan(
        scheme=scheme,
        widths=widths,
        alpha=exponent,
        sparsity=question.share(widths, exponent),
        delta=delta,
        epsilon=epsilon,
        law=setting.law,
        error=found.error,
        trivial=found.trivial,
        layers=layers,
        probability=question.probability(widths, exponent),
        smallest_width=question.smallest_width(widths, exponent),
        smallest_alpha=most,
        most_sparsity=None if most is None else question.share(widths, most),
        largest_alpha=theorem.limit(chain),
        binding=binding_of(found, epsilon, layers),
        vacuous=found.vacuous,
        printed=printed,
        needed=needed,
        assumptions=found.assumptions,
        misfits=tuple(f"{name}: {text}" for name, text in read if text is not None),
    )
