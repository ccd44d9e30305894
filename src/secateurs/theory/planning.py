"""How much can be pruned? The theorems of Qian & Klabjan (2021), asked as a user asks them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.concentration import LATALA_MEASURED, uniform_norm_bound
from secateurs.theory.guarantee import Guarantee, check_positive, check_unit, check_widths
from secateurs.theory.magnitude_pruning import theorem_1, theorem_1_explicit
from secateurs.theory.random_pruning import NormBounds, largest_alpha, theorem_2

Scheme = Literal["magnitude", "random"]
_WIDEST = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What theory promises for these widths, in numbers; `str(plan)` says it in words.

    * `error`: sup_{‖x‖≤1}‖f(x) − F(x)‖ guaranteed with probability 1 − delta; `trivial` bounds sup‖F‖ itself.
    * `probability`: the guaranteed probability of an error of at most epsilon (None without epsilon).
    * `smallest_width`: all hidden layers this wide suffice (for epsilon, or for a guarantee that is not vacuous).
    * `smallest_alpha`: the most that may be pruned at these widths (α small = many weights); `largest_alpha`: the
      least that conditions (3), (4) of Theorem 2 allow.
    * `printed`: the same question put to the theorem as printed, at the given alpha.
    """

    scheme: str
    widths: tuple[int, ...]
    alpha: float
    sparsity: float
    delta: float
    epsilon: float | None
    error: float
    trivial: float
    probability: float | None
    smallest_width: float
    smallest_alpha: float | None
    largest_alpha: float
    binding: str
    vacuous: bool
    printed: Guarantee
    assumptions: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(_sentences(self))


def plan(
    model_or_widths: nn.Module | Sequence[int],
    *,
    sparsity: float | None = None,
    alpha: float | None = None,
    epsilon: float | None = None,
    delta: float = 0.05,
    scheme: Scheme = "magnitude",
    scale: float | None = None,
    lipschitz: float = 1.0,
    constant: float = LATALA_MEASURED,
) -> Plan:
    """The guarantee for pruning the inner layers of a fully connected network, and what would be needed for more.

    Give `alpha` (each inner layer loses ⌊D^{1−α}⌋ of its D entries) or the `sparsity` of the inner layers. `scale` is K
    of the entries' range ±K/√max(d_k, d_{k−1}); read off the model, else 1. Magnitude pruning uses
    `theorem_1_explicit` (no unknown constant); random pruning Theorem 2 with Lemma 4's measured constant.

    >>> print(plan([784, 1024, 1024, 10], alpha=0.5, delta=0.01))
    magnitude pruning of 1 inner layer(s), widths 784-1024-1024-10, alpha = 0.5 (0.0977 % of the inner weights).
    ...
    """
    widths, found = _asked(model_or_widths)
    scale = found if scale is None else scale
    check_widths(widths)
    check_positive(scale=scale, lipschitz=lipschitz, **({} if epsilon is None else {"epsilon": epsilon}))
    check_unit(delta=delta)
    exponent = _exponent(widths, alpha, sparsity)
    promise = _promise(scheme, scale, lipschitz, constant)
    here = promise(widths, exponent, delta)
    target = _target(epsilon)
    return Plan(
        scheme=scheme,
        widths=widths,
        alpha=exponent,
        sparsity=_share(widths, exponent),
        delta=delta,
        epsilon=epsilon,
        error=here.error,
        trivial=here.trivial,
        probability=None if epsilon is None else _probability(promise, widths, exponent, epsilon),
        smallest_width=_smallest_width(promise, widths, exponent, delta, target),
        smallest_alpha=_smallest_alpha(promise, widths, delta, target),
        largest_alpha=largest_alpha(widths) if scheme == "random" else 1.0,
        binding=_binding(here, epsilon),
        vacuous=here.vacuous,
        printed=_printed(scheme, widths, exponent, scale, lipschitz, constant),
        assumptions=here.assumptions,
    )


_Promise = Callable[[Sequence[int], float, float], Guarantee]
_Target = Callable[[Guarantee], bool]


