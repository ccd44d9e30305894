"""One label per channel of every value, united where the network ties channels to each other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from secateurs.errors import ShipError
from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Graph,
    Input,
    Named,
    Node,
    Opaque,
    Pool,
    Source,
    Structural,
)
from secateurs.graph.wrapper import Wrapper

# Which dimension of a named tensor becomes which dimension of the weight that the graph computes
# from it.

Alignment = Mapping[str, tuple[int | None, ...]]
"""For each named tensor, the dimension of the source that each of its dimensions becomes; None:
none does."""


def aligned(source: Source, graph: Graph) -> Alignment | None:
    """The alignment of every tensor a source reads; None where it is not known, and then nothing
    may be cut.

    A tensor itself, a transposed, viewed or unsqueezed one, and anything elementwise (a folded
    batch norm, a weight times its mask) are known. What is assumed here is checked on the values
    once something has been cut.
    """
    if isinstance(source, Named):
        return {source.name: tuple(range(len(source.shape)))}
    shapes = {name: _shape(name, graph) for name in source.names}
    if len(shapes) == 1:
        name, shape = next(iter(shapes.items()))
        moved = _rearranged(source, name, shape)
        if moved is not None:
            return {name: moved}
    broadcast = {name: _broadcast(shape, source.shape) for name, shape in shapes.items()}
    known = {name: dims for name, dims in broadcast.items() if dims is not None}
    return known if len(known) == len(broadcast) else None


def _shape(name: str, graph: Graph) -> tuple[int, ...]:
    if name in graph.constants:
        return tuple(graph.constants[name].shape)
    return tuple(graph.parameters[name] if name in graph.parameters else graph.buffers[name])


def _rearranged(source: Source, name: str, shape: Sequence[int]) -> tuple[int | None, ...] | None:
    """Follow positions through the source: it rearranges when they come out as they went in, in
    another order."""
    count = torch.Size(shape).numel()
    # float64 holds every position exactly, up to 2^53 entries.
    places = torch.arange(count, dtype=torch.float64).reshape(tuple(shape))
    try:
        moved = source({name: places})
    except (RuntimeError, KeyError, TypeError):
        return None
    # Every position comes out once and unchanged, or the source computes something.
    if moved.numel() != count or not torch.equal(moved.flatten().sort().values, places.flatten()):
        return None
    found: list[int | None] = []
    for coordinates in torch.unravel_index(moved.long(), tuple(shape)):
        found.append(_dimension(coordinates))
    # A dimension that no other one counts was split or merged on the way: channels
    # along it cannot be followed.
    lost = [size for size, dim in zip(shape, found, strict=True) if size > 1 and dim is None]
    return None if lost else tuple(found)


def _dimension(coordinates: Tensor) -> int | None:
    """The dimension along which a coordinate counts 0, 1, 2, ... while it is constant along the
    others."""
    for dim, size in enumerate(coordinates.shape):
        shape = [1] * coordinates.ndim
        shape[dim] = -1
        counting = torch.arange(size).reshape(shape)
        # Along a dimension of size 1 every coordinate is 0, which says nothing.
        if size > 1 and bool((coordinates == counting).all()):
            return dim
    return None


def _broadcast(shape: Sequence[int], wanted: Sequence[int]) -> tuple[int | None, ...] | None:
    """Dimensions from the right, as elementwise operators line them up."""
    offset = len(wanted) - len(shape)
    if offset < 0:
        return None
    pairs = [(size, wanted[offset + i]) for i, size in enumerate(shape)]
    if any(size not in (1, other) for size, other in pairs):
        return None
    return tuple(
        # One entry that serves all channels stays, whatever channels go.
        None if size == 1 else offset + i
        for i, (size, _) in enumerate(pairs)
    )


# Marks of an input of an opaque function, laid along the dimensions of its result.


def laid(
    marks: Tensor,
    carried: Sequence[int | None],
    ndim: int,
    merged: Callable[[Tensor], Tensor],
) -> Tensor:
    """One mark for each index that is carried, in the result's dimensions (size 1 elsewhere).

    merged: from rows of all marks that are mixed to one mark a row.
    """
    kept = [i for i, dim in enumerate(carried) if dim is not None]
    mixed = [i for i, dim in enumerate(carried) if dim is None]
    sizes = [marks.shape[i] for i in kept]
    moved = marks.permute(kept + mixed)
    count = 1
    for size in sizes:
        count *= size
    # Marks of size 1 stand for a whole dimension: nothing has to be spread out.
    one = merged(moved.reshape(count, -1))
    shape = [1] * ndim
    # Carried dimensions may stand in another order than in the result.
    order = sorted(range(len(kept)), key=lambda i: carried[kept[i]] or 0)
    for i in kept:
        shape[carried[i] or 0] = marks.shape[i]
    return one.reshape(sizes).permute(order).reshape(shape)


def spread(marks: Tensor, carried: Sequence[int | None]) -> Tensor:
    """The way back: marks of the result for one input, whether any index that reads it has one."""
    ndim, kept = marks.ndim, [dim for dim in carried if dim is not None]
    for dim in range(ndim):
        if dim not in kept and marks.shape[dim] > 1:
            marks = marks.any(dim, keepdim=True)
    lost = [dim for dim in range(ndim) if dim not in kept]
    sizes = [1 if dim is None else marks.shape[dim] for dim in carried]
    order = [dim for dim in carried if dim is not None]
    return marks.permute(order + lost).reshape(sizes)


def varies(node: Opaque, i: int, others: Sequence[Tensor]) -> bool:
    """Whether other inputs have several labels along a dimension that this input does not have."""
    mine = {dim for dim in node.carried[i] if dim is not None}
    return any(
        other.shape[dim] > 1 and bool((other != other.narrow(dim, 0, 1)).any())
        for other in others
        for dim in range(len(node.shape))
        if dim not in mine
    )


# Small tensors that stand for large ones: what does not change along a dimension is held with size
# 1 there.
#
# A mark (a label, a truth value, a constant) of every neuron of a ResNet-50 would be 25 million
# numbers; nearly all of them depend on the channel alone. Every function here takes and returns
# tensors that broadcast to the value's shape.


def reduced(marks: Tensor) -> Tensor:
    """The same marks with size 1 along every dimension in which nothing changes; NaN counts as
    equal to NaN."""
    for dim in range(marks.ndim):
        if marks.shape[dim] > 1:
            first = marks.narrow(dim, 0, 1)
            same = (marks == first) | (marks.isnan() & first.isnan())
            marks = first if bool(same.all()) else marks
    return marks


def full(marks: Tensor, shape: Sequence[int]) -> Tensor:
    """The marks in float64 and in the value's own shape, which the functions of a graph take."""
    # Labels stay exact in float64, up to 2^53, and expand copies nothing.
    return marks.double().expand(tuple(shape))


