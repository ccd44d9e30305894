"""Backward passes on the ranges that zonotopes proved.

A zonotope keeps an open neuron between two parallel lines, whose whole width then travels on in
either direction. A backward pass from an output takes of each neuron the line that this output
needs, so on the same ranges it is never far above and often well below. Passes from the open
neurons of the last layers narrow what is known of them, on which all further passes stand: on a
ResNet-20 their differences by half and their values by a tenth, of which each lowers the bound.

The roundings of a pass are put where they happen: at each node they are at most a share of what
the node sums in absolute values, which the ranges before it bound, and the pass adds this times its
own slope there. (`Relaxation` sums these values through all layers at once, which multiplies the
norms of all weights: after twenty layers that is more than the bound.)
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.primitives import Node
from secateurs.proof.forms import Bounds, StreamValues, Widened
from secateurs.proof.interval import Known
from secateurs.proof.linear import Relaxation, Relaxed
from secateurs.proof.patches import Cone
from secateurs.proof.planes import EVERY, costliest
from secateurs.proof.zonotope import Pair, Zonotopes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanges:
    """What is known of a node's values on one box: their ends, and what numbers add there to f, to
    g and to f − g.
    """

    bounds: Bounds
    added: tuple[Tensor, Tensor, Tensor]


class RangedZonotopes(Zonotopes):
    """Zonotopes that leave behind what they prove of every node, in `seen`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[str, NodeRanges] = {}
        self._now: dict[int, Tensor | float] = {}

    def _of(self, node: Node, *given: Any, **more: Any) -> Any:
        return self._see(node, getattr(super(), type(node).__name__.lower())(node, *given, **more))

    input = affine = activation = pool = structural = add = opaque = _of

    def _added(self, which: int, *given: Any) -> Tensor | float:
        self._now[which] = super()._added(which, *given)
        return self._now[which]

    def _see(self, node: Node, x: Pair) -> Pair:
        (l, h), (gl, gh), (dl, dh) = x.ends(self.unit)
        f, g, d = (
            torch.as_tensor(self._now.get(k, 0.0), dtype=l.dtype, device=l.device).expand_as(l)
            for k in range(3)
        )
        bounds = Bounds(l=l, h=h, gl=gl, gh=gh, dl=dl, dh=dh)
        self.seen[node.name] = NodeRanges(bounds=bounds, added=(f, g, d))
        self._now = {}
        return x


_TRIED = 4
"""Neurons of a layer that are tried before all others."""

_WORTH = 0.85
"""Passes from a layer are worth their time where they narrow the differences to less than this. On
ResNets at radii that open many neurons they gain most, and at 0.75 an int8 copy went without any.
"""


class Descent(Relaxation):
    """The relaxation on known ranges; fed with the box of these."""

    rules = EVERY

    def __init__(self, seen: dict[str, NodeRanges], **options: Any) -> None:
        super().__init__(inner=Known({name: one.bounds for name, one in seen.items()}), **options)
        self.seen = seen

    def _of(self, node: Node, *given: Any, **more: Any) -> Any:
        y = getattr(super(), type(node).__name__.lower())(node, *given, **more)
        return self._widened(node, y)

    input = affine = activation = pool = structural = add = opaque = _of

    def _widened(self, node: Node, x: Relaxed) -> Relaxed:
        """The value with what its node may add, and masses that begin anew at its ranges."""
        seen = self.seen[node.name]
        # The constants of a node are summed over its entries.
        self._steps += x.z[0].numel()
        share = self._share()
        masses = (x.mass.m, x.mass_g, x.mass.d)
        z, g, d = (
            self._off_by(share * mass + added, value)
            for value, mass, added in zip((x.z, x.g, x.d), masses, seen.added, strict=True)
        )
        size, size_g, size_d = seen.bounds.sizes
        return replace(x, z=z, g=g, d=d, mass=StreamValues(m=size, d=size_d), mass_g=size_g)

    def _off_by(self, slack: Tensor, value: Tensor) -> Tensor:
        # What has no tape is zero in every network.
        if not value.requires_grad:
            return value
        return Widened.apply(value, self._one, slack)  # type: ignore[no-any-return, no-untyped-call]

    def _cone(self, name: str) -> Cone | None:
        # Passes on windows do not know what a node adds.
        return None

    def _promising(self, x: Relaxed, flat: Bounds, open_: Tensor) -> bool:
        tried = costliest(flat, open_, _TRIED)
        if not self.pace.allows(tried.numel() * self._cells):
            self.hurried = True
            return False
        found = self._around(x, tried)
        before = (flat.dh - flat.dl).gather(1, tried).sum()
        return bool((found.dh - found.dl).sum() < _WORTH * before)
