"""Norms of random matrices and loads of random bins: Lemmas 3 to 6, with explicit constants where
they exist.

Source: Qian & Klabjan (2021), appendix A.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from scipy import optimize, special, stats
from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.guarantee import (
    Condition,
    check_positive,
    check_unit,
    check_whole,
    floor_power,
)

UNIFORM_BY_NORMAL = math.sqrt(2 * math.pi) / 4
"""U[−1, 1] lies below N(0, s²) in the convex order exactly when s ≥ √(2π)/4 ≈ 0.6267 (equal E|·|).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConstants:
    """‖B‖₂ ≤ c0 with probability at least 1 − 2 exp(−4 δ0 n)."""

    c0: float
    delta0: float

    def __post_init__(self) -> None:
        check_positive(c0=self.c0, delta0=self.delta0)

    def failure(self, width: int) -> float:
        """2 exp(−4 δ0 n)."""
        return 2 * math.exp(-4 * self.delta0 * width)


def lemma_3(scale: float = 1.0, *, slack: float = 0.5) -> NormConstants:
    """Lemma 3: B is n1 × n2 with iid uniform entries on ±K/√n, n = max(n1, n2): ‖B‖₂ ≤ c0 w.p. ≥ 1
    − 2e^{−4δ0 n}.

    The paper proves that c0 and δ0 exist. Here they are explicit, for every slack u > 0: c0 =
    K(√(2π)/2 + u), δ0 = u²/32. Proof: U[−a, a] is below N(0, (√(2π)a/4)²) in the convex order, so
    E‖B‖ ≤ (√(2π)/4)(K/√n)(√n1 + √n2) ≤ K√(2π)/2 (Gordon), and ‖B‖ is convex and 1-Lipschitz in
    entries of range 2K/√n, so P(‖B‖ > E‖B‖ + Ku) ≤ exp(−u²n/8) (Boucheron, Lugosi & Massart,
    Theorem 6.10).

    >>> constants = lemma_3(1.0, slack=0.5)
    >>> round(constants.c0, 3), constants.delta0
    (1.753, 0.0078125)
    """
    check_positive(scale=scale, slack=slack)
    return NormConstants(c0=scale * (2 * UNIFORM_BY_NORMAL + slack), delta0=slack**2 / 32)


def uniform_norm_bound(rows: int, columns: int, *, bound: float, failure: float) -> float:
    """‖B‖₂ ≤ this w.p. ≥ 1 − failure, for independent uniform entries on ±bound. Proof as in
    `lemma_3`.
    """
    check_positive(rows=rows, columns=columns, bound=bound)
    check_unit(failure=failure)
    mean = UNIFORM_BY_NORMAL * (math.sqrt(rows) + math.sqrt(columns))
    return bound * (mean + math.sqrt(8 * math.log(1 / failure)))


def measured_delta0(width: int, *, level: float) -> float:
    """The δ0 of the paper's Table 2: the solution of 1 − 2e^{−4δ0 n} = level; it does not depend on
    any matrix.
    """
    check_positive(width=width)
    check_unit(level=level)
    return math.log(2 / (1 - level)) / (4 * width)


# Lemma 2: the norm of a matrix of independent sub-Gaussian entries, with stated constants.

