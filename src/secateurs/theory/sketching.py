"""Pruning as matrix sketching: Lemmas B.1, B.2, 4.1 to 4.5, Theorem 4.4 and exact expectations.

Source: Bar & Giryes, "Pruning at Initialization — A Sketching Perspective" (2023).
"""

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError

# What the sketching statements are asked with, checked and read as float64; every error names the
# argument.


def whole(name: str, value: float) -> int:
    """A number of draws or examples: 1, 2, 3, …"""
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= 1 or value % 1 != 0:
        raise ArgumentError(f"{name} = {value!r} is not a whole number of at least 1.")
    return int(value)


def check_share(uniform: float) -> None:
    """The uniform mass to mix in, between 0 and 1."""
    if not 0 <= uniform <= 1:
        raise ArgumentError(f"uniform = {uniform:g} is not a fraction in [0, 1].")


def matrix(X: Tensor) -> Tensor:
    """X, one row per coordinate of w."""
    if X.ndim != 2:
        raise ArgumentError(
            f"X has shape {tuple(X.shape)}: give a matrix, one row per coordinate of w."
        )
    return finite("X", X)


def vector(name: str, w: Tensor, X: Tensor) -> Tensor:
    """One entry of w per row of X."""
    if w.ndim != 1 or w.numel() != X.shape[0]:
        raise ArgumentError(
            f"{name} has shape {tuple(w.shape)}; give a vector of {X.shape[0]} entries, one per row"
            " of X."
        )
    return finite(name, w)


def finite(name: str, values: Tensor) -> Tensor:
    """Real, finite values, at least one."""
    if values.is_complex() or not values.numel():
        what = (
            f"{values.dtype} values"
            if values.numel()
            else f"no entries (shape {tuple(values.shape)})"
        )
        raise ArgumentError(f"{name} has {what}: give real numbers.")
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        raise ArgumentError(
            f"{name} has {len(bad)} NaN or infinite entries of {values.numel()} (first:"
            f" {bad[0].tolist()}). Repair them first, for instance with torch.nan_to_num."
        )
    return values.double()


def check_probabilities(p: Tensor) -> Tensor:
    """p as float64 and summing to 1 there, if it is finite, non-negative and sums to 1 as well as
    its dtype can.
    """
    if p.ndim != 1 or p.numel() == 0:
        raise ArgumentError(
            f"p has shape {tuple(p.shape)}: give one probability per coordinate, in one dimension."
        )
    values = finite("p", p)
    if float(values.min()) < 0:
        raise ArgumentError(
            f"p holds values that are not probabilities; the smallest is {float(values.min()):g}."
        )
    total = float(values.sum())
    # Divided once more in float64 below, so that later sums are 1 to the last digit.
    if abs(total - 1) > _slack(p):
        raise ArgumentError(f"p sums to {total:.8g}, not to 1. Divide it by its sum.")
    return values / total


def _slack(p: Tensor) -> float:
    """Half precision leaves p/Σp a relative ε (its own and the sum's rounding) and every tiny entry
    half a quantum.
    """
    if not p.is_floating_point():
        return 1e-6
    kind = torch.finfo(p.dtype)
    return max(1e-6, 2 * kind.eps + p.numel() * kind.smallest_normal * kind.eps)


# What is never drawn makes a mask biased: the condition that all lemmas share.


def per_draw(values: Tensor, p: Tensor) -> Tensor:
    """values / p, where 0/0 counts 0."""
    check_drawn(values, p)
    # `where` computes both sides: without the clamp 0/0 would be computed and thrown
    # away.
    return torch.where(p > 0, values / p.clamp_min(torch.finfo(p.dtype).tiny), 0.0)


def check_drawn(values: Tensor, p: Tensor) -> None:
    """A positive value that is never drawn makes the mask biased."""
    lost = ((p == 0) & (values > 0)).nonzero().flatten()
    if len(lost):
        raise TheoryError(
            f"{len(lost)} coordinates with w_k X_(k) != 0 have p_k = 0 (first: k ="
            f" {', '.join(map(str, lost[:5].tolist()))}): they are never drawn and the mask is"
            " biased. Mix in uniform mass (uniform=0.1)."
        )


def inputs(X: Tensor, w: Tensor, p: Tensor, s: int) -> tuple[Tensor, Tensor, Tensor]:
    """X, w and p as float64, with as many rows, entries and probabilities as each other."""
    whole("s", s)
    X, p = matrix(X), check_probabilities(p)
    if p.numel() != X.shape[0]:
        raise ArgumentError(f"p has {p.numel()} entries, X has {X.shape[0]} rows.")
    return X, vector("w", w, X), p


# Masks as sketches of a linear map: exact expected errors, bounds, and unbiased random masks.
#
# Source: Bar & Giryes, "Pruning at Initialization — A Sketching Perspective" (2023), sections 3–4,
# appendix B. Features are Xᵀw with X ∈ R^{d×n}; row X_(k) is coordinate k over all examples. Every
# expectation is over the mask of Algorithm 1; expectations over X are for X with iid N(0, 1/n)
# entries.


