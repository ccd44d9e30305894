"""How large is the part of a random matrix that a random mask removes? Tails with explicit
constants [ours].

Setting: independent mean-zero entries on ±a; N positions drawn uniformly with replacement,
independent of the entries. R keeps the drawn entries and is zero elsewhere. For convolutions a
position is a whole filter (`taps` entries) and the norm is the largest of the matrices P^(u,v) of
Lemma 7.

1. *Filling in.* Given the mask, E g(R) grows with the mask for convex g (Jensen: the entries filled
   in have mean zero). With M ~ Poisson(N) draws instead of N, P(M ≥ N) ≥ ½ (the median of a Poisson
   law of whole mean is its mean), so E g(R) ≤ 2 E g(R') for convex g ≥ 0, and in R' every position
   is hit independently with p = 1 − e^{−N/D}. No loads of rows and columns are needed, and no 3N/n.
2. *Domination.* Entries on ±a with mean zero lie below the sign ±a in the convex order: signs
   replace any bounded law.
3. *Matrix Chernoff.* Let H be the Hermitian dilation. A position contributes H(zE_st) with z = Σ_ij
   ω_ij F_ij, and E exp(θH(zE_st)) = I + (E cosh θ|z| − 1) Π with Π the projection on coordinates s,
   t. As E cosh θ|x + εv| ≤ cosh θ|x| cosh θ|v| for a sign ε (cosh√· is convex), E cosh θ|z| ≤
   m(θa)^taps with m(x) = sinh(x)/x (uniform) or cosh(x) (signs). So, with log φ = log(1 + p(m^taps
   − 1)) and Lieb's inequality, P(‖R‖ ≥ ta) ≤ 2 F (rows + columns) exp(−xt + max(rows, columns) log
   φ(x)) for every x = θa > 0, F frequencies.
4. *Gordon and Talagrand* (one tap). An entry of R' lies below s(p)·a·N(0, 1) in the convex order,
   so E‖R'‖ ≤ s a(√rows + √columns), and log E exp λ(‖R'‖ − E‖R'‖) ≤ 2a²λ² (Boucheron, Lugosi &
   Massart, Theorem 6.10), whence ‖R‖ ≤ a(s(√rows + √columns) + √(8 log(2/failure))).

5. *Normal entries* have no range: E cosh θZ = e^{θ²/2} in step 3, and in step 4 Gordon's √rows +
   √columns with the Gaussian tail √(2 log(1/failure)), which masking only lowers. Symmetric
   *sub-Gaussian* ones have the same moment in step 3, and the net of Lemma 2 in place of step 4.
6. *Filters cut by their ℓ¹ norm* (appendix C.2): given the magnitudes signs are fair, and E cosh
   θ|z| ≤ Π cosh θ|w_i| ≤ cosh θ‖w‖₁ (log cosh is convex, and 0 at 0). Given that ‖w‖₁ lies below a
   threshold, E cosh θ|z| is also no more than without that (Harris: one function grows with the
   magnitudes, the event shrinks). The smaller exponent is taken at each θ.

Both hold for every size; the smaller one is taken. With N = None nothing is masked and the factors
2 of step 1 fall away; the part that is kept obeys the same bound, by filling in.
"""

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_positive, check_unit, check_whole
from secateurs.theory.pruning.tails.chernoff import chernoff_bound
from secateurs.theory.pruning.tails.counts import hit_share
from secateurs.theory.pruning.tails.gordon import MATRIX_TAIL
from secateurs.theory.pruning.tails.layer import Law, RandomLayer
from secateurs.theory.pruning.tails.moments import LOG_MOMENT


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
    if law not in LOG_MOMENT:
        raise ArgumentError(
            f"law = {law!r}: give one of {', '.join(map(repr, LOG_MOMENT))}."
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
