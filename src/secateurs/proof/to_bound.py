"""Prune as much as a certificate allows."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from secateurs.base.parametrized import revive_norms
from secateurs.base.prunable import Where
from secateurs.errors import ArgumentError
from secateurs.graph.replay import COMPARED
from secateurs.masks import apply_, select, sparsity_report
from secateurs.masks.budget import AmountFields
from secateurs.masks.patterns import Unstructured, pattern_of
from secateurs.proof.certificate import Certificate
from secateurs.proof.certify import certify
from secateurs.proof.record import Rounding
from secateurs.scores import score as score_of
from secateurs.scores.task import ScoreFields


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedToBound:
    """The masks applied, their sparsity, the certificate that holds, and every (sparsity, bound)
    that was tried.
    """

    sparsity: float
    masks: dict[str, Tensor] = field(repr=False)
    certificate: Certificate
    tried: tuple[tuple[float, float], ...]

    def __str__(self) -> str:
        return f"sparsity {self.sparsity:.4f} after {len(self.tried)} trials: {self.certificate}"


class _CertifyFields(TypedDict, total=False):
    """How the bound is computed; see `secateurs.certify`."""

    clip: tuple[float, float] | None
    methods: str | Sequence[str]
    norm: float
    rounding: Rounding
    effort: float
    seconds: float | None


class _BoundFields(_CertifyFields, ScoreFields, total=False):
    """How the bound is computed, and what the score takes."""


def prune_to_bound_(
    model: nn.Module,
    example: Tensor,
    *,
    bound: float,
    score: str | Callable[..., dict[str, Tensor]] = "magnitude",
    where: Where = None,
    scope: str = "global",
    pattern: str = "unstructured",
    box: Any = None,
    radius: float | None = None,
    tolerance: float = 0.005,
    generator: torch.Generator | None = None,
    **options: Unpack[_BoundFields],
) -> PrunedToBound:
    """Prune to the largest sparsity whose certificate stays ≤ `bound`, found by bisection; the
    model changes in place.

    Scores are computed once, so the masks are nested: the path metric between the model and its
    pruned copy then grows with the sparsity, and so does its bound. Other methods need not be
    monotone; whatever they give, the certificate returned was computed for the masks returned.

    Args:
        example: an input of the model; with `radius`, the centres of the balls to certify.
        bound: the largest ‖f(x) − g(x)‖ allowed, in `norm` over the outputs.
        score, where, scope, pattern: what goes first, as in `score` and `select`.
        box, radius: the domain on which the bound has to hold, as in `certify`.
        tolerance: bisection stops when the sparsity is known this well.
        options: clip, methods, norm, rounding, effort and seconds go to `certify`; all others
            (batch, loss, the options of the score) to `score`.

    The model is untouched when anything fails. A bound that no pruning meets gives sparsity 0 and
    all-True masks.

    >>> layer = nn.Linear(4, 1, bias=False)
    >>> layer.weight.data = torch.tensor([[1.0, 0.1, 2.0, 0.01]])
    >>> result = prune_to_bound_(layer, torch.zeros(1, 4), bound=0.2, radius=1.0)
    >>> result.sparsity, layer.weight.tolist()
    (0.5, [[1.0, 0.0, 2.0, 0.0]])
    """
    _check(bound, tolerance, box, radius)
    certifying: dict[str, Any] = {}
    scoring: dict[str, Any] = {}
    # All that is not of the bound goes to the score, which refuses options it does not know.
    for name, value in options.items():
        ours = name in _CertifyFields.__annotations__
        (certifying if ours else scoring)[name] = value
    scores = score_of(model, score, where=where, example=example, generator=generator, **scoring)
    if box is not None:
        certifying |= {"box": box, "example": example}
    else:
        certifying |= {"around": example, "radius": radius}
    tried: dict[float, float] = {}

    def attempt(sparsity: float, restarts: int = 0) -> tuple[dict[str, Tensor], Certificate]:
        # The bisection begins with everything, which has to be asked for as a density.
        amount: AmountFields = {"sparsity": sparsity} if sparsity < 1 else {"density": 0.0}
        # floor=0: the bound alone says what may go, a whole tensor as well.
        masks = select(scores, scope=scope, pattern=pattern, floor=0, **amount)
        if isinstance(pattern_of(pattern), Unstructured):
            masks = revive_norms(model, masks, {})
        other = copy.deepcopy(model)
        COMPARED.share(other, model)
        apply_(other, masks)
        cert = certify(model, other, **certifying, restarts=restarts, generator=generator)
        tried[sparsity_report(masks).sparsity] = cert.bound
        return masks, cert

    holds = _bisect(lambda s: attempt(s)[1].bound <= bound, tolerance)
    # Once more with a search: it bounds the certificate from below and need not run in
    # every trial.
    masks, cert = attempt(holds, restarts=4)
    if holds:
        apply_(model, masks)
    return PrunedToBound(
        sparsity=sparsity_report(masks).sparsity,
        masks=masks,
        certificate=cert,
        tried=tuple(sorted(tried.items())),
    )


def _bisect(allowed: Callable[[float], bool], tolerance: float) -> float:
    """The largest sparsity known to be allowed; 0 always is."""
    low, high = 0.0, 1.0
    # An empty network first: if that is allowed there is nothing to search for.
    if allowed(high):
        return high
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def _check(bound: float, tolerance: float, box: Any, radius: float | None) -> None:
    if not bound >= 0:
        raise ArgumentError(f"bound={bound!r}: the largest deviation allowed is a number ≥ 0.")
    if not 0 < tolerance < 1:
        raise ArgumentError(
            f"tolerance={tolerance!r}: bisection stops at a width between 0 and 1, such as 0.005."
        )
    if (box is None) == (radius is None):
        raise ArgumentError(
            "say for which inputs the bound must hold: either box=(lo, hi), or radius= around x."
        )