NET = math.log(9)
"""A ¼-net of the unit sphere of Rⁿ has at most 9ⁿ points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGaussianNorm:
    """P(‖A‖₂ > constant·(√n1 + √n2) + t) ≤ factor · exp(−rate·t²)."""

    constant: float
    rate: float
    factor: float

    def failure(self, excess: float) -> float:
        """The right-hand side at t."""
        return self.factor * math.exp(-self.rate * excess**2)


def lemma_2() -> SubGaussianNorm:
    """Lemma 2 (Rudelson & Vershynin 2010): P(‖A‖₂ > C(√n1 + √n2) + t) ≤ 2e^{−ct²} for proxies ≤ 1.

    The paper says that such C and c exist. Here C = 2√(2 ln 9) ≈ 4.19 and c = 1/8, with 1 in place
    of 2.
    Proof: xᵀAy is sub-Gaussian with proxy 1 for unit x, y. With ¼-nets of both spheres, of at most
    9^{n1} and 9^{n2} points, ‖A‖ ≤ 2·max xᵀAy over the nets, so P(‖A‖ > 2s) ≤ 9^{n1+n2}e^{−s²/2}.
    Take 2s = √(8(n1+n2) ln 9) + t ≤ C(√n1 + √n2) + t and use (a + b)² ≥ a² + b².

    >>> round(lemma_2().constant, 3), lemma_2().rate
    (4.193, 0.125)
    """
    # 1 in front, and not the paper's 2: the nets bound xᵀAy itself, and −x lies in the sphere, too.
    return SubGaussianNorm(constant=2 * math.sqrt(2 * NET), rate=1 / 8, factor=1.0)


def subgaussian_norm_bound(rows: int, columns: int, *, scale: float = 1.0, failure: float) -> float:
    """‖A‖₂ ≤ 2·scale·√(2((n1 + n2) ln 9 + ln(1/failure))) w.p. ≥ 1 − failure: Lemma 2's proof.

    Args:
        scale: the root of the largest variance proxy.

    >>> round(subgaussian_norm_bound(64, 64, failure=0.01), 1)
    47.8
    """
    check_whole(rows=rows, columns=columns)
    check_positive(scale=scale)
    check_unit(failure=failure)
    return 2 * scale * math.sqrt(2 * ((rows + columns) * NET + math.log(1 / failure)))


Law = Literal["uniform", "bounded", "normal", "subgaussian"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomLayer:
    """rows × columns positions of `taps` independent mean-zero entries on ±bound; `frequencies`
    matrices P^(u,v).
    """

    rows: int
    columns: int
    bound: float
    taps: int = 1
    frequencies: int = 1

    @property
    def positions(self) -> int:
        return self.rows * self.columns


# log E cosh(xw) of one entry for each law: what the matrix Chernoff bound asks of it.


def log_mixture(log_moment: float, share: float) -> float:
    """log(1 + p(e^g − 1)), for any g ≥ 0."""
    # e^30 still has all its digits beside 1; beyond, the larger term is taken out
    # first.
    if log_moment < 30:
        return math.log1p(share * math.expm1(log_moment))
    return log_moment + math.log(share + (1 - share) * math.exp(-log_moment))


def _log_uniform(x: float) -> float:
    """log(sinh(x)/x)."""
    return (
        # A series near 0, where sinh(x)/x − 1 would lose its digits.
        math.log1p(x**2 / 6 + x**4 / 120)
        if x < 1e-2
        else x + math.log(-math.expm1(-2 * x) / (2 * x))
    )


def log_sign(x: float) -> float:
    """log cosh(x)."""
    return (
        # The same near 0; for large x cosh itself would overflow.
        math.log1p(x**2 / 2 + x**4 / 24)
        if x < 1e-2
        else x + math.log1p(math.exp(-2 * x)) - math.log(2)
    )


def _log_normal(x: float) -> float:
    """log E cosh(xZ) = x²/2 for a normal Z, a bound for symmetric sub-Gaussian ones of proxy 1."""
    return x * x / 2


LOG_MOMENT: dict[str, Callable[[float], float]] = {
    "uniform": _log_uniform,
    "bounded": log_sign,
    "normal": _log_normal,
    "subgaussian": _log_normal,
}


def check_law(law: str) -> None:
    """One of the laws that have such a moment."""
    if law not in LOG_MOMENT:
        raise ArgumentError(f"law = {law!r}: give one of {', '.join(map(repr, LOG_MOMENT))}.")


@lru_cache(maxsize=4096)
def chernoff_bound(
    layer: RandomLayer, share: float, failure: float, law: Law, cap: float | None
) -> float:
    """Every x gives a bound: the search over x need not be exact."""
    side = max(layer.rows, layer.columns)
    level = math.log(layer.frequencies * (layer.rows + layer.columns) / failure)
    moment = LOG_MOMENT[law]

    def bound(log_x: float) -> float:
        x = math.exp(log_x)
        each = layer.taps * moment(x)
        # Π cosh x|w_i| ≤ cosh x Σ|w_i|, and conditioning only helps (Harris)
        if cap is not None:
            each = min(each, log_sign(cap * x))
        return (level + side * log_mixture(each, share)) / x

    return float(
        # Over log x, since sensible values of x span many powers of ten.
        optimize.minimize_scalar(bound, bounds=(-25.0, 5.0), method="bounded").fun
    )


# How many positions a random mask hits, and how many frequencies a map has.


def hit_share(draws: int | None, positions: int, *, replacement: bool = True) -> float:
    """The chance p that a position is hit; 1 without a mask.

    With replacement p = 1 − e^{−N/D}, of Poisson(N) draws among D positions. Without, p = N/D, of
    independent hits: Binomial(D, N/D) of them, whose median is its whole mean N, so that the
    argument of step 1 goes through with one law in place of the other.

    >>> hit_share(1, 4, replacement=False), round(hit_share(1, 4), 3)
    (0.25, 0.221)
    """
    if draws is None:
        return 1.0
    if replacement:
        # expm1 keeps the digits where few positions are drawn.
        return -math.expm1(-draws / positions)
    if draws > positions:
        raise ArgumentError(f"cannot draw {draws} of {positions} positions without replacement.")
    return draws / positions


def half_spectrum(map_size: int | tuple[int, ...], taps: int) -> int:
    """Frequencies (u, v) of the maps up to conjugation; a kernel of one tap has the same matrix at
    all of them.
    """
    sides = (map_size, map_size) if isinstance(map_size, int) else map_size
    # Frequencies that are their own conjugates: 0, and n/2 on even axes.
    real = math.prod(1 if side % 2 else 2 for side in sides)
    return 1 if taps == 1 else (math.prod(sides) + real) // 2


# The normal law above a masked entry in the convex order: the scale of step 4.


def normal_scale(share: float, law: Law = "uniform") -> float:
    """s(p): a masked entry (of range ±1, hit with chance p) lies below N(0, s²) in the convex
    order.

    Signs: E(X − t)₊ = p(1−t)/2 touches the normal at z = t/s with Q(z) = p/2, so s = (p/2)/ϕ(z).
    Uniform: p(1−t)²/4 touches it where, with Mills' ratio r = Q/ϕ, s = r/(2 − zr) and p = ϕ r(2 −
    zr)/(1 − zr).

    >>> scales = normal_scale(1.0), normal_scale(0.1), normal_scale(1.0, "bounded")
    >>> tuple(round(scale, 4) for scale in scales)
    (0.6267, 0.3381, 1.2533)
    """
    if law == "bounded":
        # ndtri of a small p/2 is exact, of 1 − p/2 it would not be.
        return share / 2 / _density(-float(special.ndtri(share / 2)))
    # Nothing masked: the law touches the normal in the middle.
    z = 0.0 if share >= 1 else _touching(share)
    mills = _mills(z)
    return mills / (2 - z * mills)


_FAR = 8.0
"""Beyond this the share is below 1e-13; the scale of a larger share is an upper bound."""


def _touching(share: float) -> float:
    return (
        _FAR
        if _share_at(_FAR) >= share
        else float(optimize.brentq(lambda z: _share_at(z) - share, 0.0, _FAR))
    )


def _share_at(z: float) -> float:
    mills = _mills(z)
    return _density(z) * mills * (2 - z * mills) / (1 - z * mills)


def _mills(z: float) -> float:
    # erfcx, the scaled complement: Q and ϕ both underflow for large z, their ratio does
    # not.
    return math.sqrt(math.pi / 2) * float(special.erfcx(z / math.sqrt(2)))


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


# Gordon's mean and a concentration around it, for one matrix: steps 4 and 5.


def _range_tail(law: Law) -> "Callable[[RandomLayer, float, float], float]":
    """Step 4: Gordon for the mean, Talagrand's concentration for entries of bounded range."""

    def tail(layer: RandomLayer, share: float, failure: float) -> float:
        mean = normal_scale(share, law) * (math.sqrt(layer.rows) + math.sqrt(layer.columns))
        return mean + math.sqrt(8 * math.log(1 / failure))

    return tail


