"""Margins: inputs whose predicted class a bounded change cannot alter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, DomainError
from secateurs.proof.compared import inputs_of
from secateurs.proof.domain import Domain, ball_domain
from secateurs.proof.methods import Skip, relax, run_methods
from secateurs.proof.problem import NetworkPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The contents of a certificate: the domain, its bounds per box and output, and the methods
    that proved them; `errors` is what a bound on boxes adds to theirs for rounding.
    """

    problem: NetworkPair
    domain: Domain
    per_box: Tensor
    methods: tuple[str, ...]
    errors: Callable[[Domain], Tensor]


def certified(
    region: Region,
    data: Any,
    labels: Tensor | None,
    *,
    radius: float | None,
    clip: tuple[float, float] | None,
    whole_ball: bool,
) -> Tensor:
    """Per input, whether its class is safe; see `Certificate.certified`."""
    x, own_labels = inputs_of(data)
    labels = own_labels if labels is None else labels
    x = _check(region, x, labels)
    domain = _own_balls(region, x, radius, clip)
    if domain is None and whole_ball:
        raise ArgumentError("whole_ball needs a ball around each input: give radius=.")
    logits, error = region.problem.near(0, x)
    chosen = logits.argmax(dim=1)
    if domain is None:
        # An input may lie in any of the boxes, so each output takes its largest bound
        # of all.
        reach = region.per_box.amax(dim=0).expand(len(x), -1)
        safe = keeps_class(logits, chosen, joint_change(reach + error, chosen))
    else:
        safe = torch.cat(
            _by_ball(
                region,
                domain,
                logits,
                error,
                chosen,
                whole_ball=whole_ball,
            )
        )
    return safe if labels is None else safe & (chosen == labels.to(chosen.device))


def _by_ball(
    region: Region,
    domain: Domain,
    logits: Tensor,
    error: Tensor,
    chosen: Tensor,
    *,
    whole_ball: bool,
) -> list[Tensor]:
    problem, size = region.problem, region.problem.boxes_at_a_time
    safe = []
    pieces = (torch.split(t, size) for t in (logits, error, chosen))
    for part, f, own, c in zip(domain.split(size), *pieces, strict=True):
        with torch.no_grad():
            proven, _ = run_methods(problem, part, region.methods)
            added = region.errors(part)
            reach = torch.stack([r.per_output for r in proven.values()]).amin(dim=0)
        change = joint_change(reach, c)
        pairs = _pairs(problem, part, c, region.methods)
        if pairs is not None:
            # Bounding f_c − f_j as one direction keeps what both logits share, and is never looser.
            change = torch.minimum(change, pairs[0])
        # The logits are those of float64.
        clear = keeps_class(f, c, change + joint_change(added + own, c))
        if whole_ball:
            clear = _stays(c, pairs, joint_change(added, c))
        safe.append(clear)
    return safe


def _pairs(
    problem: NetworkPair, domain: Domain, chosen: Tensor, methods: Sequence[str]
) -> tuple[Tensor, Tensor] | None:
    """Over each ball: upper bounds of the change of f_c − f_j, and of g_j − g_c, for every class
    j.
    """
    if "linear" not in methods:
        return None
    try:
        flow, y = relax(problem, domain)
    except Skip:
        return None
    flat = y.d.flatten(1)
    own = torch.nn.functional.one_hot(chosen, flat.shape[1]).to(flat.dtype)
    each = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device).unsqueeze(1)
    # Rows are e_c − e_j. With g = f − δ, minus it on f and plus it on δ is g_j − g_c.
    toward = (own - each).reshape(flat.shape[1], *y.d.shape)
    return flow.above(y, None, toward).T.detach(), flow.above(y, -toward, toward).T.detach()


def joint_change(per_output: Tensor, chosen: Tensor) -> Tensor:
    """How far the chosen logit and each other one can move together."""
    return per_output.gather(1, chosen.unsqueeze(1)) + per_output


def keeps_class(logits: Tensor, chosen: Tensor, change: Tensor) -> Tensor:
    """Whether the margin to every other class exceeds the change."""
    # Strictly larger, since at a tie argmax could return either class.
    margin = logits.gather(1, chosen.unsqueeze(1)) - logits
    return _except(chosen, margin > change).all(dim=1)


def _stays(chosen: Tensor, pairs: tuple[Tensor, Tensor] | None, error: Tensor) -> Tensor:
    """Whether g predicts the chosen class on the whole ball."""
    if pairs is None:
        raise ArgumentError("whole_ball needs the method 'linear', which does not apply here.")
    return _except(chosen, pairs[1] + error < 0).all(dim=1)


def _except(chosen: Tensor, holds: Tensor) -> Tensor:
    # The margin of a class to itself is 0 and must not count.
    return holds.scatter(1, chosen.unsqueeze(1), True)


def _own_balls(
    region: Region, x: Tensor, radius: float | None, clip: tuple[float, float] | None
) -> Domain | None:
    """One ball per input; None if one domain serves all."""
    if radius is not None:
        return ball_domain(x, radius, clip=clip)
    domain = region.domain
    # If the inputs are the same bit for bit, in the same order, each has its own ball.
    if domain.center.shape == x.shape and torch.equal(domain.center, x):
        return domain
    outside = int((~domain.contains(x)).sum())
    if outside:
        raise DomainError(
            f"{outside} of {len(x)} inputs lie outside the {domain.description} of this"
            " certificate; give radius= for a ball around each, or certify a box that holds them."
        )
    return None


def _check(region: Region, x: Tensor, labels: Tensor | None) -> Tensor:
    shape = region.domain.lo.shape[1:]
    if x.shape[1:] != shape:
        raise DomainError(
            f"the inputs have shape {tuple(x.shape[1:])}, but the certificate is about inputs of "
            f"shape {tuple(shape)}."
        )
    if len(region.problem.output_shape) != 1 or region.problem.outputs < 2:
        raise ArgumentError(
            f"outputs of shape {region.problem.output_shape} are not logits of at least two"
            " classes."
        )
    if labels is not None and len(labels) != len(x):
        raise ArgumentError(f"{len(labels)} labels for {len(x)} inputs.")
    if not bool(x.isfinite().all()):
        raise DomainError("the inputs hold NaN or infinity.")
    return x.detach().double()
