"""Top-1 equivalence: wherever f is confident, g answers the same class.

f is confident of class c at x if its output c exceeds every other by more than a margin δ; with δ =
0 that is everywhere but at ties. Then g has to answer c, too: its output c exceeds every other.

On a box, from bounds of y_i − y_j of each two outputs (of f, of g, and of what changed between
them, d): class c breaks nothing if f never leads with it by more than δ over some other class, or
if for every other class j either g_c − g_j > 0 on the whole box, or d_c − d_j ≤ δ there: then g_c −
g_j = (f_c − f_j) − (d_c − d_j) > δ − δ.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.proof.affine import TooLarge
from secateurs.proof.domain import Domain
from secateurs.proof.forms import FIELDS
from secateurs.proof.linear import Relaxation, Relaxed
from secateurs.proof.methods import (
    Proven,
    Skip,
    beyond_effort,
    by_zonotopes,
    passes_below,
    relax,
    rows_at_a_time,
)
from secateurs.proof.problem import NetworkPair

_MOST_CLASSES = 64
"""There are n(n − 1)/2 differences of n outputs: 2,016 of 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopClass:
    """The claim, with δ.

    slack: how far the outputs of f and of g (rows) can be from those of the networks that are
    bounded; None if they are the same.
    """

    margin: float
    slack: Tensor | None = None

    def violation(self, f: Tensor, g: Tensor) -> Tensor:
        """For each input the smaller of two numbers: how far another output of g exceeds that of
        f's class, and how far f's lead exceeds δ. Above 0 the claim is broken; elsewhere its slope
        leads there.
        """
        lead, wrong = self._lead_and_loss(f, g, torch.zeros_like(f), torch.zeros_like(g))
        return torch.minimum(lead - self.margin, wrong)

    def violation_at(self, problem: NetworkPair, x: Tensor) -> Tensor:
        """At most the violation of the real networks: above 0 the claim is broken for certain."""
        lead, wrong = self.for_certain(problem, x)
        return torch.minimum(lead - self.margin, wrong)

    def for_certain(self, problem: NetworkPair, x: Tensor) -> tuple[Tensor, Tensor]:
        """For each input at most f's lead, and how far g exceeds the output of f's class."""
        (f, of_f), (g, of_g) = problem.near(0, x), problem.near(1, x)
        # Once more the error covers the differences, which are rounded, too.
        own = 4 * torch.finfo(f.dtype).eps
        return self._lead_and_loss(f, g, of_f + own * f.abs(), of_g + own * g.abs())

    def _lead_and_loss(
        self, f: Tensor, g: Tensor, of_f: Tensor, of_g: Tensor
    ) -> tuple[Tensor, Tensor]:
        chosen = f.argmax(dim=1, keepdim=True)
        others = (f + of_f).scatter(1, chosen, -math.inf).amax(dim=1)
        lead = (f - of_f).gather(1, chosen).squeeze(1) - others
        wrong = (g - of_g) - (g + of_g).gather(1, chosen)
        return lead, wrong.scatter(1, chosen, -math.inf).amax(dim=1)

    def needs(self, ends: Tensor, *, complete: bool = False) -> Tensor:
        """For each box and two classes (c, j) a δ such that f never leads with c by more where g
        puts j first or as high: the largest of a box is a margin that holds there. Below 0 if f
        cannot lead with c, or g always puts c above j.

        ends: of y_i − y_j for i < j, (boxes, 6, pairs), in the order of `FIELDS`. complete:
        whether they hold for all that `slack` covers.
        """
        # 2·pairs = n(n − 1).
        classes = (1 + math.isqrt(1 + 8 * ends.shape[2])) // 2
        one, two = torch.triu_indices(classes, classes, offset=1, device=ends.device)
        if self.slack is not None and not complete:
            f, g = (s[one] + s[two] for s in self.slack)
            far = torch.stack([-f, f, -g, g, -(f + g), f + g])
            ends = ends + far * (1 + 1e-9)

        def most(low: int) -> Tensor:
            """Upper ends of y_i − y_j for all i and j."""
            both = ends.new_full((len(ends), classes, classes), math.nan)
            both[:, one, two], both[:, two, one] = ends[:, low + 1], -ends[:, low]
            return both

        f, g, d = most(0), most(2), most(4)
        # Column c of g: g_j − g_c. A tie is not agreement.
        d = torch.where(g.transpose(1, 2) < 0, -math.inf, d)
        same = torch.eye(classes, dtype=torch.bool, device=ends.device)
        # NaN proves nothing.
        harm, lead = (x.nan_to_num(nan=math.inf, posinf=math.inf) for x in (d, f))
        harm, lead = harm.masked_fill(same, -math.inf), lead.masked_fill(same, math.inf)
        return torch.minimum(lead.amin(dim=2, keepdim=True), harm)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAnswer:
    """The answer to the claim.

    Attributes:
        margin: How far f has to lead for the claim to cover an input.
        share: Of the volume, on which it was proven.
        counterexample: Where f is confident and g answers another class.
    """

    margin: float
    answer: Literal["proven", "refuted", "open"]
    share: float
    counterexample: Tensor | None


