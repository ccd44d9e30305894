"""One label per channel of every value, united where the network ties channels to each other.

`LabelFlow` says what else has to go when one channel goes (`compact`, `prune_channels_`). Another
question of ties overrides the rules that differ: `inexact.InexactFlow` asks it where outputs may
change, `scaling.ScaleFlow` asks which channels share one scale.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ShipError
from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Axes,
    Graph,
    Input,
    Named,
    Node,
    Opaque,
    Pool,
    Source,
    Structural,
)
from secateurs.graph.export import flatten
from secateurs.graph.ir import Wrapper
from secateurs.graph.propagate import step
from secateurs.paths.reach import along, compress_marks, full, in_full, laid, rows, together

# Which dimension of a named tensor becomes which dimension of the weight that the graph computes
# from it.

Alignment = Mapping[str, tuple[int | None, ...]]
"""For each named tensor, the dimension of the source that each of its dimensions becomes; None:
none does."""


def alignment_of(source: Source, graph: Graph) -> Alignment | None:
    """The alignment of every tensor a source reads; None where it is not known, and then nothing
    may be cut.

    A tensor itself, a transposed, viewed or unsqueezed one, and anything elementwise (a folded
    batch norm, a weight times its mask) are known. These assumptions are checked on values once
    something has been cut.
    """
    if isinstance(source, Named):
        return {source.name: tuple(range(len(source.shape)))}
    shapes = {name: _shape(name, graph) for name in source.names}
    if len(shapes) == 1:
        name, shape = next(iter(shapes.items()))
        moved = _follow_positions(source, name, shape)
        if moved is not None:
            return {name: moved}
    broadcast = {name: _broadcast(shape, source.shape) for name, shape in shapes.items()}
    known = {name: dims for name, dims in broadcast.items() if dims is not None}
    if len(known) == len(broadcast):
        return known
    return _picked(source, shapes, graph)


def _shape(name: str, graph: Graph) -> tuple[int, ...]:
    if name in graph.constants:
        return tuple(graph.constants[name].shape)
    return tuple(graph.parameters[name] if name in graph.parameters else graph.buffers[name])


def _follow_positions(
    source: Source, name: str, shape: Sequence[int]
) -> tuple[int | None, ...] | None:
    """Follow positions through the source: it rearranges when they come out as they went in, in
    another order."""
    places = _places(shape)
    try:
        moved = source({name: places})
    except (RuntimeError, KeyError, TypeError):
        return None
    # Every position comes out once and unchanged, or the source computes something.
    if moved.numel() != places.numel() or not torch.equal(
        moved.flatten().sort().values, places.flatten()
    ):
        return None
    # A dimension that no other one counts was split, merged or put into another order on the way:
    # channels along it cannot be followed.
    return tuple(_dimension(each) for each in torch.unravel_index(moved.long(), tuple(shape)))


def _places(shape: Sequence[int]) -> Tensor:
    """The number of each entry; float64 holds it exactly, up to 2^53 entries."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(tuple(shape))


def _picked(source: Source, shapes: Mapping[str, Sequence[int]], graph: Graph) -> Alignment | None:
    """Where a source picks whole rows, as positions are looked up in tables and added: their
    columns are followed, each table with zeros in the others."""
    found: dict[str, tuple[int | None, ...]] = {}
    # Which rows are picked does not matter for the columns: every index may be 0.
    nothing = {
        name: torch.zeros(
            tuple(shape), dtype=torch.float64 if _is_real(name, graph) else torch.long
        )
        for name, shape in shapes.items()
    }
    for name, shape in shapes.items():
        if not nothing[name].is_floating_point():
            found[name] = (None,) * len(shape)
            continue
        places = _places(shape)
        try:
            moved = source({**nothing, name: places})
        except (RuntimeError, KeyError, TypeError, IndexError):
            return None
        if not moved.numel() or not bool(torch.isin(moved, places).all()):
            return None
        dims = [_dimension(each) for each in torch.unravel_index(moved.long(), tuple(shape))]
        # A slice counts as well, and loses what lies beyond it.
        found[name] = tuple(
            dim if dim is not None and moved.shape[dim] == size else None
            for dim, size in zip(dims, shape, strict=True)
        )
    return found