def sketch_probabilities(features: Tensor, start: Tensor, *, uniform: float = 0.0) -> Tensor:
    """Eq. (2): p_k ∝ ‖X_(k)‖ |w0_k|, mixed with a share of uniform mass.

    >>> sketch_probabilities(torch.eye(2), torch.tensor([3.0, 1.0])).tolist()
    [0.75, 0.25]
    """
    check_share(uniform)
    scores = matrix(features).norm(dim=1) * vector("w0", start, features).abs()
    return mix_uniform(scores, uniform, name="‖X_(k)‖·|w0_k|")


def mix_uniform(scores: Tensor, uniform: float, *, name: str) -> Tensor:
    """Scores as probabilities, with a share of uniform mass; `name` is what they are called."""
    total = scores.sum()
    # Refuses NaN as well as 0 and overflow.
    if not 0 < float(total) < math.inf:
        raise TheoryError(
            f"the scores {name} sum to {float(total):g}: no probability can be formed."
        )
    return (1 - uniform) * scores / total + uniform / scores.numel()


def lemma_b1(
    features: Tensor,
    weights: Tensor,
    probabilities: Tensor,
    *,
    as_printed: bool = False,
) -> Tensor:
    """Lemma B.1: E Xᵀ(w⊙m) = Xᵀw, if p_k > 0 wherever w_k X_(k) ≠ 0; otherwise this raises and
    names the coordinates.

    The paper claims it for any w, and `as_printed=True` returns Xᵀw for any. With p from a w0 that
    is zero where w is not, those coordinates are never drawn: the true expectation is that of w·(p
    > 0) (docs/errata.md).
    """
    X, w, p = inputs(features, weights, probabilities, 1)
    if not as_printed:
        # A coordinate with w_k X_(k) = 0 may have p_k = 0: it adds nothing either way.
        check_drawn(X.square().sum(1) * w.square(), p)
    return X.T @ w


def lemma_b2(features: Tensor, weights: Tensor, probabilities: Tensor, *, s: int) -> Tensor:
    """Lemma B.2: Var (Xᵀ(w⊙m))_i = (1/s) Σ_k X_ki² w_k²/p_k − (1/s)(Xᵀw)_i². Needs the support
    condition of B.1.
    """
    X, w, p = inputs(features, weights, probabilities, s)
    return (X.square().T @ per_draw(w.square(), p) - (X.T @ w).square()) / s


def lemma_41(features: Tensor, start: Tensor, *, s: int) -> float:
    """Lemma 4.1: E‖Xᵀw0 − Xᵀ(w0⊙m)‖² = (1/s)(Σ_k ‖X_(k)‖|w0_k|)² − (1/s)‖Xᵀw0‖² with the optimal p.
    Exact.
    """
    s, X = whole("s", s), matrix(features)
    w0 = vector("w0", start, X)
    total = (X.norm(dim=1) * w0.abs()).sum()
    return float((total.square() - (X.T @ w0).square().sum()) / s)


def lemma_43(
    features: Tensor,
    weights: Tensor,
    probabilities: Tensor,
    *,
    s: int,
    exact: bool = True,
) -> float:
    """Lemma 4.3: E‖Xᵀw − Xᵀ(w⊙m)‖² = (1/s)Σ_k ‖X_(k)‖² w_k²/p_k − (1/s)‖Xᵀw‖², any p;
    `exact=False`: the first term.

    Infinite if p_k = 0 where w_k X_(k) ≠ 0? No: then the mask is biased, the formula does not hold,
    and this raises.
    """
    X, w, p = inputs(features, weights, probabilities, s)
    first = per_draw(X.square().sum(1) * w.square(), p).sum()
    return float(first - (X.T @ w).square().sum() if exact else first) / s


# The error of the mask that Algorithm 1 draws, beside that of a uniform one.


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchError:
    """Expected squared errors E‖Xᵀw − Xᵀ(w⊙m)‖² of Algorithm 1, exact; `energy` is ‖Xᵀw‖²."""

    expected: float
    bound: float
    uniform: float
    energy: float
    probabilities: Tensor

    @property
    def relative(self) -> float:
        """Expected squared error over ‖Xᵀw‖²; above 1, the zero mask is better."""
        return self.expected / self.energy if self.energy > 0 else math.inf


