"""Training for certificates: a loss that holds the certified |f − g| of random changes below the
margin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.base.random import uniform
from secateurs.errors import ArgumentError
from secateurs.graph import Graph, State, propagate
from secateurs.graph.primitives import Activation, Add, Affine, Input, Pool, Structural
from secateurs.proof.forms import (
    Bounds,
    ParameterPair,
    gap,
    lift,
    linear,
    magnitude,
    reorder,
    signed_sum,
)
from secateurs.proof.interval import activate

Change: TypeAlias = Callable[[Tensor, torch.Generator | None], Tensor]
"""Turns a weight into that of the changed network: drawn afresh at each call, differentiable."""


def certified_gap(
    model: nn.Module,
    graph: Graph,
    x: Tensor,
    *,
    radius: float,
    change: Change,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Upper bounds of |f − g| on the ball around each input, (batch, outputs), differentiable.

    g is the model with `change` applied to every weight of two or more dimensions. The bound is
    that of intervals in the model's own precision: good to train with, no certificate (rounding is
    not covered; `certify` gives one afterwards).

    Args:
        model: in evaluation mode, so that batch norm is the map it will be.
        graph: `secateurs.capture(model, x[:1])`, captured once before the loop.
        x: a batch of inputs.
        radius: of the ℓ∞-balls, in units of the input.
        change: such as `masked(0.2)` or `rounded(8)`.

    >>> model = nn.Linear(2, 1, bias=False).eval()
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> from secateurs.graph import capture
    >>> graph = capture(model, torch.zeros(1, 2))
    >>> x = torch.tensor([[1.0, 2.0]])
    >>> bound = certified_gap(model, graph, x, radius=0.5, change=lambda w, generator: 0.5 * w)
    >>> bound.tolist()
    [[2.0]]
    """
    if model.training:
        raise ArgumentError(
            "the model is in training mode, in which batch norm computes a different function on "
            "each batch. Train this phase after model.eval(): parameters are trained, running "
            "statistics stay fixed."
        )
    # In the model's own precision and with gradients: this is trained, not proved.
    state = graph.state(model, dtype=None)
    pair = ParameterPair(f=state, g=changed(graph, state, change, generator))
    center = x.unsqueeze(1)
    fed = center, torch.full_like(center, radius)
    bound: Tensor = propagate(graph, Coarse(), [fed], pair).largest.flatten(1)
    return bound


def certified_loss(outputs: Tensor, labels: Tensor, gap: Tensor, *, share: float = 0.5) -> Tensor:
    """(1 − share)·CE(f) + share·CE(f moved against the label as far as is certified possible).

    Where the second term is small, no change of that kind can alter the class on the ball.

    Args:
        outputs, labels: of one batch, as for cross-entropy.
        gap: `certified_gap(...)` of the same batch.
        share: between 0 (plain training) and 1.

    >>> outputs, gap = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    >>> round(float(certified_loss(outputs, torch.tensor([0]), gap, share=1.0)), 4)
    0.6931
    """
    if not 0 <= share <= 1:
        raise ArgumentError(f"share={share!r} is not in [0, 1].")
    own = F.one_hot(labels, outputs.shape[1]).bool()
    # The label's logit falls and all others rise by what is possible: no change is
    # worse.
    worst = torch.where(own, outputs - gap, outputs + gap)
    plain = F.cross_entropy(outputs, labels)
    loss: Tensor = (1 - share) * plain + share * F.cross_entropy(worst, labels)
    return loss