def _is_real(name: str, graph: Graph) -> bool:
    """Whether a tensor holds numbers; the buffers of a model that its code computes with here are
    taken for indices."""
    if name in graph.constants:
        return graph.constants[name].is_floating_point()
    return name in graph.parameters


def _dimension(coordinates: Tensor) -> int | None:
    """The dimension along which a coordinate counts 0, 1, 2, ... while it is constant along the
    others."""
    for dim, size in enumerate(coordinates.shape):
        shape = [1] * coordinates.ndim
        shape[dim] = -1
        counting = torch.arange(size).reshape(shape)
        # Along a dimension of size 1 every coordinate is 0, which proves nothing.
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


def distinct(labels: Tensor) -> Tensor:
    """Each label once, in order."""
    found: Tensor = labels.unique()  # type: ignore[no-untyped-call]
    return found


# Labels that must go together; label 0 always stays.

PINNED = 0
NOTHING = -1
"""The label of a zero from padding that ties nothing, where a flow says so."""
_TIED = "is tied to what stays"


class Groups:
    """Labels, united where the network ties them. Label 0 is pinned: whatever is united with it
    stays.

    Ties that do not involve label 0 are kept as well, so that of the channels that stay it is known
    which are dead, and why they stay.
    """

    def __init__(self) -> None:
        # The smallest label of each one's group, so that whatever is united with 0 is pinned.
        self._root = torch.zeros(1, dtype=torch.long)
        self._free_ties: list[Tensor] = []
        self._unpinned: Tensor | None = None
        self.pins: list[tuple[str, Tensor]] = []

    def __len__(self) -> int:
        return len(self._root)

    def new(self, count: int) -> Tensor:
        """Fresh labels."""
        fresh = torch.arange(len(self), len(self) + count)
        self._root, self._unpinned = torch.cat([self._root, fresh]), None
        return fresh

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Tie the labels of two tensors, entry by entry, with broadcasting; NOTHING ties
        nothing."""
        a, b = together(a, b)
        differ = (a != b) & (a >= 0) & (b >= 0)
        if not bool(differ.any()):
            return
        # A feature map holds the same pair at every pixel: each is united once.
        pairs = torch.unique(torch.stack([a[differ], b[differ]]), dim=1)
        self._root = _unite_pairs(self._root, self._root[pairs])
        bound = (pairs == PINNED).any(0)
        self._free_ties.append(pairs[:, ~bound])
        self._unpinned = None
        self._note(_TIED, pairs[:, bound])

    def pin(self, labels: Tensor, why: str) -> None:
        """Mark these as not removable, for this reason."""
        labels = torch.unique(labels[labels > PINNED])
        self._note(why, labels)
        self._root = _unite_pairs(
            self._root, torch.stack([self._root[labels], torch.zeros_like(labels)])
        )

    def roots(self, labels: Tensor) -> Tensor:
        """The labels, each replaced by the smallest of its group."""
        return torch.where(labels < 0, labels, self._root[labels.clamp_min(0)])

    def unpinned(self, labels: Tensor) -> Tensor:
        """Group roots, ignoring ties to channels that cannot be removed."""
        if self._unpinned is None:
            none = torch.zeros(2, 0, dtype=torch.long)
            pairs = torch.cat([none, *self._free_ties], dim=1)
            self._unpinned = _unite_pairs(torch.arange(len(self)), pairs)
        return self._unpinned[labels]

    def reasons(self) -> dict[int, str]:
        """Why unpinned roots stay: the first pin that met them, a named one before a mere tie."""
        found: dict[int, str] = {}
        # The last write counts: ties first, then names, the latest before the earliest.
        pins = sorted(self.pins, key=lambda pin: pin[0] != _TIED)
        ties = [pin for pin in pins if pin[0] == _TIED]
        for why, labels in (*reversed(ties), *reversed(pins[len(ties) :])):
            found |= dict.fromkeys(self.unpinned(labels).tolist(), why)
        return found

    def shared(self, rows: Tensor) -> Tensor:
        """Tie the labels within each row; the label of each row."""
        first = rows[:, :1]
        if bool((first < 0).any()):
            first = torch.where(first < 0, rows.amax(1, keepdim=True), first)
        self.unite(rows, first)
        return first[:, 0]

    def _note(self, why: str, labels: Tensor) -> None:
        labels = torch.unique(labels[labels != PINNED])
        if len(labels):
            self.pins.append((why, labels))


def _unite_pairs(root: Tensor, pairs: Tensor) -> Tensor:
    """Every label's root once the roots in each column of `pairs` are one group."""
    if not pairs.numel():
        return root
    ends, (left, right) = torch.unique(pairs, return_inverse=True)
    # The place of the smallest label known of each one's group. scipy has this ready, and takes a
    # tenth of a second to import.
    group = torch.arange(len(ends))
    while not torch.equal(one := group[left], two := group[right]):
        low = torch.minimum(one, two)
        group = group.scatter_reduce(0, torch.cat([one, two]), torch.cat([low, low]), "amin")
        while not torch.equal(nearer := group[group], group):
            group = nearer
    joined = root.clone()
    joined[ends] = ends[group]
    return joined[root]