def along(vector: Tensor, dim: int, ndim: int) -> Tensor:
    """A vector laid along one dimension."""
    shape = [1] * ndim
    shape[dim] = -1
    return vector.reshape(shape)


def rows(marks: Tensor, dim: int, size: int) -> Tensor:
    """The marks as `(size, everything else)`: one row per index along `dim`."""
    moved = marks.movedim(dim, 0).flatten(1) if marks.ndim > 1 else marks.unsqueeze(1)
    return moved.expand(size, -1)


def together(*tensors: Tensor) -> list[Tensor]:
    """Several tensors in their common shape."""
    return list(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]


def distinct(labels: Tensor) -> Tensor:
    """Each label once, in order."""
    found: Tensor = labels.unique()  # type: ignore[no-untyped-call]
    return found


def pulled_back(
    function: Callable[[Tensor], Tensor], shape: Sequence[int], marks: Tensor
) -> Tensor:
    """Which inputs of a linear function with weights ≥ 0 reach a marked output."""
    with torch.enable_grad():
        # The gradient of a linear function is its transpose, wherever it is taken.
        x = torch.zeros(tuple(shape), dtype=torch.float64, requires_grad=True)
        y = function(x)
        (back,) = torch.autograd.grad(
            y, x, full(marks, y.shape), allow_unused=True, materialize_grads=True
        )
    # With weights ≥ 0 no two paths cancel: a zero says that there is none.
    return reduced(back != 0)