def _normal_tail(layer: RandomLayer, share: float, failure: float) -> float:
    """Gordon, and concentration of a 1-Lipschitz function of normal variables; masks only help."""
    mean = math.sqrt(layer.rows) + math.sqrt(layer.columns)
    return mean + math.sqrt(2 * math.log(1 / failure))


def _net_tail(layer: RandomLayer, share: float, failure: float) -> float:
    """Lemma 2: a zero is sub-Gaussian too."""
    return subgaussian_norm_bound(layer.rows, layer.columns, failure=failure)


MATRIX_TAIL: "dict[str, Callable[[RandomLayer, float, float], float]]" = {
    "uniform": _range_tail("uniform"),
    "bounded": _range_tail("bounded"),
    "normal": _normal_tail,
    "subgaussian": _net_tail,
}


# How large is the part of a random matrix that a random mask removes? Tails with explicit
# constants [ours].
#
# Setting: independent mean-zero entries on ±a; N positions drawn uniformly with replacement,
# independent of the entries. R keeps the drawn entries and is zero elsewhere. For convolutions a
# position is a whole filter (`taps` entries) and the norm is the largest of the matrices P^(u,v)
# of Lemma 7.
#
# 1. *Filling in.* Given the mask, E g(R) grows with the mask for convex g (Jensen: the entries
#    filled in have mean zero). With M ~ Poisson(N) draws instead of N, P(M ≥ N) ≥ ½ (the median of
#    a Poisson law of whole mean is its mean), so E g(R) ≤ 2 E g(R') for convex g ≥ 0, and in R'
#    every position is hit independently with p = 1 − e^{−N/D}. No loads of rows and columns are
#    needed, and no 3N/n.
# 2. *Domination.* Entries on ±a with mean zero lie below the sign ±a in the convex order: signs
#    replace any bounded law.
# 3. *Matrix Chernoff.* Let H be the Hermitian dilation. A position contributes H(zE_st) with z =
#    Σ_ij ω_ij F_ij, and E exp(θH(zE_st)) = I + (E cosh θ|z| − 1) Π with Π the projection on
#    coordinates s, t. As E cosh θ|x + εv| ≤ cosh θ|x| cosh θ|v| for a sign ε (cosh√· is convex), E
#    cosh θ|z| ≤ m(θa)^taps with m(x) = sinh(x)/x (uniform) or cosh(x) (signs). So, with log φ =
#    log(1 + p(m^taps − 1)) and Lieb's inequality, P(‖R‖ ≥ ta) ≤ 2 F (rows + columns) exp(−xt +
#    max(rows, columns) log φ(x)) for every x = θa > 0, F frequencies.
# 4. *Gordon and Talagrand* (one tap). An entry of R' lies below s(p)·a·N(0, 1) in the convex
#    order, so E‖R'‖ ≤ s a(√rows + √columns), and log E exp λ(‖R'‖ − E‖R'‖) ≤ 2a²λ² (Boucheron,
#    Lugosi & Massart, Theorem 6.10), whence ‖R‖ ≤ a(s(√rows + √columns) + √(8 log(2/failure))).
#
# 5. *Normal entries* have no range: E cosh θZ = e^{θ²/2} in step 3, and in step 4 Gordon's √rows +
#    √columns with the Gaussian tail √(2 log(1/failure)), which masking only lowers. Symmetric
#    *sub-Gaussian* ones have the same moment in step 3, and the net of Lemma 2 in place of step 4.
# 6. *Filters cut by their ℓ¹ norm* (appendix C.2): given the magnitudes signs are fair, and E cosh
#    θ|z| ≤ Π cosh θ|w_i| ≤ cosh θ‖w‖₁ (log cosh is convex, and 0 at 0). Given that ‖w‖₁ lies below
#    a threshold, E cosh θ|z| is also no more than without that (Harris: one function grows with
#    the magnitudes, the event shrinks). The smaller exponent is taken at each θ.
#
# Both hold for every size; the smaller one is taken. With N = None nothing is masked and the
# factors 2 of step 1 fall away; the part that is kept obeys the same bound, by filling in.


