"""One backward pass for many neurons, each on the windows that it depends on.

Equal to the pass over whole maps that autograd makes (`Backward.above` with one neuron a
direction), but for the order of sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Input, Structural
from secateurs.graph.primitives import Sliding
from secateurs.paths.certificates.flows.pair import gap
from secateurs.paths.certificates.flows.patches.cones import (
    Cone,
    Place,
    entrywise,
)
from secateurs.paths.certificates.flows.patches.maps import (
    Rows,
    embedded,
    inside,
    rows_of,
    spread_back,
    windows,
)
from secateurs.paths.certificates.flows.patches.record import (
    Bent,
    Box,
    Mapped,
    Record,
    Slopes,
)


@torch.no_grad()
def ends(record: Record, cone: Cone, box: Tensor, neuron: Tensor) -> Tensor:
    """Upper bounds of z, −z, δ, −δ, z', −z' for these neurons of these boxes, (6, rows).

    The roundings of the pass are not covered.
    """
    shape = record.map(cone.root)
    rows = rows_of(box, neuron, shape)
    slopes = {cone.root: _unit(record, rows, shape[0])}
    total = torch.zeros((), dtype=torch.float64)
    for name in reversed(record.nodes):
        if name in slopes:
            step = _Step(record=record, cone=cone, rows=rows, name=name)
            constant, before = step.back(slopes.pop(name))
            total = total + constant
            for parent, found in before.items():
                slopes[parent] = (
                    _sum(slopes[parent], found) if parent in slopes else found
                )
    return total


def _unit(record: Record, rows: Rows, channels: int) -> Slopes:
    first = next(k for k in record.known.values() if isinstance(k, Box))
    one = first.middle.new_zeros(channels, len(rows))
    one = one.scatter(0, rows.channel.unsqueeze(0), 1.0)
    both = torch.stack([one, -one], dim=1).reshape(channels, 1, 1, 2, len(rows))
    return Slopes(z=torch.cat([both, torch.zeros_like(both)], dim=3), d=both, g=both)


def _sum(one: Slopes, two: Slopes) -> Slopes:
    return Slopes(z=one.z + two.z, d=one.d + two.d, g=one.g + two.g)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The way back through one node."""

    record: Record
    cone: Cone
    rows: Rows
    name: str

    @property
    def place(self) -> Place:
        return self.cone.places[self.name]

    def windows(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The windows of the rows at this node."""
        return windows(maps, self.record.map(self.name), self.place, self.rows)

    def back(self, x: Slopes) -> tuple[Tensor, dict[str, Slopes]]:
        """What the node adds to the bounds, (6, rows), and the slopes of what it reads."""
        node, known = self.record.nodes[self.name], self.record.known[self.name]
        if isinstance(node, Input) and isinstance(known, Box):
            return self._concrete(x, known), {}
        if isinstance(node, Activation) and isinstance(known, Bent):
            return self._bent(node, x, known)
        if isinstance(node, Affine) and isinstance(known, Mapped):
            return self._mapped(node, x, known)
        nothing = x.d.new_zeros(6, len(self.rows))
        if isinstance(node, Add):
            return nothing, self._added(node, x)
        if isinstance(node, Structural):
            return nothing, self._reshaped(node, x)
        raise TypeError(f"{self.name} has no windows.")

    def _concrete(self, x: Slopes, known: Box) -> Tensor:
        """The largest values of the affine functions: at middle + radius, signed like the slope.

        Both networks see one input, so no slope of δ gets here.
        """
        middle, radius = self.windows((known.middle, known.radius))
        z, g = (_total(v * middle + v.abs() * radius) for v in (x.z, x.g))
        return torch.cat([z, g])

    def _bent(
        self, node: Activation, x: Slopes, known: Bent
    ) -> tuple[Tensor, dict[str, Slopes]]:
        """Slopes above 0 go on through the upper plane, those below through the lower one."""
        maps = [
            entry
            for planes, fields in (
                (known.z, "pc"),
                (known.g, "pc"),
                (known.d, "pqc"),
            )
            for plane in planes
            for entry in (getattr(plane, f) for f in fields)
        ]
        found = self.windows(maps)
        of_z, of_g, of_d = _sides(x.z), _sides(x.g), _sides(x.d)
        z = _mixed(of_z, found[0:4:2])
        # What the planes around δ take from z joins the slopes that ± δ has brought there.
        z[:, :, :, 2:] += _mixed(of_d, found[8:14:3])
        slopes = Slopes(
            z=z, d=_mixed(of_d, found[9:14:3]), g=_mixed(of_g, found[4:8:2])
        )
        constant = _stacked(
            _total(_mixed(of_z, found[1:4:2])),
            _total(_mixed(of_d, found[10:14:3])),
            _total(_mixed(of_g, found[5:8:2])),
        )
        (parent,) = node.inputs
        return constant, {parent: self._kept(slopes, parent)}

    def _mapped(
        self, node: Affine, x: Slopes, known: Mapped
    ) -> tuple[Tensor, dict[str, Slopes]]:
        """The transposed map. What δ' = W' δ + (W − W') z takes from z joins the slopes of z."""
        mask = inside(self.place, self.record.map(self.name), self.rows)
        if mask is not None:
            # Entries beyond the border are the padding of a later convolution: zeros, not values.
            x = Slopes(z=x.z * mask, d=x.d * mask, g=x.g * mask)
        b, c = known.biases
        constant = _stacked(
            self._biased(node, x.z, b),
            self._biased(node, x.d, b - c),
            self._biased(node, x.g, c),
        )
        (parent,) = node.inputs
        w, v = known.weights
        if w is None or v is None:
            return constant, {parent: self._kept(x, parent)}
        change = gap(w, v)
        z = self._transposed(node, x.z, w)
        # Where both networks have one weight, nothing comes from z.
        if change is not None and bool(change.any()):
            z[:, :, :, 2:] += self._transposed(node, x.d, change)
        d, g = (self._transposed(node, t, v) for t in (x.d, x.g))
        return constant, {parent: Slopes(z=z, d=d, g=g)}

    def _transposed(self, node: Affine, x: Tensor, weight: Tensor) -> Tensor:
        """One transposed map on windows."""
        (parent,) = node.inputs
        into, sliding = self.cone.places[parent], node.operation.sliding
        if sliding is None and not entrywise(node):
            # A matrix is a kernel of one pixel.
            axes = node.operation.axes
            kernel = weight if axes is None or axes.weight_out == 0 else weight.T
            point = Sliding(kernel=(1, 1))
            return spread_back(x, point, kernel, self.place, into)
        if sliding is not None and sliding.groups is not None:
            here = self.place.through(sliding)
            return spread_back(x, sliding, weight, here, into)
        x = x * self._factors(node, weight)
        if sliding is None:
            return embedded(x, self.place, into)
        return spread_back(x, sliding, None, self.place.through(sliding), into)

    def _factors(self, node: Affine, weight: Tensor) -> Tensor:
        """The factor of each entry of the map, on windows."""
        if weight.numel() == 1:
            return weight.flatten()[0]
        if node.operation.sliding is not None:
            factors = weight.expand(node.shape)
        else:
            # A map entry by entry shows its factors at ones.
            factors = node.linear(weight.new_ones(node.shape), weight)
        return self.windows((factors.unsqueeze(0),))[0]

    def _biased(self, node: Affine, x: Tensor, bias: Tensor) -> Tensor:
        """Σ slope · bias, (directions, rows)."""
        bias = bias.to(x).expand(node.shape)
        channels, height, width = self.record.map(self.name)
        flat = bias.reshape(channels, height * width)
        if bool((flat == flat[:, :1]).all()):
            return (x.sum(dim=(1, 2)) * flat[:, :1].unsqueeze(2)).sum(dim=0)
        return _total(x * self.windows((bias.unsqueeze(0),))[0])

    def _added(self, node: Add, x: Slopes) -> dict[str, Slopes]:
        """The slopes of a sum are those of its terms, with their signs."""
        before: dict[str, Slopes] = {}
        for parent, sign in zip(node.inputs, node.signs, strict=True):
            found = self._kept(
                Slopes(z=sign * x.z, d=sign * x.d, g=sign * x.g), parent
            )
            before[parent] = (
                _sum(before[parent], found) if parent in before else found
            )
        return before

    def _reshaped(self, node: Structural, x: Slopes) -> dict[str, Slopes]:
        """Single numbers as the map they were."""
        (parent,) = node.inputs
        into, shape = self.cone.places[parent], self.record.map(parent)
        if shape == self.record.map(self.name):
            return {parent: self._kept(x, parent)}
        whole = Place(step=(0, 0), start=(0, 0), size=shape[1:])
        z, d, g = (
            embedded(t.reshape(*shape, *t.shape[3:]), whole, into)
            for t in (x.z, x.d, x.g)
        )
        return {parent: Slopes(z=z, d=d, g=g)}

    def _kept(self, x: Slopes, parent: str) -> Slopes:
        """The same windows, on the map before."""
        into = self.cone.places[parent]
        z, d, g = (embedded(t, self.place, into) for t in (x.z, x.d, x.g))
        return Slopes(z=z, d=d, g=g)


def _sides(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clamp(min=0), x.clamp(max=0)


def _mixed(sides: tuple[Tensor, Tensor], by: Sequence[Tensor]) -> Tensor:
    """What is above 0 times the upper coefficient, what is below times the lower one."""
    return (sides[0] * by[0]).addcmul_(sides[1], by[1])


def _total(x: Tensor) -> Tensor:
    return x.sum(dim=(0, 1, 2))


def _stacked(z: Tensor, d: Tensor, g: Tensor) -> Tensor:
    """(6, rows) for ± z, ± δ and ± z', from 4, 2 and 2 directions."""
    return torch.cat([z[:2], z[2:] + d, g])