def blocks(weight: Tensor, weight_in: int, weight_out: int, groups: int) -> Tensor:
    """A weight as `(groups, outputs of a group, inputs of a group, taps)`."""
    # (out, in / groups, ...), as linear layers and convolutions have it.
    if weight_in > weight_out:
        return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    parts = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    # (in, out / groups, ...): transposed convolutions and x W.
    return parts.transpose(1, 2)


# Labels that must go together, as a union-find; label 0 always stays.

PINNED = 0
_TIED = "is tied to what stays"


class Groups:
    """Labels, united where the network ties them. Label 0 is pinned: whatever is united with it
    stays.

    The same unions are kept a second time without the pinned label, so that of channels that stay
    it can be told which of them are dead, and why they stay.
    """

    def __init__(self) -> None:
        self._all = _Unions()
        self._unpinned = _Unions()
        self.pins: list[tuple[str, Tensor]] = []

    def __len__(self) -> int:
        return len(self._all)

    def new(self, count: int) -> Tensor:
        """Fresh labels."""
        self._unpinned.new(count)
        return self._all.new(count)

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Tie the labels of two tensors, entry by entry, with broadcasting."""
        self._all.unite(a, b)
        a, b = together(a, b)
        free = (a != PINNED) & (b != PINNED)
        self._unpinned.unite(a[free], b[free])
        for bound in (a[b == PINNED], b[a == PINNED]):
            self._note(_TIED, bound)

    def pin(self, labels: Tensor, why: str) -> None:
        """These stay."""
        self._note(why, labels)
        self._all.unite(labels, torch.zeros_like(labels))

    def roots(self, labels: Tensor) -> Tensor:
        """The labels, each replaced by the smallest of its group."""
        return self._all.roots(labels)

    def unpinned(self, labels: Tensor) -> Tensor:
        """The same without the ties to what stays."""
        return self._unpinned.roots(labels)

    def reasons(self) -> dict[int, str]:
        """Why unpinned roots stay: the first pin that met them, a named one before a mere tie."""
        found: dict[int, str] = {}
        # The last to write is the one that counts: ties first, then names, latest before earliest.
        pins = sorted(self.pins, key=lambda pin: pin[0] != _TIED)
        ties = [pin for pin in pins if pin[0] == _TIED]
        for why, labels in (*reversed(ties), *reversed(pins[len(ties) :])):
            found |= dict.fromkeys(self.unpinned(labels).tolist(), why)
        return found

    def shared(self, rows: Tensor) -> Tensor:
        """Tie the labels within each row; the label of each row."""
        self.unite(rows, rows[:, :1])
        return rows[:, 0]

    def _note(self, why: str, labels: Tensor) -> None:
        labels = torch.unique(labels[labels != PINNED])
        if len(labels):
            self.pins.append((why, labels))


class _Unions:
    """A union-find of numbers from 0."""

    def __init__(self) -> None:
        self._parent = [PINNED]
        self._table: Tensor | None = None

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int) -> Tensor:
        first = len(self._parent)
        self._parent += range(first, first + count)
        self._table = None
        return torch.arange(first, first + count)

    def unite(self, a: Tensor, b: Tensor) -> None:
        a, b = together(self.roots(a), self.roots(b))
        differ = a != b
        if bool(differ.any()):
            # A feature map holds the same pair at every pixel: each is united once.
            pairs = torch.unique(torch.stack([a[differ], b[differ]]), dim=1)
            for left, right in pairs.T.tolist():
                # The smaller label becomes the root, so whatever is united with label 0
                # ends there: pinned.
                low, high = sorted((self._root(left), self._root(right)))
                self._parent[high] = low
            self._table = None

    def roots(self, labels: Tensor) -> Tensor:
        # One look-up serves a whole tensor, and is built
        # anew only after something was united.
        if self._table is None:
            self._table = _followed(torch.tensor(self._parent))
        return self._table[labels]

    def _root(self, label: int) -> int:
        while self._parent[label] != label:
            # Halving the path on the way keeps later walks short.
            self._parent[label] = self._parent[self._parent[label]]
            label = self._parent[label]
        return label


def _followed(parent: Tensor) -> Tensor:
    """Every label's root: parents of parents until nothing changes, doubling the way each time."""
    while not torch.equal(further := parent[parent], parent):
        parent = further
    return parent


