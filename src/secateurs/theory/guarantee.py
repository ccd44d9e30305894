"""What a theorem promises: a bound, its probability, and the conditions it stands on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral

from secateurs.errors import ArgumentError, TheoryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of a theorem: `value` must be at least `limit`."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        # ≥: theorems state their conditions so, and equality is allowed.
        return self.value >= self.limit

    def __str__(self) -> str:
        relation = ">=" if self.holds else "< needed"
        return f"{self.name}: {self.value:.6g} {relation} {self.limit:.6g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBound:
    """One layer in a guarantee: of its entries (filters) `removed` go; ‖W*‖ ≤ `norm`, ‖W* − W‖ ≤
    `change`.

    `contribution` is its part of the error, `failure` its part of the probability that is given
    away.
    """

    removed: int = 0
    norm: float
    change: float = 0.0
    contribution: float = 0.0
    failure: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """sup_x ‖f(x) − F(x)‖ ≤ `error` with probability at least `probability`, if the conditions
    hold.

    `trivial` bounds sup_x ‖F(x) − F(0)‖: the constant F(0), zero without biases, errs no more than
    that. Of the explicit theorems no error exceeds what the sizes of both networks' outputs allow,
    2 · trivial without biases (the proof, and why not `trivial` once, is below); from
    `trivial` on the guarantee is `vacuous`. Their `layers` say where the error comes from.
    """

    theorem: str
    error: float
    probability: float
    trivial: float
    conditions: tuple[Condition, ...] = ()
    assumptions: tuple[str, ...] = field(default=())
    layers: tuple[LayerBound, ...] = ()

    @property
    def failed(self) -> tuple[Condition, ...]:
        """The conditions that do not hold."""
        return tuple(condition for condition in self.conditions if not condition.holds)

    @property
    def vacuous(self) -> bool:
        """True when the statement says nothing: no probability left, no better than zero, or a
        condition fails.
        """
        return (
            self.probability <= 0
            # `not <`: an error that is NaN or equal to the trivial bound says nothing
            # either.
            or not self.error < self.trivial
            or bool(self.failed)
        )

    def require(self) -> "Guarantee":
        """This guarantee, or an error that names every condition that fails, with the numbers."""
        if self.failed:
            raise TheoryError(f"{self.theorem} does not apply: {'; '.join(map(str, self.failed))}.")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """The widths that each condition of a theorem asks for, as log10 (they can exceed any
    float).
    """

    log10: dict[str, float]

    @property
    def binding(self) -> str:
        """The condition that asks for most."""
        return max(self.log10, key=lambda name: self.log10[name])

    @property
    def width(self) -> float:
        """The smallest width that meets all of them; inf beyond 10^300."""
        exponent = self.log10[self.binding]
        return (
            # The slack keeps a width that is met exactly from being rounded up to the
            # next one.
            float(max(1, math.ceil(10**exponent - 1e-9))) if exponent < 300 else math.inf
        )


def stated_guarantee(
    theorem: str,
    *,
    as_printed: bool,
    error: float,
    trivial: float,
    loads: float,
    rest: float,
    constant: float,
    assumptions: Sequence[str],
    conditions: Sequence[Condition] = (),
) -> Guarantee:
    """A theorem in its stated form, which holds with probability `loads` · `rest` and stands on
    Lemma 4: Theorems 1, 2 and 3 end here.
    """
    return Guarantee(
        theorem=f"{theorem} as printed" if as_printed else theorem,
        error=error,
        # A rest below zero stays as it is: times the loads it would look nearer to zero, and times
        # another factor below zero like a probability.
        probability=loads * rest if rest > 0 else rest,
        trivial=trivial,
        conditions=tuple(conditions),
        assumptions=(*assumptions, f"Lemma 4 with C = {constant:.4g} (measured, not proven)"),
    )


# How far the output of a chain moves when its inner layers do: the part of Theorems 1 to 3 without
# chance.
#
# Layer k maps y_{k−1} to σ_k(W_k y_{k−1} + b_k), σ_k is L_k-Lipschitz, and only inner W_k change.
# If ‖W*_k‖ ≤ N_k before, ‖W_k‖ ≤ M_k after and ‖W*_k − W_k‖ ≤ η_k, then
#
#     ‖y*_k‖ ≤ R_k = L_k N_k R_{k−1} + ‖σ_k(b_k)‖,   because σ_k(Wy + b) lies within L_k‖Wy‖ of
#     σ_k(b), ‖y_k − y*_k‖ ≤ L_k (M_k ‖y_{k−1} − y*_{k−1}‖ + η_k R_{k−1}),
#
# so sup‖f − F‖ ≤ Σ_k η_k L_k R_{k−1} Π_{j>k} L_j M_j. That sum grows beyond what one knows without
# it: if ‖W_k‖ ≤ N_k, too, both y_k and y*_k lie within L_k N_k R_{k−1} of σ_k(b_k), so that
#
#     ‖y_k − y*_k‖ ≤ 2 L_k N_k R_{k−1},
#
# and the smaller of the two is taken behind every layer. Without biases the error is thus never
# more than twice the `trivial` bound reach · Π L_k N_k. Once that bound does not hold: with two
# pruned layers what is kept can point away from the whole, and there are matrices, every one and
# every part of norm at most N_k, with ‖W*_3 W*_2 − W_3 W_2‖ > N_3 N_2.
#
# The chance is paid for already. Of l = m + 2 layers m are pruned. The limit at the c-th of them
# (c ≥ 2, since η ≤ N) asks for ‖W*‖ ≤ N at all layers (not at the m-th, if c < m), for ‖W‖ ≤ N at
# no more than m, and for η at the m − c behind it: at most 3m events, and 3m are charged for drawn
# masks. For the smallest weights W is the mean of W* given the kept entries, whose removed ones
# have fair signs, so its exponential moments are no larger (Jensen); there M = N + η needs no
# event, and at most m + 2 + c + 2(m − c) ≤ 3m + 2 are needed of the 3m + 2 that are charged (of 2m
# + 2 with known thresholds, 2m + 3 with one threshold for all layers, where the m − c thresholds
# drop out).
#
# Biases, and σ_k(0) ≠ 0, drop out of the difference of two layers but not out of R_{k−1}, the size
# of what a changed layer is fed: the paper, which has neither, says too little with them.


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


def setting_of(between: Sequence[Between] | None) -> str:
    """The assumption about all that is not a weight."""
    if between is None:
        return "activations Lipschitz with σ(0) = 0, no biases, ‖x‖₂ ≤ 1"
    return "activations and biases as given, in evaluation mode, ‖x‖₂ ≤ 1"


def telescope(
    widths: Sequence[int],
    layers: Sequence[LayerBound],
    kept: Sequence[float],
    between: Sequence[Between] | None,
    reach: float,
) -> tuple[tuple[LayerBound, ...], float]:
    """The layers with their parts of the error, and reach · Π L_k N_k, which bounds how far F moves
    on the unit ball.

    `kept` has a bound on ‖W‖ of each layer; `between` starts with what the input passes before
    layer 1; `reach` multiplies everything.
    """
    behind = [Between()] * len(widths) if between is None else list(between)
    if len(behind) != len(widths):
        raise ArgumentError(
            f"between has {len(behind)} entries; expected {len(widths)}, one for the input and one "
            "for each layer."
        )
    parts = _contributions(widths, layers, kept, behind)
    bounds = tuple(
        replace(layer, contribution=reach * part) for layer, part in zip(layers, parts, strict=True)
    )
    moved = math.prod(b.lipschitz for b in behind) * math.prod(layer.norm for layer in layers)
    return bounds, reach * moved


def _contributions(
    widths: Sequence[int],
    layers: Sequence[LayerBound],
    kept: Sequence[float],
    behind: Sequence[Between],
) -> list[float]:
    """The part of every layer in ‖y_l − y*_l‖, never more than the sizes of both allow."""
    # ‖x‖ ≤ 1, after whatever stands before the first layer.
    size = behind[0].lipschitz + behind[0].at_zero(widths[0])
    parts: list[float] = []
    for width, layer, remains, sigma in zip(widths[1:], layers, kept, behind[1:], strict=True):
        # Not computed where nothing changes: 0 · ∞ would be NaN in a very wide or
        # deep chain.
        parts = [sigma.lipschitz * remains * part if part else 0.0 for part in parts]
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


# What the statements of both papers are asked with, checked; powers that may leave float64.


def check_unit(**values: float) -> None:
    """Every value lies strictly between 0 and 1."""
    _refuse(
        [
            f"{name} = {value:g} is not in (0, 1)"
            for name, value in values.items()
            # This form refuses NaN too.
            if not 0 < value < 1
        ]
    )


def check_positive(**values: float) -> None:
    """Every value is positive and finite."""
    wrong = [f"{name} = {value:g} is not positive and finite" for name, value in values.items()]
    _refuse(
        [
            text
            for text, value in zip(wrong, values.values(), strict=True)
            if not 0 < value < math.inf
        ]
    )


def check_counts(counts: Sequence[int] | None, layers: int, alpha: float | None) -> list[int]:
    """How much each inner layer loses, where it is not α that says so."""
    if (counts is None) == (alpha is None):
        raise ArgumentError(
            "give either alpha= or counts=, not both: how much each inner layer loses."
        )
    found = list(counts or ())
    if len(found) != layers:
        raise ArgumentError(f"counts has {len(found)} entries; there are {layers} inner layers.")
    _refuse(
        [f"counts holds {n!r}, not a number of entries" for n in found if _not_whole(n) and n != 0]
    )
    return found


def check_moments(second: float, fourth: float, names: str) -> None:
    """E a⁴ ≥ (E a²)²: bounds on the two that no random variable can attain together are a slip."""
    # With slack: moments measured on data or typed with few digits are meant to be
    # equal.
    if fourth < second**2 * (1 - 1e-5):
        raise TheoryError(
            f"{names} = {second:g}, {fourth:g}: E a⁴ >= (E a²)² always, so the second moment is at"
            f" most {math.sqrt(fourth):.6g}; give that, or the right fourth moment."
        )


def check_depth(depth: int) -> None:
    """At least one layer lies between the first and the last."""
    check_whole(depth=depth)
    if depth < 3:
        raise TheoryError(
            f"depth = {depth}: the theorems prune the inner layers 2..l-1 only, so l >= 3 layers"
            " are needed."
        )


def check_whole(**values: int) -> None:
    """Every value is a whole number of at least one."""
    _refuse(
        [
            f"{name} = {value!r} {_not_whole(value)}"
            for name, value in values.items()
            if _not_whole(value)
        ]
    )


def check_widths(widths: Sequence[int]) -> None:
    """Widths d_0…d_l of at least three layers, each a whole number of at least one."""
    if isinstance(widths, str) or not isinstance(widths, Sequence):
        raise ArgumentError(
            f"widths = {widths!r}: give whole numbers d_0…d_l such as [784, 300, 300, 10]."
        )
    _refuse(
        [
            f"width d_{k} = {width!r} {_not_whole(width)}"
            for k, width in enumerate(widths)
            if _not_whole(width)
        ]
    )
    check_depth(len(widths) - 1)


def _not_whole(value: object) -> str:
    # True is an Integral of value 1, but passing it is a mistake. numpy's integers are accepted.
    if not isinstance(value, Integral) or isinstance(value, bool):
        return "is not a whole number"
    return "" if value >= 1 else "is below 1"  # type: ignore[operator]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ArgumentError(f"{'; '.join(problems)}.")


# Powers that may leave the range of float64, and the floor that the paper takes of them.


def floor_power(base: int, exponent: float) -> int:
    """⌊base^exponent⌋; the slack of 1e-12 keeps 64^(7/6) at 128 where floating point says
    127.99999999999994.
    """
    return math.floor(math.pow(base, exponent) * (1 + 1e-12))


def power(base: float, exponent: float) -> float:
    """base^exponent, inf beyond any float."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def doublings(layers: int) -> float:
    """log10(2^layers − 1), for any number of layers."""
    # expm1 keeps the digits of 1 − 2^−l, and nothing overflows where 2^l would.
    return layers * math.log10(2) + math.log10(-math.expm1(-layers * math.log(2)))
