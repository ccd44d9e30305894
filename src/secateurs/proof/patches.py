"""Backward passes on the cone of a neuron: the part of each map before it that it depends on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.graph import Activation, Add, Affine, Input, Node, Opaque, Pool, Structural
from secateurs.graph.primitives import Sliding
from secateurs.proof.forms import gap
from secateurs.proof.planes import Plane

# Which part of every earlier map a neuron of a map can depend on.
#
# The neuron at position p of a map depends, in a map before it, on a window that begins at step ·
# p + start and has a size of its own; the same for every neuron of the map. A convolution of
# kernel k, stride s, padding a and dilation d turns (step, start, size) into (step · s, start · s
# − a, (size − 1) · s + d · (k − 1) + 1). Where branches meet, the window that holds both windows
# is taken.
#
# A layer of single numbers counts as a map of one pixel. In front of it the window is the whole
# map (step 0, cut at the borders), and from there on the passes are those over whole maps.
#
# Reference: what auto_LiRPA (Xu et al. 2020) calls patches.

Map: TypeAlias = tuple[int, int, int]
"""Channels, height, width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window along both sides of a map: it begins at step · position + start."""

    step: tuple[int, int]
    start: tuple[int, int]
    size: tuple[int, int]

    def through(self, window: Sliding) -> "Window":
        """The window before a convolution or an average."""
        return Window(
            step=_each(lambda i: self.step[i] * window.stride[i]),
            start=_each(lambda i: self.start[i] * window.stride[i] - window.padding[i]),
            size=_each(
                lambda i: (
                    (self.size[i] - 1) * window.stride[i]
                    + window.dilation[i] * (window.kernel[i] - 1)
                    + 1
                )
            ),
        )

    def joined(self, other: "Window") -> "Window | None":
        """The smallest window that holds both; None where they move apart."""
        if self.step != other.step:
            return None
        start = _each(lambda i: min(self.start[i], other.start[i]))
        ends = [max(p.start[i] + p.size[i] for p in (self, other)) for i in range(2)]
        return Window(step=self.step, start=start, size=_each(lambda i: ends[i] - start[i]))

    def cut(self, sides: tuple[int, int]) -> "Window":
        """Without what lies beyond the map, where the window is the same for every position."""
        if self.step != (0, 0):
            return self
        start = _each(lambda i: max(0, self.start[i]))
        ends = [min(sides[i], self.start[i] + self.size[i]) for i in range(2)]
        return Window(
            # At least one entry, though all may be padding.
            step=self.step,
            start=start,
            size=_each(lambda i: max(1, ends[i] - start[i])),
        )


_POINT = Window(step=(1, 1), start=(0, 0), size=(1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cone:
    """The windows behind a neuron of the map `root`, from that map down to the input.

    cells: how many values lie in all of them. widest: in the largest.
    """

    root: str
    places: Mapping[str, Window]
    cells: int
    widest: int


def cone(nodes: dict[str, Node], root: str) -> Cone | None:
    """The windows behind the neurons of a map; None where something before it is not a map, or is
    read in another way than by windows.

    nodes: in an order in which each follows what it reads.
    """
    places, cells, widest = {root: _POINT}, 0, 0
    for name in reversed(nodes):
        if name not in places:
            continue
        node, place = nodes[name], places[name]
        found = map_of(node.shape)
        if found is None or not _known(node):
            return None
        size = found[0] * place.size[0] * place.size[1]
        cells, widest = cells + size, max(widest, size)
        for before in node.inputs:
            here = behind(nodes, node, place)
            if here is not None and before in places:
                here = places[before].joined(here)
            if here is None:
                return None
            places[before] = here
    return Cone(root=root, places=places, cells=cells, widest=widest)


def behind(nodes: Mapping[str, Node], node: Node, place: Window) -> Window | None:
    """What a window of this node reads of the node before, if that is a window; else None."""
    here, before = map_of(node.shape), map_of(nodes[node.inputs[0]].shape)
    if here is None or before is None:
        return None
    sides = before[1:]
    if isinstance(node, Affine) and node.operation.sliding is not None:
        return place.through(node.operation.sliding).cut(sides)
    if here == before and (
        isinstance(node, Activation | Opaque | Add)
        or (isinstance(node, Affine) and entrywise(node))
        or keeps_order(node, nodes[node.inputs[0]].shape)
    ):
        return place
    if here[1:] == (1, 1):
        if isinstance(node, Affine) and full(node) and sides == (1, 1):
            return place
        if keeps_order(node, nodes[node.inputs[0]].shape):
            return Window(step=(0, 0), start=(0, 0), size=sides)
    return None


def map_of(shape: Sequence[int]) -> Map | None:
    """The shape of a node as a map; single numbers are channels of one pixel."""
    if len(shape) == 2 and shape[0] == 1:
        return shape[1], 1, 1
    return (shape[1], shape[2], shape[3]) if len(shape) == 4 and shape[0] == 1 else None


def entrywise(node: Affine) -> bool:
    """Whether the map multiplies each entry by a number."""
    axes = node.operation.axes
    return node.weight is None or (axes is not None and axes.diagonal)


def full(node: Affine) -> bool:
    """Whether the map is a product of single numbers with a matrix."""
    axes = node.operation.axes
    plain = axes is not None and (axes.x, axes.y, axes.groups) == (-1, -1, 1)
    # With more dimensions the last one is a side of the map, not its channels.
    return plain and len(node.shape) == 2


def _known(node: Node) -> bool:
    """Pools choose an entry by the bounds of the box; a constant has no window."""
    return isinstance(node, Input) or (bool(node.inputs) and not isinstance(node, Pool))


def keeps_order(node: Node, shape: Sequence[int]) -> bool:
    """Whether a reordering leaves the entries in their order, and only their shape changes."""
    if not isinstance(node, Structural) or len(node.inputs) != 1:
        return False
    count = torch.Size(node.shape).numel()
    if torch.Size(shape).numel() != count:
        return False
    seen = node.function(torch.arange(count).reshape(shape))
    return torch.equal(seen.flatten(), torch.arange(count))


def _each(value: Callable[[int], int]) -> tuple[int, int]:
    return value(0), value(1)


# Windows of maps, one for every row of a pass, and the transposed window sum.
#
# Values on windows are (channels, height, width, directions, rows). The rows come last, so that
# they lie side by side in memory: the windows are small and the rows are many.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One row per box and neuron: the box, the channel, and the position on the map."""

    box: Tensor
    channel: Tensor
    at: tuple[Tensor, Tensor]

    def __len__(self) -> int:
        return len(self.box)