# A model seen through all of its outputs at once, so that nothing an output needs is taken for
# dead.

_PREFIX = "inner."


class AllOutputs(Wrapper):
    """The model with its real-valued outputs laid side by side in one tensor, whatever structure it
    returns."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Σ of nothing: a row per sample with every number the model returns."""
        found = list(leaves(self.inner(*args, **kwargs)))
        if not found:
            raise ShipError(f"{type(self.inner).__name__} returns no real-valued tensor.")
        return found[0] if len(found) == 1 else torch.cat([_row(leaf) for leaf in found], dim=1)


def leaves(out: Any) -> Iterator[Tensor]:
    """The real-valued tensors of a result, in order, each once."""
    if isinstance(out, Tensor):
        # Indices and flags that a model returns have no relative difference.
        if out.is_floating_point():
            yield out
        return
    items: Any = ()
    if isinstance(out, Mapping):
        items = out.values()
    elif is_dataclass(out) and not isinstance(out, type):
        items = [getattr(out, field.name) for field in fields(out)]
    elif isinstance(out, list | tuple):
        items = out
    for item in items:
        yield from leaves(item)


def own_name(name: str) -> str:
    """A tensor's or module's name in the model itself."""
    return "" if name == _PREFIX.rstrip(".") else name.removeprefix(_PREFIX)


def _row(leaf: Tensor) -> Tensor:
    return leaf.flatten(1) if leaf.ndim > 1 else leaf.reshape(-1, 1)


# Labels of all values and tensors of a graph, and the layers between them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A weight between two lots of channels, with the labels of both."""

    node: Affine
    weight_in: int
    weight_out: int
    groups: int
    into: Tensor
    out: Tensor

    @property
    def x(self) -> str:
        """The value it reads."""
        return self.node.inputs[0]

    @property
    def weight(self) -> Source:
        """Its weight."""
        if self.node.weight is None:
            raise ValueError(f"{self.node.name} has no weight.")
        return self.node.weight


@dataclass(slots=True)
class Labelled:
    """Labels of all values, of the dimensions of all tensors, and the layers between them."""

    graph: Graph
    groups: Groups = field(default_factory=Groups)
    values: dict[str, Tensor] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    dims: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    loose: set[tuple[str, int]] = field(default_factory=set)
    frozen: dict[str, str] = field(default_factory=dict)

    def roots(self, name: str) -> Tensor:
        """The labels of a value, each as the first of its group."""
        return self.groups.roots(self.values[name])


def told(node: Node) -> str:
    """A node as an account names it: its operator and the module that runs it."""
    return f"{node.place.operation} in {own_name(node.place.module) or 'the model itself'}"