def check_classes(problem: NetworkPair) -> None:
    """Refuse outputs that are not classes, or too many."""
    if len(problem.output_shape) != 1 or not 2 <= problem.outputs <= _MOST_CLASSES:
        raise ArgumentError(
            f"claim='top-1' compares 2 to {_MOST_CLASSES} classes; the output for one input here "
            f"has the shape {problem.output_shape}."
        )


def pair_ends(problem: NetworkPair, domain: Domain) -> tuple[Tensor, bool]:
    """Ends of y_i − y_j for i < j, (boxes, 6, pairs), infinite where nothing can serve: by the
    linear relaxation, or by zonotopes if passes from all neurons exceed the effort; whether they
    are `complete`.
    """
    outputs = problem.outputs
    one, two = torch.triu_indices(outputs, outputs, offset=1, device=domain.lo.device)
    unknown = domain.lo.new_full((len(domain), len(FIELDS), len(one)), math.inf)
    unknown[:, ::2] = -math.inf
    each = torch.eye(outputs, dtype=domain.lo.dtype, device=domain.lo.device)
    toward = each[one] - each[two]
    if beyond_effort(problem):
        try:
            found = [(box, by_zonotopes(problem, box)) for box in domain.split(1)]
        except TooLarge:
            pass
        else:
            return torch.stack([_of_zonotopes(problem, *each, toward) for each in found]), True
    try:
        flow, y = relax(problem, domain)
    except Skip:
        return unknown, False
    return _passed(flow, y, toward.unsqueeze(1).expand(-1, len(domain), -1)), False


def _of_zonotopes(problem: NetworkPair, box: Domain, found: Proven, toward: Tensor) -> Tensor:
    """Ends of ⟨t, f⟩, ⟨t, g⟩ and ⟨t, f − g⟩ on one box, (6, rows)."""
    ends = found.pair.directions(toward, problem.unit)
    if found.known is None:
        return ends
    flow, y = passes_below(problem, box, found.seen, found.known)
    passed, done = torch.full_like(ends, math.nan), 0
    # As many rows at once as `linear` has outputs in a pass: a row is as large as all maps.
    for part in torch.split(toward, rows_at_a_time(problem)):
        if problem.clock.late():
            break
        passed[:, done : done + len(part)] = _passed(flow, y, part.unsqueeze(1))[0]
        done += len(part)
    # `fmax` and `fmin` take the other where one is NaN: there was no time, or passes overflow.
    ends[::2] = torch.fmax(ends[::2], passed[::2])
    ends[1::2] = torch.fmin(ends[1::2], passed[1::2])
    return ends


def _passed(flow: Relaxation, y: Relaxed, rows: Tensor) -> Tensor:
    """The same by passes, for rows (rows, boxes, outputs); (boxes, 6, rows)."""
    toward = torch.cat([rows, -rows]).reshape(2 * len(rows), *y.d.shape)
    passed = []
    for up in (
        flow.above(y, toward, None),
        flow.above(y, None, None, toward),
        flow.above(y, None, toward),
    ):
        high, low = up.detach().chunk(2)
        passed += [-low.T, high.T]
    return torch.stack(passed, dim=1)