def sketch_error(
    features: Tensor,
    start: Tensor,
    *,
    s: int,
    w: Tensor | None = None,
    X_mask: Tensor | None = None,
    uniform: float = 0.0,
) -> SketchError:
    """The exact expected error of the mask found with (X_mask, w0) and applied to (X, w), beside
    the uniform mask's. X are the `features`, one row per coordinate, w0 the weights at the `start`.

    `w` defaults to w0 and `X_mask` to X. `uniform` mixes that share of uniform mass into the
    probabilities, which bounds the error where some |w0_k| is tiny or zero. `bound` is the first
    term of Lemma 4.3.

    >>> X, w0 = torch.eye(4), torch.tensor([4.0, 2.0, 1.0, 1.0])
    >>> sketch_error(X, w0, s=2).expected  # ((4+2+1+1)² − (16+4+1+1)) / 2
    21.0
    """
    X, w0 = features, start
    w = w0 if w is None else w
    p = sketch_probabilities(X if X_mask is None else X_mask, w0, uniform=uniform)
    flat = torch.full_like(p, 1 / p.numel())
    return SketchError(
        expected=lemma_43(X, w, p, s=s),
        bound=lemma_43(X, w, p, s=s, exact=False),
        uniform=lemma_43(X, w, flat, s=s),
        energy=float((matrix(X).T @ vector("w", w, X)).square().sum()),
        probabilities=p,
    )


# Expected errors of sketches over Gaussian features: Lemmas 4.2 and 4.5, Theorem 4.4.


def lemma_42(
    start: Tensor, *, s: int, examples: int | None = None, as_printed: bool = False
) -> float:
    """Lemma 4.2, corrected: Gaussian X, E ≤ (1/s)(‖w0‖₁² − ‖w0‖₂²); times m_n² (exactly) when n =
    `examples` is given.

    As printed, (1/s)‖w0‖₂²: false, the proof drops the cross terms of a square (docs/errata.md).
    m_n² = (2/n) Γ((n+1)/2)²/Γ(n/2)² ≤ 1 is the squared mean of a row norm.
    """
    s, w0 = whole("s", s), finite("w0", start).flatten()
    if as_printed:
        return float(w0.square().sum()) / s
    return row_norm_factor(examples) * float(w0.abs().sum() ** 2 - w0.square().sum()) / s


def theorem_44(
    start: Tensor,
    weights: Tensor,
    *,
    s: int,
    examples: int | None = None,
    exact: bool = False,
    as_printed: bool = False,
) -> float:
    """Theorem 4.4, corrected: Gaussian X, mask from (X, w0) applied to w.

    E ≤ (1/s)‖w0‖₁ (‖w−w0‖² max_k 1/|w0_k| + 2‖w−w0‖₁ + ‖w0‖₁). `exact=True` gives the expectation
    itself, (m_n²/s)(‖w0‖₁ Σ_k w_k²/|w0_k| − ‖w‖²); it, too, blows up when some |w0_k| is tiny (mix
    in uniform mass). The paper has ‖w0‖_∞ in place of max_k 1/|w0_k|. Our copy of its text does not
    show whether it multiplies or divides; both are false (docs/errata.md) and `as_printed=True`
    gives the larger.
    """
    s, w0, w = (
        whole("s", s),
        finite("w0", start).flatten(),
        finite("w", weights).flatten(),
    )
    if w.numel() != w0.numel():
        raise ArgumentError(
            f"w has {w.numel()} entries, w0 has {w0.numel()}: give one of each per coordinate."
        )
    size, gap = w0.abs(), w - w0
    if not as_printed and not bool((size > 0).all()):
        zeros = int((size == 0).sum())
        raise TheoryError(
            f"{zeros} entries of w0 are zero: 1/|w0_k| is infinite. Use sketch_error(uniform=0.1)."
        )
    if exact:
        total = size.sum() * (w.square() / size).sum() - w.square().sum()
        return row_norm_factor(examples) * float(total) / s
    factor = (
        # The text leaves open whether ‖w0‖_∞ multiplies or divides: the larger is
        # shown.
        torch.maximum(size.max(), 1 / size.max()) if as_printed else 1 / size.min()
    )
    return float(size.sum() * (gap.square().sum() * factor + 2 * gap.abs().sum() + size.sum())) / s


def lemma_45(weights: Tensor, *, s: int, exact: bool = False) -> float:
    """Lemma 4.5: Gaussian X, uniform p: E ≤ (d/s)‖w‖²; `exact=True`: ((d−1)/s)‖w‖². Holds.

    The paper adds that Theorem 4.4 avoids the factor d. Not for Gaussian w0: there ‖w0‖₁² ≈ (2/π) d
    ‖w0‖².
    """
    s = whole("s", s)
    return (weights.numel() - exact) * float(finite("w", weights).square().sum()) / s


def row_norm_factor(examples: int | None) -> float:
    """m_n² = E[‖X_(k)‖]² = (2/n) Γ((n+1)/2)²/Γ(n/2)² for N(0, 1/n) entries; 1, its supremum,
    without n.
    """
    if examples is None:
        return 1.0
    examples = whole("examples", examples)
    # Logarithms, for Γ itself overflows from 172 on.
    log = math.lgamma((examples + 1) / 2) - math.lgamma(examples / 2)
    return 2 / examples * math.exp(2 * log)