@dataclass(slots=True)
class Ties:
    """Gives the labels of values to the tensors that work on them."""

    found: Labelled
    shapes: dict[str, tuple[int, ...]]
    regrouped: Callable[[Affine], bool]

    def is_learnt(self, source: Source) -> bool:
        """Whether a parameter or buffer is behind a weight."""
        known = self.found.graph
        return any(name in known.parameters or name in known.buffers for name in source.names)

    def dense(self, node: Affine, x: Tensor) -> Tensor:
        """A layer between channels: fresh labels for what it writes."""
        axes = node.operation.axes
        if axes is None or node.weight is None:
            raise ValueError(f"{node.name} is no layer.")
        into = self.vector(x, axes.x, self.shapes[node.inputs[0]][axes.x])
        out = self.found.groups.new(node.shape[axes.y])
        use = Use(
            node=node,
            weight_in=axes.weight_in,
            weight_out=axes.weight_out,
            groups=axes.groups,
            into=into,
            out=out,
        )
        self.found.uses.append(use)
        if axes.groups > 1:
            self._tie_groups(use)
            # A grouped convolution keeps (out, in / groups) channels per group; a transposed one
            # (in, out / groups).
            first = into if axes.weight_in < axes.weight_out else out
            self._tie(node.weight, {0: first}, told(node))
        else:
            self._tie(
                node.weight,
                {axes.weight_in: into, axes.weight_out: out},
                told(node),
            )
        return along(out, axes.y, len(node.shape))

    def elementwise(self, node: Affine, source: Source, y: Tensor) -> None:
        """A weight or bias that each channel of y has for itself."""
        shape = node.operation.bias_shape
        if shape is not None and len(source.shape) == 1:
            dims = [shape.index(-1)]
        else:
            dims = [len(node.shape) - len(source.shape) + i for i in range(len(source.shape))]
        labels = {
            i: self.vector(y, dim, node.shape[dim])
            for i, dim in enumerate(dims)
            # What is broadcast along a dimension belongs to none of the channels there.
            if source.shape[i] > 1 and dim < y.ndim and y.shape[dim] > 1
        }
        self._tie(source, labels, told(node))

    def vector(self, labels: Tensor, dim: int, size: int) -> Tensor:
        """One label per index along a dimension; what shares an index is tied."""
        return self.found.groups.shared(rows(labels, dim, size))

    def pin(self, x: Tensor, node: Node) -> Tensor:
        """Everything that a value carries stays; so does what follows from it."""
        self.found.groups.pin(x, f"{told(node)} mixes all of it")
        return self.pinned(node.shape)

    def pinned(self, shape: tuple[int, ...]) -> Tensor:
        """Label 0 throughout."""
        return torch.zeros([1] * len(shape), dtype=torch.long)

    def freeze(self, node: Affine, why: str) -> None:
        """Every dimension of these tensors stays."""
        for source in (node.weight, node.bias):
            if source is not None:
                self.found.frozen |= dict.fromkeys(source.names, why)

    def _tie_groups(self, use: Use) -> None:
        """A group goes whole or not at all; where the number of groups is fixed, none goes."""
        groups = self.found.groups
        members = torch.cat(
            [use.into.reshape(use.groups, -1), use.out.reshape(use.groups, -1)], dim=1
        )
        if self.regrouped(use.node):
            groups.shared(members)
        else:
            groups.pin(members, f"{told(use.node)} has a fixed number of groups")

    def _tie(self, source: Source, labels: dict[int, Tensor], where: str) -> None:
        """Give the labels of a source's dimensions to the named tensors behind it."""
        found, known = self.found, aligned(source, self.found.graph)
        if known is None:
            for vector in labels.values():
                found.groups.pin(vector, f"{where} computes its weight")
            found.frozen |= dict.fromkeys(source.names, f"{where} computes its weight")
            return
        for name, dims in known.items():
            for own, dim in enumerate(dims):
                if dim is None or dim not in labels:
                    found.loose.add((name, own))
                elif (name, own) in found.dims:
                    found.groups.unite(found.dims[name, own], labels[dim])
                else:
                    found.dims[name, own] = labels[dim]


# One label per channel of every value, united where the network ties channels to each other.
#
# A label stands for everything that has to go when one channel goes: the row that writes it, its
# batch norm, and the column of every layer that reads it. Skip connections, depthwise
# convolutions, shared and tied weights unite labels; inputs, outputs and whatever the graph cannot
# follow pin them.


def labelled(graph: Graph, *, regrouped: Callable[[Affine], bool]) -> Labelled:
    """Label every channel of a graph; `regrouped` says whether a layer's number of groups can be
    changed."""
    found = Labelled(graph)
    shapes = {node.name: node.shape for node in graph.nodes}
    flow = _Flow(found, shapes, Ties(found, shapes, regrouped))
    for node in graph.nodes:
        found.values[node.name] = flow.step(node)
    flow.settle()
    # The user reads the outputs, so they keep their
    # shape even where a channel is constant.
    found.groups.pin(found.values[graph.output], "is an output of the model")
    _pin_what_is_not_followed(found)
    return found