def _promise(scheme: str, scale: float, lipschitz: float, constant: float) -> _Promise:
    """(widths, alpha, delta) -> the guarantee at that confidence."""
    if scheme == "magnitude":
        return lambda widths, alpha, delta: theorem_1_explicit(
            widths, alpha=alpha, delta=delta, scale=scale, lipschitz=lipschitz
        )
    if scheme == "random":
        return lambda widths, alpha, delta: _random(widths, alpha, delta, scale, lipschitz, constant)
    raise ArgumentError(f"scheme = {scheme!r}: 'magnitude' or 'random'. For 2-D filters call theory.theorem_3.")


def _random(
    widths: Sequence[int], alpha: float, delta: float, scale: float, lipschitz: float, constant: float
) -> Guarantee:
    """Theorem 2 with uniform entries: half of delta for the norms; the guarantee fails if its probability is less."""
    depth = len(widths) - 1
    shapes = zip(widths[1:], widths[:-1], strict=True)
    failure = delta / (2 * depth)
    bounds = tuple(uniform_norm_bound(*shape, bound=scale / math.sqrt(max(shape)), failure=failure) for shape in shapes)
    norms = NormBounds(bounds=bounds, failures=(failure,) * depth)
    return theorem_2(
        widths,
        alpha=alpha,
        norms=norms,
        k1=scale**2 / 3,
        k2=scale**4 / 5,
        lipschitz=lipschitz,
        constant=constant,
        require=False,
    )


def _target(epsilon: float | None) -> _Target:
    if epsilon is None:
        return lambda found: not found.vacuous
    return lambda found: found.error <= epsilon and not found.failed


def _reaches(found: Guarantee, delta: float, target: _Target) -> bool:
    return found.probability >= 1 - delta - 1e-12 and target(found)


def _smallest_width(promise: _Promise, widths: Sequence[int], alpha: float, delta: float, target: _Target) -> float:
    """Doubling, then bisection; inf beyond 2^24, wider than any layer one could hold."""

    def enough(width: int) -> bool:
        hidden = [widths[0], *[width] * (len(widths) - 2), widths[-1]]
        return _reaches(promise(hidden, alpha, delta), delta, target)

    high = 1
    while not enough(high):
        high *= 2
        if high > _WIDEST:
            return math.inf
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return float(high)


def _smallest_alpha(promise: _Promise, widths: Sequence[int], delta: float, target: _Target) -> float | None:
    """The most that may be pruned, to three digits; None when not even α = 0.999 is covered."""
    covered = [a / 1000 for a in range(1, 1000) if _reaches(promise(widths, a / 1000, delta), delta, target)]
    return min(covered, default=None)


def _probability(promise: _Promise, widths: Sequence[int], alpha: float, epsilon: float) -> float:
    """1 − the smallest δ whose error is at most ε; 0 when none is."""
    low, high = -30.0, math.log10(0.999)
    if promise(widths, alpha, 10**high).error > epsilon:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if promise(widths, alpha, 10**middle).error <= epsilon else (middle, high)
    return min(1 - 10**high, promise(widths, alpha, 10**high).probability)


def _binding(found: Guarantee, epsilon: float | None) -> str:
    if found.failed:
        return str(found.failed[0])
    if found.probability <= 0:
        return f"probability: {found.probability:.4g} <= 0"
    if not found.error < found.trivial:
        return f"error against zero: {found.error:.4g} >= {found.trivial:.4g}"
    if epsilon is not None and found.error > epsilon:
        return f"error: {found.error:.4g} > epsilon = {epsilon:.4g}"
    return "none"


def _printed(
    scheme: str, widths: Sequence[int], alpha: float, scale: float, lipschitz: float, constant: float
) -> Guarantee:
    if scheme == "magnitude":
        return theorem_1(
            min(widths[1:-1]),
            depth=len(widths) - 1,
            alpha=alpha,
            scale=scale,
            lipschitz=lipschitz,
            constant=constant,
            as_printed=True,
        )
    norms = NormBounds(bounds=(1.5 * scale,) * (len(widths) - 1), failures=(1e-3,) * (len(widths) - 1))
    return theorem_2(
        widths,
        alpha=alpha,
        norms=norms,
        k1=scale**2 / 3,
        k2=scale**4 / 5,
        lipschitz=lipschitz,
        constant=constant,
        as_printed=True,
        require=False,
    )