# A model seen through all its outputs at once, so that nothing an output needs counts as dead.

_PREFIX = "inner."


class AllOutputs(Wrapper):
    """The model with its real-valued outputs laid side by side in one tensor, whatever structure it
    returns."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """A row per sample with every number the model returns."""
        found = list(leaves(self.read(self.inner(*args, **kwargs))))
        if not found:
            raise ShipError(f"{type(self.inner).__name__} returns no real-valued tensor.")
        return found[0] if len(found) == 1 else torch.cat([_row(leaf) for leaf in found], dim=1)

    def read(self, out: Any) -> Any:
        """The part of a result that counts: all of it."""
        return out


def leaves(out: Any) -> Iterator[Tensor]:
    """The real-valued tensors of a result, in order."""
    # Indices and flags have no relative difference.
    return (tensor for _, tensor in flatten(out, "") if tensor.is_floating_point())


def own_name(name: str) -> str:
    """A tensor's or module's name in the model itself."""
    return "" if name == _PREFIX.rstrip(".") else name.removeprefix(_PREFIX)


def _row(leaf: Tensor) -> Tensor:
    return leaf.flatten(1) if leaf.ndim > 1 else leaf.reshape(-1, 1)


# Labels of all values and tensors of a graph, and the layers between them.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUse:
    """A weight between two sets of channels, with the labels of both."""

    node: Affine
    weight: Source
    axes: Axes
    into: Tensor
    out: Tensor

    @property
    def x(self) -> str:
        """The value it reads."""
        return self.node.inputs[0]


@dataclass(slots=True)
class Labelled:
    """Labels of all values, of the dimensions of all tensors, and the layers between them.

    Attributes:
        dims: The labels along a dimension of a named tensor.
        loose: Dimensions that some use does not label.
        frozen: Tensors of which every dimension stays, and why.
    """

    graph: Graph
    groups: Groups = field(default_factory=Groups)
    values: dict[str, Tensor] = field(default_factory=dict)
    uses: list[LayerUse] = field(default_factory=list)
    dims: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    loose: set[tuple[str, int]] = field(default_factory=set)
    frozen: dict[str, str] = field(default_factory=dict)

    def roots(self, name: str) -> Tensor:
        """The labels of a value, each as the first of its group."""
        return self.groups.roots(self.values[name])


def describe_node(node: Node) -> str:
    """A node as a record names it: its operator and the module that runs it."""
    return f"{node.place.operation} in {own_name(node.place.module) or 'the model itself'}"


def label(flow: "LabelFlow") -> None:
    """Carry labels through the graph of a flow; all values keep theirs."""
    values, graph = flow.found.values, flow.found.graph
    for node in graph.nodes:
        xs = [values[name] for name in node.inputs]
        values[node.name] = step(flow, node, xs, [None] * len(graph.inputs), None)


# One label per channel of every value, united where the network ties channels to each other.
#
# A label stands for everything that has to go when one channel goes: the row that writes it, its
# batch norm, and the column of every layer that reads it. Skip connections, depthwise
# convolutions, shared and tied weights unite labels; inputs, outputs and whatever the graph cannot
# follow pin them.


def label_channels(
    graph: Graph, model: nn.Module, kind: "type[LabelFlow] | None" = None
) -> Labelled:
    """Label every channel of the graph of a model.

    kind: the flow that labels; `LabelFlow` ties channels that cannot go without changing what a
        norm says of the others.
    """
    found = Labelled(graph)
    flow = (kind or LabelFlow)(found, model)
    label(flow)
    for node, source, y in flow.later:
        flow.tie_elementwise(node, source, compress_marks(found.groups.roots(y)))
    for name, labels in found.values.items():
        # Padding that ties nothing is not removed with anything either.
        found.values[name] = torch.where(labels < 0, PINNED, labels)
    # The user reads the outputs, so they keep their
    # shape even where a channel is constant.
    found.groups.pin(found.values[graph.output], "is an output of the model")
    # A dimension that some use does not label, and every dimension of a tensor used in an unknown
    # way, stays.
    for (name, dim), labels in found.dims.items():
        if name in found.frozen or (name, dim) in found.loose or name in graph.constants:
            why = found.frozen.get(name, "is read in a way that is not followed")
            found.groups.pin(labels, f"{own_name(name)}: {why}")
    return found


def varies(node: Opaque, i: int, others: Sequence[Tensor]) -> bool:
    """Whether other inputs have several labels along a dimension that this input does not have."""
    mine = {dim for dim in node.carried[i] if dim is not None}
    return any(
        other.shape[dim] > 1 and bool((other != other.narrow(dim, 0, 1)).any())
        for other in others
        for dim in range(len(node.shape))
        if dim not in mine
    )


class LabelFlow:
    """Gives labels to values, and the labels of values to the tensors that work on them."""

    def __init__(self, found: Labelled, model: nn.Module) -> None:
        self.found, self.groups, self.model = found, found.groups, model
        self.later: list[tuple[Affine, Source, Tensor]] = []

    def input(self, node: Input, value: None) -> Tensor:
        return _pinned(node)

    def affine(self, node: Affine, x: Tensor | None, params: None) -> Tensor:
        if x is None:
            self._freeze(node, "a constant of the model's own")
            return _pinned(node)
        y = self._linear(node, x)
        if node.bias is not None:
            self.bias(node, node.bias, y)
        return y

    def activation(self, node: Activation, x: Tensor) -> Tensor:
        return x

    def pool(self, node: Pool, x: Tensor) -> Tensor:
        """Whatever competes in one window has to stay or go together."""
        shape = self._shape(node)
        # Uniting changes the roots, so it is repeated until nothing changes.
        # Overlapping windows need a few rounds; where 16 are not enough the channels
        # stay.
        for _ in range(16):
            labels = full(self.groups.roots(x), shape)
            # The largest and the smallest label of a window
            # are equal only where it has one label.
            high, low = node.maximum(labels).long(), (-node.maximum(-labels)).long()
            if torch.equal(high, low):
                return compress_marks(high)
            self.groups.unite(high, low)
        return self.pin(x, node)

    def structural(self, node: Structural, xs: Sequence[Tensor]) -> Tensor:
        """Labels move as values do; the zeros of a padding get labels of their own."""
        # Shifted by two: every label is above 0, and a padding's zero comes out below NOTHING.
        lifted = [x + 2 for x in in_full(self.found.graph, node, xs)]
        return self._filled(node.function(*lifted).long() - 2)

    def add(self, node: Add, xs: Sequence[Tensor]) -> Tensor:
        self._unite(node, xs)
        out, *others = together(*xs)
        for x in others:
            # Where one branch is padding that ties nothing the other decides.
            out = torch.where(out < 0, x, out)
        return out

    def opaque(self, node: Opaque, xs: Sequence[Tensor]) -> Tensor:
        """What is mixed goes together; what is carried keeps its label, shared by all inputs."""
        if not any(dim is not None for own in node.carried for dim in own):
            for x in xs:
                self.pin(x, node)
            return _pinned(node)
        ndim = len(node.shape)
        rows = [
            laid(x, own, ndim, self.groups.shared) for x, own in zip(xs, node.carried, strict=True)
        ]
        whole = []
        for i, row in enumerate(rows):
            others = [self.groups.roots(r) for j, r in enumerate(rows) if j != i]
            # One gate for many channels cannot be removed with any of them.
            if varies(node, i, others):
                self.groups.pin(row, f"{describe_node(node)} applies it to many channels")
            else:
                whole.append(row)
        if not whole:
            return _pinned(node)
        self._unite(node, whole)
        return together(*whole)[0]

    # Rules that another question of ties may answer in its own way.

    def diagonal(self, node: Affine, weight: Source, x: Tensor) -> None:
        """A weight that each channel has for itself."""
        self._elementwise(node, weight, x)

    def bias(self, node: Affine, bias: Source, y: Tensor) -> None:
        """What is added to each channel."""
        self._elementwise(node, bias, y)

    def mixes(self, weight: Source) -> bool:
        """Whether a weight with known axes lies between channels, that is, whether it is learnt."""
        graph = self.found.graph
        return any(name in graph.parameters or name in graph.buffers for name in weight.names)

    def learnt(self, weight: Source) -> bool:
        """Whether a weight without known axes is more than a window of constants."""
        return self.mixes(weight)

    def tie_weight(self, use: LayerUse) -> None:
        """Pass the labels of a layer's channels on to its weight."""
        axes, where = use.axes, describe_node(use.node)
        labels = {axes.weight_in: use.into, axes.weight_out: use.out}
        if axes.groups > 1:
            # A group goes whole or not at all; where the number of groups is fixed, none goes.
            parts = [part.reshape(axes.groups, -1) for part in (use.into, use.out)]
            members = torch.cat(parts, dim=1)
            if self._can_lose_groups(use):
                self.groups.shared(members)
            else:
                self.groups.pin(members, f"{where} has a fixed number of groups")
            # A grouped convolution keeps (out, in / groups) channels per group; a transposed one
            # (in, out / groups).
            labels = {0: use.into if axes.weight_in < axes.weight_out else use.out}
        self._tie(use.weight, labels, where)

    def windows(self, node: Affine | Pool, total: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Averages and interpolations: a window over several channels pins them."""
        found = self.one_each(node, total, x)
        if found is None and x.ndim > 2:  # such as a channel and its zero padding
            self.vector(x, 1, self._shape(node)[1])
            found = self.one_each(node, total, x)
        return self.pin(x, node) if found is None else found

    def padding(self, count: int) -> Tensor:
        """The labels of so many zeros from nowhere."""
        return self.groups.new(count)

    # What the rules are made of.

    def vector(self, labels: Tensor, dim: int, size: int) -> Tensor:
        """One label per index along a dimension; what shares an index is tied."""
        return self.groups.shared(rows(labels, dim, size))

    def pin(self, x: Tensor, node: Node) -> Tensor:
        """Mark all channels of this value, and everything tied to them, as not removable."""
        self.groups.pin(x, f"{describe_node(node)} mixes all of it")
        return _pinned(node)

    def tie_elementwise(self, node: Affine, source: Source, y: Tensor) -> None:
        """A weight or bias that each channel of y has for itself."""
        shape = node.operation.bias_shape
        if shape is not None and len(source.shape) == 1:
            dims = [shape.index(-1)]
        else:
            dims = [len(node.shape) - len(source.shape) + i for i in range(len(source.shape))]
        labels = {
            i: self.vector(y, dim, node.shape[dim])
            for i, dim in enumerate(dims)
            # A value that is broadcast along a dimension belongs to none of its channels.
            if source.shape[i] > 1 and dim < y.ndim and y.shape[dim] > 1
        }
        self._tie(source, labels, describe_node(node))

    def one_each(
        self, node: Affine | Pool, total: Callable[[Tensor], Tensor], x: Tensor
    ) -> Tensor | None:
        """The label of each sum, when all that enters it has one label; found by comparing mean and
        mean square."""
        shape = self._shape(node)
        labels, local = torch.unique(self.groups.roots(x), return_inverse=True)
        # Multiples of the golden ratio, modulo 1, lie far apart: labels get codes
        # that cannot be mixed up.
        code = torch.frac((torch.arange(len(labels)) + 1) * 0.6180339887498949).double() + 0.5
        known = (labels >= 0).double()
        count = total(full(known[local], shape))
        # A window that reads nothing but padding counts 0, which must not divide.
        mean, square, index = (
            total(full((values * known)[local], shape)) / count.clamp_min(1e-300)
            for values in (code, code**2, torch.arange(len(labels)))
        )
        if bool(((square - mean**2).abs() > 1e-10).any()):
            return None
        return self._filled(torch.where(count > 0, labels[index.round().long()], NOTHING - 1))

    def _shape(self, node: Node) -> tuple[int, ...]:
        """The shape of a node's first input."""
        return self.found.graph.by_name[node.inputs[0]].shape

    def _linear(self, node: Affine, x: Tensor) -> Tensor:
        weight, axes = node.weight, node.operation.axes
        if weight is None:
            # An addition alone; where it adds dimensions as
            # well, channels cannot be followed.
            same = len(self._shape(node)) == len(node.shape)
            return x if same else self.pin(x, node)
        if axes is not None and axes.diagonal:
            self.diagonal(node, weight, x)
            return x
        if axes is not None and self.mixes(weight):
            into = self.vector(x, axes.x, self._shape(node)[axes.x])
            out = self.groups.new(node.shape[axes.y])
            use = LayerUse(node=node, weight=weight, axes=axes, into=into, out=out)
            self.found.uses.append(use)
            self.tie_weight(use)
            return along(out, axes.y, len(node.shape))
        if self.learnt(weight):
            self._freeze(node, f"{describe_node(node)} is not a layer between channels")
            return self.pin(x, node)
        # The weight holds constants only: an average pool or an interpolation.
        ones = torch.ones(weight.shape, dtype=torch.float64)
        return self.windows(node, lambda t: node.linear(t, ones), x)

    def _can_lose_groups(self, use: LayerUse) -> bool:
        """Whether a layer is one of PyTorch's, whose number of groups is an attribute that can be
        set."""
        owner = self.model.get_submodule(use.node.place.module)
        # A subclass may compute its groups as it runs: then
        # setting the attribute changes nothing.
        return isinstance(owner, nn.modules.conv._ConvNd) and owner.groups == use.axes.groups

    def _elementwise(self, node: Affine, source: Source, y: Tensor) -> None:
        """Tie a weight or bias to the channels; what is not a parameter waits until the end.

        A rotary embedding multiplies all heads by one table. Only after the attention behind it has
        tied the entries of each head is it seen that the table has nothing to lose.
        """
        table = node.operation.bias_shape is None and not any(
            name in self.found.graph.parameters for name in source.names
        )
        if table:
            self.later.append((node, source, y))
        else:
            self.tie_elementwise(node, source, y)

    def _freeze(self, node: Affine, why: str) -> None:
        """Every dimension of these tensors stays."""
        for source in (node.weight, node.bias):
            if source is not None:
                self.found.frozen |= dict.fromkeys(source.names, why)

    def _filled(self, labels: Tensor) -> Tensor:
        """Labels below NOTHING, which stand for zeros from nowhere, replaced."""
        empty = labels < NOTHING
        if bool(empty.any()):
            labels[empty] = self.padding(int(empty.sum()))
        return compress_marks(labels)

    def _unite(self, node: Opaque | Add, xs: Sequence[Tensor]) -> None:
        """Unite channels that meet; those that meet something pinned stay, and the place is
        noted."""
        free = [x for x in xs if not bool((self.groups.roots(x) == PINNED).all())]
        if not free:
            return
        met = free[0]
        for x in free[1:]:
            self.groups.unite(met, x)
            met = torch.where(met < 0, x, met)
        if len(free) < len(xs):
            self.groups.pin(met, f"{describe_node(node)} ties it to {self._what_stays(node)}")

    def _what_stays(self, node: Opaque | Add) -> str:
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

    def _tie(self, source: Source, labels: dict[int, Tensor], where: str) -> None:
        """Give the labels of a source's dimensions to the named tensors behind it."""
        found, known = self.found, alignment_of(source, self.found.graph)
        if known is None:
            for vector in labels.values():
                self.groups.pin(vector, f"{where} computes its weight")
            found.frozen |= dict.fromkeys(source.names, f"{where} computes its weight")
            return
        covered = {dim for dims in known.values() for dim in dims}
        for whole, vector in labels.items():
            if whole not in covered:
                # Removing these channels would take nothing from any tensor.
                self.groups.pin(vector, f"{where} computes its weight")
        for name, dims in known.items():
            for own, dim in enumerate(dims):
                if dim is None or dim not in labels:
                    found.loose.add((name, own))
                elif (name, own) in found.dims:
                    self.groups.unite(found.dims[name, own], labels[dim])
                else:
                    found.dims[name, own] = labels[dim]


def _pinned(node: Node) -> Tensor:
    """Label 0 throughout."""
    return torch.zeros([1] * len(node.shape), dtype=torch.long)
