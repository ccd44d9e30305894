"""Backward passes through a tape of relaxed values, and how they are rationed."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secateurs.paths.certificates.flows.affine_forms import AffineForms
from secateurs.paths.certificates.flows.bounds import FIELDS, Bounds
from secateurs.paths.certificates.flows.interval import Interval, centred
from secateurs.paths.certificates.flows.pair import gamma
from secateurs.paths.certificates.flows.patches.cones import Cone, cone
from secateurs.paths.certificates.flows.patches.passing import ends
from secateurs.paths.certificates.flows.patches.record import Record
from secateurs.paths.certificates.flows.planes import loss
from secateurs.paths.certificates.flows.two_stream import Streams
from secateurs.paths.certificates.problems.clock import Clock, Pace

_CELLS = 2**24  # entries of one backward pass: 128 MB in float64

_PART = 2**19
"""Entries of the widest windows of one pass: 4 MB, so that they stay near the processor."""


WIDE = 2
"""Windows may hold this many times the cells of the maps. One of their cells costs a half of what a
map's costs, or less: no autograd, no neurons that only other boxes want.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """A value of f, of g, and their difference as tape, with forward bounds beside, exact ones up
    to `depth` 1.

    Attributes:
        mass: The sums of absolute values behind z and d, from which the rounding of the backward
            passes is bounded; `mass_g` those behind g.
        inner: The value of the forward flow.
    """

    z: Tensor
    g: Tensor
    d: Tensor
    mass: Streams
    mass_g: Tensor
    inner: Any
    depth: int


class Backward:
    """The variables of the affine functions, and bounds of directions by passes down to them.

    Bounds of pre-activations are improved by backward passes while `effort` (cells of all backward
    passes, per box) and the time of `pace` last; of a layer that costs more than its share, the
    neurons that lose most come first. Whatever is left keeps the bounds of the `inner` forward
    flow. `loose` counts the layers in which some neuron was left.

    effort: for all boxes, or one for each. layers: how many layers share it; 1 lets each spend all
    that is left. ahead: how many layers share the time.
    """

    def __init__(
        self,
        *,
        effort: float | Tensor = 1e9,
        unit: float = 0.0,
        pace: Pace | None = None,
        inner: "Interval | AffineForms | None" = None,
        layers: int = 1,
        ahead: int = 1,
    ) -> None:
        self.effort, self.unit = effort, unit
        self.pace = Pace(clock=Clock()) if pace is None else pace
        self.inner: Any = Interval(unit=unit) if inner is None else inner
        self.loose = 0
        self.record = Record()
        self._layers, self._ahead = layers, ahead
        self._steps = 32
        self._cells = 0

    def begin(self, lo: Tensor, hi: Tensor) -> None:
        """Boxes lo ≤ x ≤ hi, with an effort each."""
        self._middle, self._radius = centred(lo, hi)
        # What the backward passes reach: their slope at x, and at `one` all constants.
        self._x = self._middle.clone().requires_grad_()
        self._one = lo.new_ones(len(lo)).requires_grad_()
        self.left = self.effort * lo.new_ones(len(lo))

    def bounds(self, x: Relaxed) -> Bounds:
        """What the forward flow says."""
        known: Bounds = self.inner.bounds(x.inner)
        return known

    def above(
        self,
        x: Relaxed,
        toward_z: Tensor | None,
        toward_d: Tensor | None,
        toward_g: Tensor | None = None,
    ) -> Tensor:
        """Upper bounds of ⟨toward_z, z⟩ + ⟨toward_d, δ⟩ + ⟨toward_g, z'⟩ over each box.

        Directions are (rows, boxes, *shape) or None, the result (rows, boxes).
        """
        all_three = (
            (x.z, toward_z, x.mass.m),
            (x.d, toward_d, x.mass.d),
            (x.g, toward_g, x.mass_g),
        )
        used = [(v, c, m) for v, c, m in all_three if c is not None]
        rows = len(used[0][1])
        value = self._one.new_zeros(rows, len(self._one))
        # No tape behind any of the values: they are zero throughout.
        if not any(v.requires_grad for v, _, _ in used):
            return value
        slope, constant = torch.autograd.grad(
            [v for v, _, _ in used if v.requires_grad],
            [self._x, self._one],
            grad_outputs=[c for v, c, _ in used if v.requires_grad],
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        # A value kept as an interval does not reach the input: autograd's own zeros would come
        # without the dimension of the directions.
        slope, constant = (
            like.new_zeros(rows, *like.shape) if found is None else found
            for found, like in ((slope, self._x), (constant, self._one))
        )
        # An affine function is largest on a box at middle + radius, signed like its
        # slope.
        value = (slope * self._middle + slope.abs() * self._radius).flatten(2).sum(
            2
        ) + constant
        if self.unit:
            # Rounding of the backward pass, which sums what `mass` sums in absolute
            # values.
            value = value + self._share() * sum(
                (c.abs() * m).flatten(2).sum(2) for _, c, m in used
            )
        return value

    def improved(self, x: Relaxed, name: str) -> Bounds:
        """Bounds by backward passes where a neuron is open and its box can still afford them; x is
        the value of the node `name`.

        Every box has an effort of its own, so that its bound does not depend on its company.
        """
        bounds = self.bounds(x)
        flat = bounds.flattened()
        open_ = ~flat.settled
        self._layers -= 1
        self._ahead -= 1
        self.pace.say(f"linear: at {name}")
        # Up to the first open layer the forward bounds are exact: a pass would find
        # nothing new.
        if x.depth < 2 or not bool(open_.any()):
            return bounds
        # Twice its share of the time, for the layers to come take time even without a pass.
        clock = self.pace.clock
        self.pace = self.pace.under(clock.within(2 / max(2, self._ahead + 2)))
        behind = self._cone(name)
        wanted = self._afforded(flat, open_, behind.cells if behind else self._cells)
        if behind is None:
            flat, wanted = self._by_maps(x, flat, wanted)
        else:
            flat, wanted = self._by_windows(x, flat, wanted, behind)
        self.pace = self.pace.under(clock)
        self.loose += int(bool((open_ & ~wanted).any()))
        return flat.reshaped(bounds.l.shape)

    def _cone(self, name: str) -> Cone | None:
        """The windows behind a map, unless they are much larger than the maps themselves."""
        found = cone(self.record.nodes, name)
        return (
            found if found is not None and found.cells <= WIDE * self._cells else None
        )

    def _by_windows(
        self, x: Relaxed, flat: Bounds, wanted: Tensor, behind: Cone
    ) -> tuple[Bounds, Tensor]:
        """Bounds of the wanted neurons by passes on windows, and which got theirs in time."""
        done = torch.zeros_like(wanted)
        if not bool(wanted.any()):
            return flat, done
        # Eight directions a neuron.
        size = max(1, _PART // (8 * behind.widest))
        for part in torch.split(wanted.nonzero(), size):
            if not self.pace.allows(len(part) * behind.cells):
                break
            box, neuron = part.unbind(dim=1)
            found = ends(self.record, behind, box, neuron)
            if self.unit:
                masses = [
                    m.flatten(1).expand(len(wanted), -1)[box, neuron]
                    for m in (x.mass.m, x.mass.d, x.mass_g)
                ]
                lost = torch.stack(masses).repeat_interleave(2, dim=0)
                found = found + self._share() * lost
            h, l, dh, dl, gh, gl = found
            new = Bounds(l=-l, h=h, gl=-gl, gh=gh, dl=-dl, dh=dh)
            # A backward pass may be looser than the forward bound, so both are kept.
            flat = flat.replaced(box, neuron, flat.at(box, neuron).meet(new))
            done[box, neuron] = True
            self.pace.done(f"linear: {int(done.sum())} neurons at {behind.root}")
        return flat, done

    def _by_maps(
        self, x: Relaxed, flat: Bounds, wanted: Tensor
    ) -> tuple[Bounds, Tensor]:
        """Bounds of the wanted neurons by passes over whole maps, and which got theirs in time."""
        done = 0
        # Every box has a list of its own, so that none pays for what only its neighbours need.
        most = int(wanted.sum(dim=1).max())
        # Stable, so that ties give the same list whatever the machine.
        lists = wanted.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        # By the cells of all maps, so that one pass of a large network takes seconds at most.
        chunk = max(1, _CELLS // (2 * len(self._one) * self._cells))
        for index in torch.split(lists[:, :most], chunk, dim=1) if most else ():
            if not self.pace.allows(index.numel() * self._cells):
                wanted = wanted.scatter(1, lists[:, done:], False)
                break
            flat = _insert(
                flat, index, self._around(x, index), wanted.gather(1, index)
            )
            done += index.shape[1]
            self.pace.done(f"linear: {done} of {most} neurons of a layer")
        return flat, wanted

    def _afforded(self, flat: Bounds, open_: Tensor, cells: int) -> Tensor:
        """The open neurons each box pays for: all, or those that lose most.

        A layer may spend twice its share of what is left, so that early layers cannot starve the
        late ones, nor the late ones leave anything over.
        """
        price = 6.0 * cells
        # Neither above twice the share nor above what is left.
        purse = (2 * self.left / max(1, self._layers + 1)).minimum(self.left)
        count = torch.minimum(open_.sum(dim=1), (purse / price).floor().long())
        losses = torch.where(open_, loss(flat), -1.0)
        # The second argsort turns an order into ranks.
        rank = losses.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        wanted = open_ & (rank < count.unsqueeze(1))
        self.left = self.left - price * wanted.sum(dim=1)
        return wanted

    def _around(self, x: Relaxed, index: Tensor) -> Bounds:
        """Both ends of z, z' and δ for these neurons, (boxes, neurons)."""
        rows, boxes = index.shape[1], x.z.shape[0]
        unit = x.z.new_zeros(rows, boxes, x.z[0].numel())
        unit.scatter_(2, index.T.unsqueeze(2), 1.0)
        unit = unit.reshape(rows, *x.z.shape)
        # An upper bound of −v is minus a lower bound of v: one batch gives both ends.
        both = torch.cat([unit, -unit])
        # Three calls, for the tapes of z and of z' are a third of the one of δ.
        h, l = self.above(x, both, None).chunk(2)
        gh, gl = self.above(x, None, None, both).chunk(2)
        dh, dl = self.above(x, None, both).chunk(2)
        return Bounds(l=-l.T, h=h.T, gl=-gl.T, gh=gh.T, dl=-dl.T, dh=dh.T)

    def _share(self) -> float:
        """How much of the mass behind a value rounding can add to the bound of a pass."""
        return 8 * gamma(self._steps + self._middle[0].numel(), self.unit)

    def times_one(self, value: Tensor) -> Tensor:
        """Numbers as tape."""
        return value * self.constant(value.ndim - 1)

    def constant(self, dims: int) -> Tensor:
        """The extra input that stands for one, in a shape that multiplies values."""
        return self._one.reshape(-1, *[1] * dims)

    def count(self, x: Relaxed) -> Relaxed:
        """Remember how large the tape has grown."""
        self._cells += x.z[0].numel()
        return x


def _insert(flat: Bounds, index: Tensor, found: Bounds, where: Tensor) -> Bounds:
    """The bounds with those of some neurons replaced, in some boxes, by what follows from both."""
    old = Bounds(**{k: getattr(flat, k).gather(1, index) for k in FIELDS})
    # A backward pass may be looser than the forward bound, so both are kept.
    met = old.meet(found)
    new = {k: torch.where(where, getattr(met, k), getattr(old, k)) for k in FIELDS}
    return Bounds(**{k: getattr(flat, k).scatter(1, index, new[k]) for k in FIELDS})