def changed(
    graph: Graph, state: State, change: Change, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """The state with every weight of two or more dimensions changed."""
    return {
        name: change(value, generator) if name in graph.parameters and value.ndim > 1 else value
        for name, value in state.items()
    }


def masked(sparsity: float, *, jitter: float = 0.3) -> Change:
    """Zeroes this share of each weight, small entries first, by |w| · exp(jitter · noise).

    jitter: 0 is magnitude pruning; ∞ is any mask at random. Some keeps the network from relying on
    one mask.
    """
    if not 0 <= sparsity < 1:
        raise ArgumentError(f"sparsity={sparsity!r} is not in [0, 1).")

    def change(weight: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = uniform(weight, generator=generator, dtype=weight.dtype)
        score = noise
        if jitter < float("inf"):
            # A uniform draw within ±√3 has the variance 1.
            score = weight.detach().abs() * (jitter * 3**0.5 * (2 * noise - 1)).exp()
        lost = int(sparsity * weight.numel())
        kept = torch.ones_like(weight).flatten()
        # The choice passes no gradient; the kept weights do, through the product below.
        kept[score.flatten().topk(lost, largest=False).indices] = 0
        return weight * kept.reshape(weight.shape)

    return change


def rounded(bits: int) -> Change:
    """Rounds each entry up or down at random to a grid of 2^bits − 1 levels; the gradient passes.

    Either neighbour may be drawn, so that the network learns to tolerate both.
    """
    if bits < 2:
        raise ArgumentError(f"bits={bits!r}: give at least 2 bits.")

    def change(weight: Tensor, generator: torch.Generator | None) -> Tensor:
        step = weight.detach().abs().max() / (2 ** (bits - 1) - 1)
        noise = uniform(weight, generator=generator, dtype=weight.dtype)
        # floor(x + uniform) rounds up with the probability of the fraction: unbiased.
        # The clamp keeps a tensor of zeros from 0/0.
        grid = torch.floor(weight.detach() / step.clamp(min=1e-30) + noise) * step
        # The value of the grid with the gradient of the weight.
        moved: Tensor = weight + (grid - weight.detach())
        return moved

    return change


# Intervals of f and of f − g with as few passes as possible: the flow that training differentiates.
#
# `Interval` of interval.py also carries the interval of g and tightens each of the three by the
# other two. Here g is derived from f and the difference, which saves two of eight passes and most
# of the tape; nothing is rounded outwards. In real arithmetic it is as sound, but looser.


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseIntervals:
    """f within cf ± rf and f − g within cd ± rd; all (boxes, *shape)."""

    cf: Tensor
    rf: Tensor
    cd: Tensor
    rd: Tensor

    @property
    def largest(self) -> Tensor:
        """The largest |f − g|."""
        return self.cd.abs() + self.rd

    @property
    def bounds(self) -> Bounds:
        """Ends of f and of the difference, and the resulting ends of g."""
        l, h = self.cf - self.rf, self.cf + self.rf
        dl, dh = self.cd - self.rd, self.cd + self.rd
        return Bounds(l=l, h=h, gl=l - dh, gh=h - dl, dl=dl, dh=dh)


class Coarse:
    """The flow; fed with a pair (centre, radius), params is a `ParameterPair`."""

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> CoarseIntervals:
        """The box; both networks see one input."""
        center, radius = value
        zero = torch.zeros_like(center)
        return CoarseIntervals(cf=center, rf=radius, cd=zero, rd=zero)

    def affine(
        self, node: Affine, x: CoarseIntervals | None, params: ParameterPair
    ) -> CoarseIntervals:
        """W z − W' z' = W' (z − z') + (W − W') z, in centres, and with |·| in radii."""
        b, c = params.biases(node) or (torch.zeros(()),) * 2
        if x is None:
            zero = b.new_zeros(1, *node.shape)
            return CoarseIntervals(cf=zero + b, rf=zero, cd=zero + (b - c), rd=zero)
        w, v = params.weights(node)
        cf, cd = _both(node, x.cf, x.cd, w, v)
        rf, rd = _both(node, x.rf, x.rd, w, v, magnitude)
        return CoarseIntervals(cf=cf + b, rf=rf, cd=cd + (b - c), rd=rd)

    def activation(self, node: Activation, x: CoarseIntervals) -> CoarseIntervals:
        """The case split of ReluDiff."""
        return _centred(activate(x.bounds, node.slope))

    def pool(self, node: Pool, x: CoarseIntervals) -> CoarseIntervals:
        """A k-th largest grows with every entry; two of them differ by no more than the entries."""
        b = x.bounds
        # Ends of the difference by the maximum of the entries' ends, for every k: two k-th largest
        # values differ by no more than the entry that moved most.
        ends = {"l": lift(node.apply, b.l), "h": lift(node.apply, b.h)}
        ends |= {"dl": -lift(node.maximum, -b.dl), "dh": lift(node.maximum, b.dh)}
        return _centred(Bounds(gl=ends["l"], gh=ends["h"], **ends))

    def structural(self, node: Structural, xs: Sequence[CoarseIntervals]) -> CoarseIntervals:
        """The same reordering of centres and radii."""
        return reorder(node, xs)

    def add(self, node: Add, xs: Sequence[CoarseIntervals]) -> CoarseIntervals:
        """Centres add with signs, radii without."""
        centers = {k: signed_sum(node, [getattr(x, k) for x in xs]) for k in ("cf", "cd")}
        radii = {k: sum((getattr(x, k) for x in xs[1:]), getattr(xs[0], k)) for k in ("rf", "rd")}
        return CoarseIntervals(**centers, **radii)


def _both(
    node: Affine,
    f: Tensor,
    d: Tensor,
    w: Tensor | None,
    v: Tensor | None,
    size: Callable[[Tensor | None], Tensor | None] = lambda weight: weight,
) -> tuple[Tensor, Tensor]:
    """(W f, W' d + (W − W') f), with `size` of each matrix."""
    change = gap(w, v)
    # Unchanged layers need no third pass.
    if w is None or v is None or change is None or torch.equal(w, v):
        return linear(node, f, size(w)), linear(node, d, size(v))
    axes = node.operation.axes
    # Blocks would mix the groups of a grouped or depthwise map.
    if axes is None or axes.diagonal or axes.groups != 1:
        moved = linear(node, d, size(v)) + linear(node, f, size(change))
        return linear(node, f, size(w)), moved
    # One pass over the channels of both, since narrow convolutions cost as much as ones twice as
    # wide.
    one, two, three = (size(matrix) for matrix in (w, v, change))
    rows = [torch.cat(row, dim=axes.weight_in) for row in _blocks(one, two, three)]
    weight = torch.cat(rows, dim=axes.weight_out)
    stacked = linear(node, torch.cat([f, d], dim=_of_boxes(axes.x)), weight)
    first, second = stacked.chunk(2, dim=_of_boxes(axes.y))
    return first, second


def _blocks(w: Tensor | None, v: Tensor | None, change: Tensor | None) -> list[list[Tensor]]:
    """[[W, 0], [W − W', W']], rows over outputs."""
    if w is None or v is None or change is None:
        return []
    return [[w, torch.zeros_like(w)], [change, v]]


def _of_boxes(axis: int) -> int:
    """An axis of one sample, in a batch of boxes."""
    return axis + 1 if axis >= 0 else axis


def _centred(b: Bounds) -> CoarseIntervals:
    return CoarseIntervals(
        cf=(b.l + b.h) / 2,
        rf=(b.h - b.l) / 2,
        cd=(b.dl + b.dh) / 2,
        rd=(b.dh - b.dl) / 2,
    )