def masked_norm_bound(
    layer: RandomLayer,
    *,
    draws: int | None = None,
    failure: float,
    law: Law = "uniform",
    replacement: bool = True,
    cap: float | None = None,
) -> float:
    """‖R‖₂ ≤ this w.p. ≥ 1 − failure, R the entries at `draws` random positions (None: all of
    them).

    Args:
        law: "uniform" on ±bound; "bounded": any independent mean-zero entries there, not
            necessarily alike; "normal": independent normal entries of standard deviation at most
            bound; "subgaussian": independent symmetric ones with variance proxies up to bound².
        replacement: whether a position can be drawn twice (appendix E.2 has it both ways).
        cap: a bound on the ℓ¹ norm of the entries of one position, in units of `bound`; then signs
            must be fair given the magnitudes.

    >>> import math
    >>> layer = RandomLayer(rows=128, columns=128, bound=1 / math.sqrt(128))
    >>> round(masked_norm_bound(layer, draws=1448, failure=0.01), 3)
    0.856
    """
    check_whole(
        rows=layer.rows,
        columns=layer.columns,
        taps=layer.taps,
        frequencies=layer.frequencies,
    )
    check_positive(bound=layer.bound)
    check_unit(failure=failure)
    check_law(law)
    # An empty mask, for which the logarithms below do not exist.
    if draws == 0:
        return 0.0
    if draws is not None:
        check_whole(draws=draws)
    share = hit_share(draws, layer.positions, replacement=replacement)
    whole = _tail(layer, 1.0, failure, law, cap)
    # Filling everything in costs no factor 2, so a mask that hits nearly all is better bounded by
    # the whole.
    return layer.bound * (
        whole
        if draws is None
        # failure/2: the factor 2 of step 1 (Poisson in place of a fixed number).
        else min(whole, _tail(layer, share, failure / 2, law, cap))
    )


