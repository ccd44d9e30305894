"""A plan: its numbers, and the words of `print(plan(...))`."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from secateurs.theory.guarantee import Guarantee, Needed
from secateurs.theory.planning.search import WIDEST


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
class Plan:
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

    def to_json(self) -> str:
        """All of it; an infinite number is written as null."""
        return json.dumps(_plain(asdict(self)), indent=2, allow_nan=False)


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
        f"{found.smallest_width:.0f}"
        if found.smallest_width < math.inf
        else f"more than {WIDEST}"
    )
    yield (
        f"Smallest sufficient hidden width for {goal} with probability {1 - found.delta:g}: {wide}."
    )
    most = (
        "nothing"
        if found.smallest_alpha is None
        else f"alpha = {found.smallest_alpha:g}"
    )
    share = (
        "" if found.most_sparsity is None else f" ({100 * found.most_sparsity:.3g} %)"
    )
    yield f"The most that may be pruned at these widths for the same goal: {most}{share}."


def _print_says(found: Plan) -> Iterator[str]:
    limit = (
        f"up to {found.largest_alpha:.4g}" if found.largest_alpha < 1 else "in (0, 1)"
    )
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
    other = [
        text for text in printed.assumptions[:2] if text not in found.assumptions
    ]
    if other:
        yield f"It assumes, unlike the guarantee above: {'; '.join(other)}."
    if needed is not None:
        width = (
            f"{needed.width:.4g}" if needed.width < math.inf else "more than 1e300"
        )
        yield (
            f"For the same goal it asks for a width of {width}; its binding condition:"
            f" {needed.binding}."
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