def rows_of(box: Tensor, neuron: Tensor, shape: Map) -> Rows:
    """Rows from flat numbers of neurons on a map."""
    _, height, width = shape
    position = neuron % (height * width)
    return Rows(
        box=box,
        channel=neuron // (height * width),
        at=(position // width, position % width),
    )


def windows(maps: Sequence[Tensor], shape: Map, place: Window, rows: Rows) -> list[Tensor]:
    """The window of each row in each map (boxes, ...), zero outside of the map; (channels, height,
    width, 1, rows).
    """
    boxes = int(rows.box.max()) + 1
    stack = torch.cat([_expand_to_boxes(m, boxes).reshape(boxes, *shape) for m in maps], dim=1)
    height, width = shape[1:]
    sides = [_margins(place, i, (height, width)[i], rows) for i in range(2)]
    (top, bottom), (left, right) = sides
    padded = F.pad(stack, (left, right, top, bottom)).transpose(0, 1)
    across = width + left + right
    down = height + top + bottom
    ys, xs = (rows.at[i] * place.step[i] + place.start[i] + sides[i][0] for i in range(2))
    first = (rows.box * down + ys) * across + xs
    inside = (
        torch.arange(place.size[0], device=first.device).unsqueeze(1) * across
        + torch.arange(place.size[1], device=first.device)
    ).flatten()
    index = (inside.unsqueeze(1) + first).flatten()
    found = padded.reshape(padded.shape[0], -1).index_select(1, index)
    shaped = found.reshape(-1, *place.size, 1, len(rows))
    return list(torch.split(shaped, shape[0]))


def _expand_to_boxes(value: Tensor, boxes: int) -> Tensor:
    """As many boxes as the rows refer to; a value that is the same in all of them comes once."""
    return value[:boxes].expand(boxes, *value.shape[1:])


def _margins(place: Window, i: int, length: int, rows: Rows) -> tuple[int, int]:
    """How far the windows of all rows extend beyond the map, at its beginning and at its end."""
    first = int(rows.at[i].min()) * place.step[i] + place.start[i]
    last = int(rows.at[i].max()) * place.step[i] + place.start[i] + place.size[i]
    return max(0, -first), max(0, last - length)


def inside(place: Window, shape: Map, rows: Rows) -> Tensor | None:
    """1 within the map and 0 outside of it, (1, height, width, 1, rows); None where all is
    within.
    """
    masks = []
    for i, length in enumerate(shape[1:]):
        first = rows.at[i] * place.step[i] + place.start[i]
        entry = torch.arange(place.size[i], device=first.device).unsqueeze(1) + first
        masks.append((entry >= 0) & (entry < length))
    if all(bool(mask.all()) for mask in masks):
        return None
    return (masks[0].unsqueeze(1) & masks[1].unsqueeze(0)).unsqueeze(0).unsqueeze(3)


def spread_back(
    value: Tensor, window: Sliding, kernel: Tensor | None, here: Window, into: Window
) -> Tensor:
    """The transposed convolution of windows, which begins where `here` does, as part of windows
    `into`; without a kernel the transposed sum.
    """
    by_entry = None if kernel is None else _by_entry(kernel, window.groups or 1)
    channels = value.shape[0] if by_entry is None else by_entry.shape[2] * by_entry.shape[3]
    out = value.new_zeros(channels, *into.size, *value.shape[3:])
    for y in range(window.kernel[0]):
        for x in range(window.kernel[1]):
            # Which entries of `value` this entry of the kernel sends into the windows, and where.
            (rows, down), (columns, right) = (
                _overlap(
                    here.start[i] - into.start[i] + (y, x)[i] * window.dilation[i],
                    window.stride[i],
                    value.shape[1 + i],
                    into.size[i],
                )
                for i in range(2)
            )
            sent = value[:, rows, columns]
            if not sent.numel():  # all of it falls on padding
                continue
            if by_entry is not None:
                grouped = sent.reshape(by_entry.shape[2], by_entry.shape[4], -1)
                sent = (by_entry[y, x] @ grouped).reshape(-1, *sent.shape[1:])
            out[:, down, right] += sent
    return out


def _by_entry(kernel: Tensor, groups: int) -> Tensor:
    """(height, width, groups, channels before, channels behind), the last two of one group."""
    kernel = kernel.reshape(*kernel.shape, *[1] * (4 - kernel.ndim))
    grouped = kernel.reshape(groups, -1, *kernel.shape[1:])
    return grouped.permute(3, 4, 0, 2, 1).contiguous()


def _overlap(first: int, stride: int, count: int, length: int) -> tuple[slice, slice]:
    """Of count entries at first, first + stride, …: those within the length, and where they are."""
    low = max(0, -(first // stride))
    high = max(low, min(count, (length - 1 - first) // stride + 1))
    begin = first + low * stride
    return slice(low, high), slice(begin, begin + (high - low) * stride, stride)


def embed(value: Tensor, here: Window, into: Window) -> Tensor:
    """The same windows as part of larger ones, zero around them."""
    if here == into:
        return value
    out = value.new_zeros(value.shape[0], *into.size, *value.shape[3:])
    top, left = (here.start[i] - into.start[i] for i in range(2))
    out[:, top : top + here.size[0], left : left + here.size[1]] = value
    return out


# What a relaxation leaves behind for backward passes on windows, and the slopes they carry.

Planes: TypeAlias = tuple[Plane, Plane]
"""Above and below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlanes:
    """The planes around an activation: of f, of g, and of their difference."""

    z: Planes
    g: Planes
    d: Planes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Weights and biases of f and g at an affine node."""

    weights: tuple[Tensor | None, Tensor | None]
    biases: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The input: middle and radius."""

    middle: Tensor
    radius: Tensor


Known: TypeAlias = ActivationPlanes | Mapped | Box | None


@dataclass(slots=True)
class Record:
    """What a relaxation has passed through so far: the nodes in order, and what it knew at each."""

    nodes: dict[str, Node] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)

    def add(self, node: Node, known: Known = None) -> None:
        """Remember a node."""
        self.nodes[node.name], self.known[node.name] = node, known

    def map(self, name: str) -> Map:
        """The shape of a node as a map."""
        shape = map_of(self.nodes[name].shape)
        if shape is None:
            raise TypeError(f"{name} is not a map.")
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """Coefficients of z, of δ and of z' in a window, (channels, height, width, directions, rows).

    The directions are ± the neuron. z has four: ± z itself, then what ± δ brings to z.
    """

    z: Tensor
    d: Tensor
    g: Tensor


# One backward pass for many neurons, each on the windows that it depends on.
#
# Equal to the pass over whole maps that autograd makes (`Backward.above` with one neuron a
# direction), but for the order of sums.


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
                slopes[parent] = _sum(slopes[parent], found) if parent in slopes else found
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
    def place(self) -> Window:
        return self.cone.places[self.name]

    def windows(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The windows of the rows at this node."""
        return windows(maps, self.record.map(self.name), self.place, self.rows)

    def back(self, x: Slopes) -> tuple[Tensor, dict[str, Slopes]]:
        """What the node adds to the bounds, (6, rows), and the slopes of what it reads."""
        node, known = self.record.nodes[self.name], self.record.known[self.name]
        if isinstance(node, Input) and isinstance(known, Box):
            return self._at_input(x, known), {}
        if isinstance(node, Activation | Opaque) and isinstance(known, ActivationPlanes):
            return self._through_activation(node, x, known)
        if isinstance(node, Affine) and isinstance(known, Mapped):
            return self._through_affine(node, x, known)
        nothing = x.d.new_zeros(6, len(self.rows))
        if isinstance(node, Add):
            return nothing, self._through_add(node, x)
        if isinstance(node, Structural):
            return nothing, self._through_structural(node, x)
        raise TypeError(f"{self.name} has no windows.")

    def _at_input(self, x: Slopes, known: Box) -> Tensor:
        """The largest values of the affine functions: at middle + radius, signed like the slope.

        Both networks see one input, so no slope of δ gets here.
        """
        middle, radius = self.windows((known.middle, known.radius))
        z, g = (_total(v * middle + v.abs() * radius) for v in (x.z, x.g))
        return torch.cat([z, g])

    def _through_activation(
        self, node: Activation | Opaque, x: Slopes, known: ActivationPlanes
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
        z = _mix(of_z, found[0:4:2])
        # What the planes around δ take from z joins the slopes that ± δ has brought there.
        z[:, :, :, 2:] += _mix(of_d, found[8:14:3])
        slopes = Slopes(z=z, d=_mix(of_d, found[9:14:3]), g=_mix(of_g, found[4:8:2]))
        constant = _stack(
            _total(_mix(of_z, found[1:4:2])),
            _total(_mix(of_d, found[10:14:3])),
            _total(_mix(of_g, found[5:8:2])),
        )
        (parent,) = node.inputs
        return constant, {parent: self._on_map_before(slopes, parent)}

    def _through_affine(
        self, node: Affine, x: Slopes, known: Mapped
    ) -> tuple[Tensor, dict[str, Slopes]]:
        """The transposed map. What δ' = W' δ + (W − W') z takes from z joins the slopes of z."""
        mask = inside(self.place, self.record.map(self.name), self.rows)
        if mask is not None:
            # Entries beyond the border are the padding of a later convolution: zeros, not values.
            x = Slopes(z=x.z * mask, d=x.d * mask, g=x.g * mask)
        b, c = known.biases
        constant = _stack(
            self._times_bias(node, x.z, b),
            self._times_bias(node, x.d, b - c),
            self._times_bias(node, x.g, c),
        )
        (parent,) = node.inputs
        w, v = known.weights
        if w is None or v is None:
            return constant, {parent: self._on_map_before(x, parent)}
        change = gap(w, v)
        z = self._transpose(node, x.z, w)
        # Where both networks have one weight, nothing comes from z.
        if change is not None and bool(change.any()):
            z[:, :, :, 2:] += self._transpose(node, x.d, change)
        d, g = (self._transpose(node, t, v) for t in (x.d, x.g))
        return constant, {parent: Slopes(z=z, d=d, g=g)}

    def _transpose(self, node: Affine, x: Tensor, weight: Tensor) -> Tensor:
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
            return embed(x, self.place, into)
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

    def _times_bias(self, node: Affine, x: Tensor, bias: Tensor) -> Tensor:
        """Σ slope · bias, (directions, rows)."""
        bias = bias.to(x).expand(node.shape)
        channels, height, width = self.record.map(self.name)
        flat = bias.reshape(channels, height * width)
        if bool((flat == flat[:, :1]).all()):
            return (x.sum(dim=(1, 2)) * flat[:, :1].unsqueeze(2)).sum(dim=0)
        return _total(x * self.windows((bias.unsqueeze(0),))[0])

    def _through_add(self, node: Add, x: Slopes) -> dict[str, Slopes]:
        """The slopes of a sum are those of its terms, with their signs."""
        before: dict[str, Slopes] = {}
        for parent, sign in zip(node.inputs, node.signs, strict=True):
            found = self._on_map_before(Slopes(z=sign * x.z, d=sign * x.d, g=sign * x.g), parent)
            before[parent] = _sum(before[parent], found) if parent in before else found
        return before

    def _through_structural(self, node: Structural, x: Slopes) -> dict[str, Slopes]:
        """Single numbers as the map they were."""
        (parent,) = node.inputs
        into, shape = self.cone.places[parent], self.record.map(parent)
        if shape == self.record.map(self.name):
            return {parent: self._on_map_before(x, parent)}
        whole = Window(step=(0, 0), start=(0, 0), size=shape[1:])
        z, d, g = (embed(t.reshape(*shape, *t.shape[3:]), whole, into) for t in (x.z, x.d, x.g))
        return {parent: Slopes(z=z, d=d, g=g)}

    def _on_map_before(self, x: Slopes, parent: str) -> Slopes:
        """The same windows, on the map before."""
        into = self.cone.places[parent]
        z, d, g = (embed(t, self.place, into) for t in (x.z, x.d, x.g))
        return Slopes(z=z, d=d, g=g)


def _sides(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clamp(min=0), x.clamp(max=0)


def _mix(sides: tuple[Tensor, Tensor], by: Sequence[Tensor]) -> Tensor:
    """What is above 0 times the upper coefficient, what is below times the lower one."""
    return (sides[0] * by[0]).addcmul_(sides[1], by[1])


def _total(x: Tensor) -> Tensor:
    return x.sum(dim=(0, 1, 2))


def _stack(z: Tensor, d: Tensor, g: Tensor) -> Tensor:
    """(6, rows) for ± z, ± δ and ± z', from 4, 2 and 2 directions."""
    return torch.cat([z[:2], z[2:] + d, g])