def _tail(
    layer: RandomLayer,
    share: float,
    failure: float,
    law: Law,
    cap: float | None = None,
) -> float:
    chernoff = chernoff_bound(layer, share, failure, law, cap)
    # Step 4 speaks of one matrix; filters have one per frequency.
    if layer.taps > 1 or layer.frequencies > 1:
        return chernoff
    return min(chernoff, MATRIX_TAIL[law](layer, share, failure))


# Loads of random bins: Lemmas 5 and 6, and the exact tail beside them.


def lemma_5(excess: float, mean: float, *, as_printed: bool = False) -> float:
    """Lemma 5 (Chernoff): P(X ≥ (1+t)μ) ≤ exp(−μ((1+t)ln(1+t) − t)) for sums of independent 0/1
    variables.

    As printed, exp(−t²μ/(1+t)): stronger than any Chernoff bound and false (docs/errata.md).

    >>> truth = stats.binom.sf(1099, 100_000, 0.01)
    >>> bool(lemma_5(0.1, 1000) > truth > lemma_5(0.1, 1000, as_printed=True))
    True
    """
    check_positive(excess=excess, mean=mean)
    return math.exp(-mean * chernoff_exponent(excess, as_printed=as_printed))


def chernoff_exponent(excess: float, *, as_printed: bool = False) -> float:
    """(1+t)ln(1+t) − t; as printed t²/(1+t)."""
    return (
        excess**2 / (1 + excess)
        if as_printed
        # log1p keeps the digits of small t, where the two terms nearly cancel.
        else (1 + excess) * math.log1p(excess) - excess
    )


LOAD_RATE = chernoff_exponent(2.0) - 1
"""3 ln 3 − 3 ≈ 0.2958: the exponent of Lemma 6 (printed: 1/3)."""


def load_rate(as_printed: bool = False) -> float:
    """The exponent e of Lemma 6's failure probability n^{−e}."""
    return 1 / 3 if as_printed else LOAD_RATE


def lemma_6(bins: int, balls: int, *, as_printed: bool = False) -> float:
    """Lemma 6: N ≥ n log n balls in n bins: the fullest holds at most 3N/n w.p. ≥ 1 − n^{−(3 ln 3 −
    3)}.

    Returns that probability. As printed the exponent is 1/3, from the false Lemma 5; `fullest_bin`
    is exact.

    >>> round(lemma_6(100, 500), 4)
    0.7439
    """
    check_whole(bins=bins, balls=balls)
    if balls < bins * math.log(bins):
        raise TheoryError(
            f"Lemma 6 needs N >= n log n: N = {balls}, n log n = {bins * math.log(bins):.6g} for n"
            f" = {bins}."
        )
    return 1 - math.pow(bins, -load_rate(as_printed))


def fullest_bin(bins: int, balls: int) -> float:
    """A lower bound on P(fullest bin ≤ 3N/n): one minus n exact binomial tails. Needs no N ≥ n log
    n.
    """
    check_whole(bins=bins, balls=balls)
    # P(one bin above 3N/n), times n: a union bound over the bins.
    tail = float(stats.binom.sf(float(math.floor(3 * balls / bins)), float(balls), 1 / bins))
    return max(0.0, 1 - bins * tail)


