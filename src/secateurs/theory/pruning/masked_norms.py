"""How large is the part of a random matrix that a random mask removes? Tails with explicit
constants [ours].

Setting: independent mean-zero entries on ±a; N positions drawn uniformly with replacement,
independent of the entries. R keeps the drawn entries and is zero elsewhere. For convolutions a
position is a whole filter (`taps` entries) and the norm is the largest of the matrices P^(u,v) of
Lemma 7.

1. *Filling in.* Given the mask, E g(R) grows with the mask for convex g (Jensen: the entries filled
   in have mean zero).
   With M ~ Poisson(N) draws instead of N, P(M ≥ N) ≥ ½ (the median of a Poisson law of whole mean
   is its mean), so
   E g(R) ≤ 2 E g(R') for convex g ≥ 0, and in R' every position is hit independently with p = 1 −
   e^{−N/D}.
   No loads of rows and columns are needed, and no 3N/n.
2. *Domination.* Entries on ±a with mean zero lie below the sign ±a in the convex order: signs
   replace any bounded law.
3. *Matrix Chernoff.* Let H be the Hermitian dilation. A position contributes H(zE_st) with z = Σ_ij
   ω_ij F_ij, and
   E exp(θH(zE_st)) = I + (E cosh θ|z| − 1) Π with Π the projection on coordinates s, t. As
   E cosh θ|x + εv| ≤ cosh θ|x| cosh θ|v| for a sign ε (cosh√· is convex), E cosh θ|z| ≤ m(θa)^taps
   with
   m(x) = sinh(x)/x (uniform) or cosh(x) (signs). So, with log φ = log(1 + p(m^taps − 1)) and Lieb's
   inequality,
   P(‖R‖ ≥ ta) ≤ 2 F (rows + columns) exp(−xt + max(rows, columns) log φ(x)) for every x = θa > 0, F
   frequencies.
4. *Gordon and Talagrand* (one tap). An entry of R' lies below s(p)·a·N(0, 1) in the convex order,
   so E‖R'‖ ≤
   s a(√rows + √columns), and log E exp λ(‖R'‖ − E‖R'‖) ≤ 2a²λ² (Boucheron, Lugosi & Massart,
   Theorem 6.10), whence
   ‖R‖ ≤ a(s(√rows + √columns) + √(8 log(2/failure))).

5. *Normal entries* have no range: E cosh θZ = e^{θ²/2} in step 3, and in step 4 Gordon's
   √rows + √columns with the Gaussian tail √(2 log(1/failure)), which masking only lowers. Symmetric
   *sub-Gaussian* ones have the same moment in step 3, and the net of Lemma 2 in place of step 4.
6. *Filters cut by their ℓ¹ norm* (appendix C.2): given the magnitudes signs are fair, and
   E cosh θ|z| ≤ Π cosh θ|w_i| ≤ cosh θ‖w‖₁ (log cosh is convex, and 0 at 0). Given that ‖w‖₁ lies
   below a threshold, E cosh θ|z| is also no more than without that (Harris: one function grows with
   the magnitudes, the event shrinks). The smaller exponent is taken at each θ.

Both hold for every size; the smaller one is taken. With N = None nothing is masked and the factors
2 of step 1 fall away; the part that is kept obeys the same bound, by filling in.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from scipy import optimize, special

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import check_positive, check_unit, check_whole
from secateurs.theory.pruning.lemma_2 import subgaussian_norm_bound

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
    if law not in _LOG_MOMENT:
        raise ArgumentError(
            f"law = {law!r}: give one of {', '.join(map(repr, _LOG_MOMENT))}."
        )
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


def hit_share(
    draws: int | None, positions: int, *, replacement: bool = True
) -> float:
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
        raise ArgumentError(
            f"{draws} positions of {positions} cannot be drawn without replacement."
        )
    return draws / positions


def half_spectrum(map_size: int | tuple[int, ...], taps: int) -> int:
    """Frequencies (u, v) of the maps up to conjugation; a kernel of one tap has the same matrix at
    all of them.
    """
    sides = (map_size, map_size) if isinstance(map_size, int) else map_size
    # Frequencies that are their own conjugates: 0, and n/2 on even axes.
    real = math.prod(1 if side % 2 else 2 for side in sides)
    return 1 if taps == 1 else (math.prod(sides) + real) // 2


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


def _tail(
    layer: RandomLayer,
    share: float,
    failure: float,
    law: Law,
    cap: float | None = None,
) -> float:
    chernoff = _chernoff(layer, share, failure, law, cap)
    # Step 4 speaks of one matrix; filters have one per frequency.
    if layer.taps > 1 or layer.frequencies > 1:
        return chernoff
    return min(chernoff, _MATRIX_TAIL[law](layer, share, failure))


def _range_tail(law: Law) -> "Callable[[RandomLayer, float, float], float]":
    """Step 4: Gordon for the mean, Talagrand's concentration for entries of bounded range."""

    def tail(layer: RandomLayer, share: float, failure: float) -> float:
        mean = normal_scale(share, law) * (
            math.sqrt(layer.rows) + math.sqrt(layer.columns)
        )
        return mean + math.sqrt(8 * math.log(1 / failure))

    return tail


def _normal_tail(layer: RandomLayer, share: float, failure: float) -> float:
    """Gordon, and concentration of a 1-Lipschitz function of normal variables; masks only help."""
    mean = math.sqrt(layer.rows) + math.sqrt(layer.columns)
    return mean + math.sqrt(2 * math.log(1 / failure))


def _net_tail(layer: RandomLayer, share: float, failure: float) -> float:
    """Lemma 2: a zero is sub-Gaussian too."""
    return subgaussian_norm_bound(layer.rows, layer.columns, failure=failure)


_MATRIX_TAIL: "dict[str, Callable[[RandomLayer, float, float], float]]" = {
    "uniform": _range_tail("uniform"),
    "bounded": _range_tail("bounded"),
    "normal": _normal_tail,
    "subgaussian": _net_tail,
}


@lru_cache(maxsize=4096)
def _chernoff(
    layer: RandomLayer, share: float, failure: float, law: Law, cap: float | None
) -> float:
    """Every x gives a bound: the search over x need not be exact."""
    side = max(layer.rows, layer.columns)
    level = math.log(layer.frequencies * (layer.rows + layer.columns) / failure)
    moment = _LOG_MOMENT[law]

    def bound(log_x: float) -> float:
        x = math.exp(log_x)
        each = layer.taps * moment(x)
        # Π cosh x|w_i| ≤ cosh x Σ|w_i|, and conditioning only helps (Harris)
        if cap is not None:
            each = min(each, _log_sign(cap * x))
        return (level + side * _log_mixture(each, share)) / x

    return float(
        # Over log x, since sensible values of x span many powers of ten.
        optimize.minimize_scalar(bound, bounds=(-25.0, 5.0), method="bounded").fun
    )


def _log_mixture(log_moment: float, share: float) -> float:
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


def _log_sign(x: float) -> float:
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


_LOG_MOMENT: dict[str, Callable[[float], float]] = {
    "uniform": _log_uniform,
    "bounded": _log_sign,
    "normal": _log_normal,
    "subgaussian": _log_normal,
}