def _exponent(widths: Sequence[int], alpha: float | None, sparsity: float | None) -> float:
    """α, or the α whose ⌊D^{1−α}⌋ removes that share of the inner weights (by bisection; layers differ in D)."""
    if (alpha is None) == (sparsity is None):
        raise ArgumentError("give exactly one of alpha= and sparsity=.")
    if alpha is not None:
        check_unit(alpha=alpha)
        return alpha
    check_unit(sparsity=float(sparsity or 0.0))
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share(widths, middle) > float(sparsity or 0.0) else (low, middle)
    if not 0 < high < 1:
        raise ArgumentError(f"sparsity = {sparsity:g} corresponds to no alpha in (0, 1) for widths {tuple(widths)}.")
    return high


def _share(widths: Sequence[int], alpha: float) -> float:
    sizes = [a * b for a, b in pairwise(widths[1:-1])]
    return math.fsum(math.pow(size, 1 - alpha) for size in sizes) / sum(sizes)


def _asked(model_or_widths: nn.Module | Sequence[int]) -> tuple[tuple[int, ...], float]:
    if isinstance(model_or_widths, nn.Module):
        return _widths(model_or_widths)
    return tuple(model_or_widths), 1.0


def _widths(model: nn.Module) -> tuple[tuple[int, ...], float]:
    """The widths of a stack of linear layers, and K = max_k max|w|·√max(d_k, d_{k−1}) over its layers."""
    weights = [
        p for module in model.modules() for name, p in module.named_parameters(recurse=False) if name == "weight"
    ]
    if any(p.ndim != 2 for p in weights if p.ndim > 1):
        raise TheoryError(
            "this model has layers that are not linear; plan() reads stacks of linear layers. "
            "For convolutions call theory.theorem_3, or give the widths."
        )
    layers = [p.detach() for p in weights if p.ndim == 2]
    chained = all(a.shape[0] == b.shape[1] for a, b in pairwise(layers))
    if not layers or not chained:
        raise TheoryError("the linear layers of this model do not form one chain; give the widths instead.")
    scale = max(float(w.abs().max()) * math.sqrt(max(w.shape)) for w in layers)
    return (layers[0].shape[1], *(w.shape[0] for w in layers)), scale


def _sentences(found: Plan) -> list[str]:
    inner = len(found.widths) - 3
    lines = [
        f"{found.scheme} pruning of {inner} inner layer(s), widths {'-'.join(map(str, found.widths))}, "
        f"alpha = {found.alpha:.4g} ({100 * found.sparsity:.3g} % of the inner weights).",
        f"With probability {1 - found.delta:g} the outputs differ by at most {found.error:.4g} on the unit ball; "
        f"the network itself is bounded by {found.trivial:.4g} there.",
    ]
    if found.vacuous:
        lines.append("This guarantee is vacuous: it says no more than one knows without it.")
    if found.epsilon is not None and found.probability is not None:
        lines.append(f"An error of at most {found.epsilon:g} is guaranteed with probability {found.probability:.4g}.")
    goal = "a guarantee that says something" if found.epsilon is None else f"an error of {found.epsilon:g}"
    wide = f"{found.smallest_width:.0f}" if found.smallest_width < math.inf else f"more than {_WIDEST}"
    lines.append(f"Smallest sufficient hidden width for {goal} with probability {1 - found.delta:g}: {wide}.")
    most = "nothing" if found.smallest_alpha is None else f"alpha = {found.smallest_alpha:g}"
    share = "" if found.smallest_alpha is None else f" ({100 * _share(found.widths, found.smallest_alpha):.3g} %)"
    lines.append(f"The most that may be pruned at these widths for the same goal: {most}{share}.")
    lines.append(f"What binds: {found.binding}.")
    word = "vacuous" if found.printed.vacuous else "not vacuous"
    lines.append(
        f"{found.printed.theorem}: error {found.printed.error:.4g} with probability "
        f"{max(0.0, found.printed.probability):.4g} ({word})."
    )
    lines.extend(f"Assumes {text}." for text in found.assumptions)
    return lines