# Lemma 4 (Latała): the expected norm of a matrix from the moments of its entries.

LATALA_CONSTANT = 1.0
"""Lemma 4's C for matrices of any shape. No smaller one will do (a row of n signs needs C -> 1).
That 1 is enough is proven for one row or column (Jensen) and for iid normal entries (Gordon); for
others it is measured, on twelve laws, sparse and heavy-tailed ones among them, and shapes up to 1 ×
10,000: at most 0.90 was needed (docs/errata.md).
"""

LATALA_MEASURED = 2 / 3
"""Lemma 4's C for square matrices of iid entries only: above every value of the paper's Table 3 and
the limit of ±1 entries. Measured, not proven; a 64 × 1024 matrix of uniform entries needs 0.68.
"""


def lemma_4(second: Tensor, fourth: Tensor, *, constant: float = LATALA_CONSTANT) -> float:
    """Lemma 4 (Latała 2005, Theorem 2): independent mean-zero entries, finite fourth moments.

    E‖A‖₂ ≤ C [max_i (Σ_j E a²)^½ + max_j (Σ_i E a²)^½ + (Σ E a⁴)^¼].

    `second` and `fourth` are the matrices of moments. C is universal, but the paper does not state
    it. The default 1 is the least that can hold for every shape, and no matrix is known that needs
    more; square matrices of iid entries have needed at most 2/3 (`LATALA_MEASURED`). Both are
    measured, not proven.

    >>> import torch
    >>> n = 64
    >>> round(lemma_4(torch.full((n, n), 1 / n), torch.full((n, n), 3 / n**2)), 3)
    3.316
    """
    check_positive(constant=constant)
    return constant * sum(latala_terms(second, fourth))


def latala_terms(second: Tensor, fourth: Tensor) -> tuple[float, float, float]:
    """The row, column and fourth-moment terms of Lemma 4."""
    if second.shape != fourth.shape or second.ndim != 2:
        raise ArgumentError(
            f"second has shape {tuple(second.shape)}, fourth {tuple(fourth.shape)}: give two"
            " matrices of one shape."
        )
    # Slack for moments that were computed in float32 or measured.
    if bool((second < 0).any()) or bool((fourth < second**2 * (1 - 1e-5)).any()):
        raise TheoryError(
            "moments must satisfy E a² ≥ 0 and E a⁴ ≥ (E a²)²; no such random variable exists."
        )
    second, fourth = second.double(), fourth.double()
    rows, columns = second.sum(1).max().sqrt(), second.sum(0).max().sqrt()
    return float(rows), float(columns), float(fourth.sum() ** 0.25)


# Conditions (3) and (4) of Theorem 2: enough balls for the loads of rows and columns.


def load_conditions(widths: Sequence[int], alpha: float) -> tuple[Condition, ...]:
    """(3) ⌊D_k^{1−α}⌋ ≥ d_k log d_k and (4) D_k^{1−α} ≥ d_{k−1} log d_{k−1} for the inner
    layers.
    """
    found: list[Condition] = []
    for k, (fan_in, fan_out) in enumerate(pairwise(widths[1:-1]), start=2):
        draws = math.pow(fan_in * fan_out, 1 - alpha)
        whole, rows, columns = (
            float(floor_power(fan_in * fan_out, 1 - alpha)),
            _load(fan_out),
            _load(fan_in),
        )
        found += [
            Condition(
                name=f"(3) floor(D_{k}^(1-alpha)) >= d_{k} log d_{k}",
                value=whole,
                limit=rows,
            ),
            Condition(
                name=f"(4) D_{k}^(1-alpha) >= d_{k - 1} log d_{k - 1}",
                value=draws,
                limit=columns,
            ),
        ]
    return tuple(found)


def _load(bins: int) -> float:
    return bins * math.log(bins)


def largest_alpha(widths: Sequence[int]) -> float:
    """The largest α that conditions (3), (4) allow; 0 or below when none does."""
    pairs = list(pairwise(widths[1:-1]))
    wide = [
        # Rounded up, since (3) compares with a number that is rounded down.
        (math.log(a * b), math.ceil(max(a * math.log(a), b * math.log(b))))
        for a, b in pairs
        if a * b > 1
    ]
    return min((1 - math.log(max(need, 1)) / size for size, need in wide), default=1.0)