def _pin_what_is_not_followed(found: Labelled) -> None:
    """A dimension that some use does not label, and every dimension of a tensor used in an unknown
    way, stays."""
    for (name, dim), labels in found.dims.items():
        if name in found.frozen or (name, dim) in found.loose or name in found.graph.constants:
            why = found.frozen.get(name, "is read in a way that is not followed")
            found.groups.pin(labels, f"{own_name(name)}: {why}")


@dataclass(slots=True)
class _Flow:
    found: Labelled
    shapes: dict[str, tuple[int, ...]]
    ties: Ties
    later: list[tuple[Affine, Source, Tensor]] = field(default_factory=list)

    def step(self, node: Node) -> Tensor:
        xs = [self.found.values[name] for name in node.inputs]
        match node:
            case Input():
                return self.ties.pinned(node.shape)
            case Affine():
                return self._affine(node, xs[0] if xs else None)
            case Activation():
                return xs[0]
            case Pool():
                return self._pool(node, xs[0])
            case Structural():
                return self._structural(node, xs)
            case Add():
                return self._add(node, xs)
            case Opaque():
                return self._opaque(node, xs)

    def _affine(self, node: Affine, x: Tensor | None) -> Tensor:
        if x is None:
            self.ties.freeze(node, "a constant of the model's own")
            return self.ties.pinned(node.shape)
        axes, before = node.operation.axes, self.shapes[node.inputs[0]]
        if node.weight is None:
            # An addition alone; where it adds dimensions as
            # well, channels cannot be followed.
            y = x if len(before) == len(node.shape) else self.ties.pin(x, node)
        elif axes is not None and axes.diagonal:
            self._elementwise(node, node.weight, x)
            y = x
        elif axes is not None and self.ties.is_learnt(node.weight):
            y = self.ties.dense(node, x)
        elif self.ties.is_learnt(node.weight):
            self.ties.freeze(node, f"{told(node)} is no layer between channels")
            y = self.ties.pin(x, node)
        else:
            # The weight holds constants only: an average pool or an interpolation.
            y = self._sums(node, x)
        if node.bias is not None:
            self._elementwise(node, node.bias, y)
        return y

    def _elementwise(self, node: Affine, source: Source, y: Tensor) -> None:
        """Tie a weight or bias to the channels; what is no parameter waits until the end.

        A rotary embedding multiplies all heads by one table. Only after the attention behind it has
        tied the entries of each head is it seen that the table has nothing to lose.
        """
        table = node.operation.bias_shape is None and not any(
            name in self.found.graph.parameters for name in source.names
        )
        if table:
            self.later.append((node, source, y))
        else:
            self.ties.elementwise(node, source, y)

    def settle(self) -> None:
        """The ties that waited."""
        for node, source, y in self.later:
            now = reduced(self.found.groups.roots(y))
            self.ties.elementwise(node, source, now)

    def _pool(self, node: Pool, x: Tensor) -> Tensor:
        """Whatever competes in one window has to stay or go together."""
        shape = self.shapes[node.inputs[0]]
        # Uniting changes the roots, so it is repeated until nothing changes.
        # Overlapping windows need a few rounds; where 16 are not enough the channels
        # stay.
        for _ in range(16):
            labels = full(self.found.groups.roots(x), shape)
            # The largest and the smallest label of a window
            # are equal only where it has one label.
            high, low = node.maximum(labels).long(), (-node.maximum(-labels)).long()
            if torch.equal(high, low):
                return reduced(high)
            self.found.groups.unite(high, low)
        return self.ties.pin(x, node)

    def _sums(self, node: Affine, x: Tensor) -> Tensor:
        """Averages and interpolations: a window over several channels pins them."""
        found = self._one_each(node, self.found.groups.roots(x))
        if found is None and x.ndim > 2:  # such as a channel and its zero padding
            self.ties.vector(x, 1, self.shapes[node.inputs[0]][1])
            found = self._one_each(node, self.found.groups.roots(x))
        return self.ties.pin(x, node) if found is None else found

    def _one_each(self, node: Affine, x: Tensor) -> Tensor | None:
        """The label of each sum, when all that enters it has one label; found by comparing mean and
        mean square."""
        shape = self.shapes[node.inputs[0]]
        weight = None if node.weight is None else torch.ones(node.weight.shape, dtype=torch.float64)
        known, local = torch.unique(x, return_inverse=True)
        code = (
            # Multiples of the golden ratio, modulo 1, lie far apart: labels get codes
            # that cannot be mixed up.
            torch.frac((torch.arange(len(known)) + 1) * 0.6180339887498949).double() + 0.5
        )
        # A window that reads nothing but padding counts 0, which must not divide.
        count = node.linear(torch.ones(shape, dtype=torch.float64), weight).clamp_min(1e-300)
        mean = node.linear(full(code[local], shape), weight) / count
        square = node.linear(full(code[local] ** 2, shape), weight) / count
        if bool(((square - mean**2).abs() > 1e-10).any()):
            return None
        index = node.linear(full(local, shape), weight) / count
        return reduced(known[index.round().long()])

    def _structural(self, node: Structural, xs: list[Tensor]) -> Tensor:
        """Labels move as values do; the zeros of a padding get labels of their own."""
        shapes = [self.shapes[name] for name in node.inputs]
        # Shifted by one: a padding's zero comes out as −1 and not as label 0, which is
        # the pinned one.
        moved = (
            node.function(*[full(x, shape) + 1 for x, shape in zip(xs, shapes, strict=True)]).long()
            - 1
        )
        empty = moved < 0
        if bool(empty.any()):
            moved[empty] = self.found.groups.new(int(empty.sum()))
        return reduced(moved)

    def _opaque(self, node: Opaque, xs: list[Tensor]) -> Tensor:
        """What is mixed goes together; what is carried keeps its label, shared by all inputs."""
        groups = self.found.groups
        if not any(dim is not None for own in node.carried for dim in own):
            for x in xs:
                groups.pin(x, f"{told(node)} mixes all of it")
            return self.ties.pinned(node.shape)
        ndim = len(node.shape)
        rows = [laid(x, own, ndim, groups.shared) for x, own in zip(xs, node.carried, strict=True)]
        whole = []
        for i, row in enumerate(rows):
            others = [groups.roots(r) for j, r in enumerate(rows) if j != i]
            # One gate for many channels cannot go with any of them.
            if varies(node, i, others):
                groups.pin(row, f"{told(node)} applies it to many channels")
            else:
                whole.append(row)
        if not whole:
            return self.ties.pinned(node.shape)
        self._unite(node, whole)
        return together(*whole)[0]

    def _add(self, node: Add, xs: list[Tensor]) -> Tensor:
        self._unite(node, xs)
        return together(*xs)[0]

    def _unite(self, node: Opaque | Add, xs: list[Tensor]) -> None:
        """Channels that meet go together; with what stays they stay, and it is told where."""
        roots = self.found.groups.roots
        free = [x for x in xs if not bool((roots(x) == PINNED).all())]
        for x in free[1:]:
            self.found.groups.unite(free[0], x)
        if free and len(free) < len(xs):
            why = f"{told(node)} ties it to {self._tied(node)}"
            self.found.groups.pin(free[0], why)

    def _tied(self, node: Opaque | Add) -> str:
        """What a node ties its channels to: a parameter that all of them share, or what stays."""
        graph = self.found.graph
        sources = [graph.by_name[name] for name in node.inputs]
        names = [
            own_name(name)
            for one in sources
            if isinstance(one, Affine) and not one.inputs and one.bias is not None
            for name in one.bias.names
            if name in graph.parameters
        ]
        return names[0] if names else "what stays"
