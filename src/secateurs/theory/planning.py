"""How much can be pruned? The theorems of Qian & Klabjan (2021), asked as a user asks them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from secateurs.theory.concentration import LATALA_CONSTANT
from secateurs.theory.guarantee import Guarantee, check_positive, check_unit, check_widths
from secateurs.theory.plan_schemes import Scheme, asked
from secateurs.theory.plan_search import (
    WIDEST,
    exponent_for,
    good_enough,
    probability_of,
    smallest_alpha,
    smallest_width,
)
from secateurs.theory.reading import read_chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What theory promises for these widths, in numbers; `str(plan)` says it in words.

    * `error`: sup_{‖x‖≤1}‖f(x) − F(x)‖ guaranteed with probability 1 − delta; `trivial` bounds sup‖F‖ itself.
    * `probability`: the guaranteed probability of an error of at most epsilon (None without epsilon).
    * `smallest_width`: all hidden layers this wide suffice (for epsilon, or for a guarantee that is not vacuous).
    * `smallest_alpha`: the most that may be pruned at these widths (α small = many weights), a share of `most_sparsity`
      of the inner weights; `largest_alpha`: the least that the conditions of Theorems 2, 3 as printed allow.
    * `printed`: the same question put to the theorem as printed, at the given alpha (None for filters).
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
    most_sparsity: float | None
    largest_alpha: float
    binding: str
    vacuous: bool
    printed: Guarantee | None
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
    constant: float = LATALA_CONSTANT,
    input_size: int | Sequence[int] | None = None,
) -> Plan:
    """The guarantee for pruning the inner layers of a network, and what would be needed for more.

    Give `alpha` (each inner layer loses ⌊D^{1−α}⌋ of its D entries) or the `sparsity` of the inner layers. `scale` is K
    of the entries' range ±K/√max(d_k, d_{k−1}); read off the model, else 1. The promise comes from
    `theorem_1_explicit` ("magnitude"), `theorem_2_explicit` ("random": that many draws with replacement) or, for an
    nn.Sequential of convolutions with one linear layer at its end and `input_size` (height and width), the argument of
    `theorem_3_explicit` ("filters": ⌊D^{1−α/2}⌋ of D filters are drawn; range ±K/(q√max(d_k, d_{k−1})); zero padding
    and strides are covered by the circular convolution on the padded map). No unknown constant enters; `constant`
    (Lemma 4's C) is used for what print says.

    >>> print(plan([784, 1024, 1024, 10], alpha=0.5, delta=0.01))
    magnitude pruning of 1 inner layer(s), widths 784-1024-1024-10, alpha = 0.5 (0.0977 % of the inner weights).
    ...
    """
    chain = read_chain(model_or_widths, input_size)
    widths, scale = chain.widths, chain.scale if scale is None else scale
    check_widths(widths)
    check_positive(scale=scale, lipschitz=lipschitz, **({} if epsilon is None else {"epsilon": epsilon}))
    check_unit(delta=delta)
    theorem = asked(scheme, chain, scale=scale, lipschitz=lipschitz, constant=constant)
    exponent = exponent_for(theorem.share, widths, alpha, sparsity)
    here = theorem.promise(widths, exponent, delta)
    reaches = good_enough(theorem.promise, delta, epsilon)
    most = smallest_alpha(reaches, widths)
    return Plan(
        scheme=scheme,
        widths=widths,
        alpha=exponent,
        sparsity=theorem.share(widths, exponent),
        delta=delta,
        epsilon=epsilon,
        error=here.error,
        trivial=here.trivial,
        probability=None if epsilon is None else probability_of(theorem.promise, widths, exponent, epsilon),
        smallest_width=smallest_width(reaches, widths, exponent),
        smallest_alpha=most,
        most_sparsity=None if most is None else theorem.share(widths, most),
        largest_alpha=theorem.limit,
        binding=_binding(here, epsilon),
        vacuous=here.vacuous,
        printed=theorem.printed(exponent),
        assumptions=here.assumptions,
    )


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
    wide = f"{found.smallest_width:.0f}" if found.smallest_width < math.inf else f"more than {WIDEST}"
    lines.append(f"Smallest sufficient hidden width for {goal} with probability {1 - found.delta:g}: {wide}.")
    most = "nothing" if found.smallest_alpha is None else f"alpha = {found.smallest_alpha:g}"
    share = "" if found.most_sparsity is None else f" ({100 * found.most_sparsity:.3g} %)"
    lines.append(f"The most that may be pruned at these widths for the same goal: {most}{share}.")
    lines.append(f"What binds: {found.binding}.")
    lines.extend(_print_says(found.printed))
    lines.extend(f"Assumes {text}." for text in found.assumptions)
    return lines


def _print_says(printed: Guarantee | None) -> list[str]:
    if printed is None:
        return []
    failed = f"; {printed.failed[0]}" if printed.failed else ""
    word = f"vacuous{failed}" if printed.vacuous else "not vacuous"
    return [
        f"{printed.theorem}: error {printed.error:.4g} with probability {max(0.0, printed.probability):.4g} ({word})."
    ]
