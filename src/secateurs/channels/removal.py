"""Which labels are removed: the dead ones, minus those that must stay, until no more are found."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from secateurs.channels.folding import Folds, folds
from secateurs.channels.labels import PINNED, Labelled, describe_node, distinct, own_name
from secateurs.graph import Affine, Node, State, Structural, affines
from secateurs.paths.reach import Reachability, together


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalOptions:
    """Options that make channels stay, besides the network itself.

    Attributes:
        multiple_of: Kept channels of a layer are rounded up to a multiple.
        rearranged: Whether channels that pass through a reordering written in the model's code may
            go at all.
        hopeful: Whether a reordering that asks for the old sizes may be taken to follow, because it
            gets them from attributes or shapes; the smaller model then shows whether it does.
        failed: Classes of modules whose code was seen not to follow.
        contested: Classes whose attributes are set even where their size also stands for something
            that stays.
    """

    multiple_of: int = 1
    rearranged: bool = True
    hopeful: bool = False
    failed: frozenset[str] = frozenset()
    contested: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """An attribute of a module that holds a size, before and after."""

    module: str
    attribute: str
    before: int
    after: int


@dataclass(slots=True, kw_only=True)
class Removal:
    """The labels that go (a truth value per label), where their constants go, and why other dead
    labels stay."""

    gone: Tensor
    dead: Tensor
    pinned: dict[str, Tensor]
    folds: Folds
    resized: tuple[Resized, ...] = ()
    kept: dict[str, Tensor] = field(default_factory=dict)


def removal(
    model: nn.Module, found: Labelled, known: Reachability, state: State, options: RemovalOptions
) -> Removal:
    """Start from every dead label and take out what must stay; cheap reasons first, rounding
    last."""
    dead = _dead(found, known)
    gone = dead.clone()
    kept: dict[str, Tensor] = {}
    # Labels given back can block others. The loop ends because every round gives at least one back.
    while True:
        # `or`: one reason per round, since labels given back for it change what the later ones see.
        blocked = (
            last_of_layers(found, gone)
            or uneven_slices(found, gone)
            or stuck_in_rearrangements(found, gone, options)
            or stuck_in_computed_weights(found, gone, state)
        )
        if not blocked:
            folding = folds(model, found, known, gone)
            blocked = folding.kept or surplus_to_multiple(found, gone, options.multiple_of)
        if not blocked:
            return Removal(
                gone=gone,
                dead=dead,
                pinned=pinned_and_dead(found, known),
                folds=folding,
                resized=find_resized(model, found, gone, options.contested),
                kept=kept,
            )
        for why, labels in blocked.items():
            kept[why] = torch.unique(torch.cat([kept.get(why, labels[:0]), labels]))
            gone[labels] = False


def pinned_and_dead(found: Labelled, known: Reachability) -> dict[str, Tensor]:
    """Dead channels that are tied to what must stay, by the reason: labels without those ties."""
    groups = found.groups
    dead = _lifeless(found, known, groups.unpinned)
    dead[PINNED] = False
    written = torch.zeros_like(dead)
    for use in found.uses:
        bound = use.out[groups.roots(use.out) == PINNED]
        written[groups.unpinned(bound)] = True
    known_whys, found_labels = groups.reasons(), dict[str, list[int]]()
    for label in (dead & written).nonzero().flatten().tolist():
        why = known_whys.get(label, "is tied to what stays")
        found_labels.setdefault(why, []).append(label)
    return {why: torch.tensor(labels) for why, labels in found_labels.items()}


def _dead(found: Labelled, known: Reachability) -> Tensor:
    """Labels of which no neuron is both reached by an input and used by an output."""
    dead = _lifeless(found, known, found.groups.roots)
    dead[PINNED] = False
    return dead


def _lifeless(found: Labelled, known: Reachability, roots: Callable[[Tensor], Tensor]) -> Tensor:
    live = torch.zeros(len(found.groups), dtype=torch.bool)
    seen = torch.zeros_like(live)
    for node in found.graph.nodes:
        labels = roots(found.values[node.name])
        seen[labels.flatten()] = True
        both = known.arrive[node.name] & known.used[node.name]
        labels, both = together(labels, both)
        live[labels[both]] = True
    # Labels united into another no longer occur on any value: they are not channels.
    return seen & ~live


# Attributes of the user's own modules that hold a size which has changed.
#
# `num_heads`, `split_size`, `nf`: a module's code reshapes by numbers that it keeps as attributes.
# Where channels go, the numbers that stood for them are set anew. Whether the right ones were
# found is not trusted: the smaller model is run and compared, as always.


def find_resized(
    model: nn.Module, found: Labelled, gone: Tensor, contested: frozenset[str]
) -> tuple[Resized, ...]:
    """Every integer attribute that a changed size stands behind; none where two sizes claim it.

    Where a module's reshapes ask for the same number once for something that shrinks and once for
    something that stays, the attribute stays, except in the classes in `contested`.
    """
    claims: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for node in found.graph.nodes:
        # PyTorch's own layers are described by their tensors.
        owner = model.get_submodule(node.place.module)
        if not isinstance(node, Structural) or _is_torch(owner):
            continue
        stays = node.place.kind not in contested
        for before, after, counts in _sizes(found, gone, node):
            for name, value in vars(owner).items():
                mine = type(value) is int and value == before
                # A name that mentions heads is not contested by another dimension of that size.
                counted = after < before or (stays and not counts)
                if mine and counts == _counts(name) and counted:
                    claim = claims.setdefault((node.place.module, name), set())
                    claim.add((before, after))
    return tuple(
        Resized(module=module, attribute=name, before=before, after=after)
        for (module, name), sizes in claims.items()
        if len(sizes) == 1
        for before, after in sizes
        if after < before
    )


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn")


def _sizes(found: Labelled, gone: Tensor, node: Structural) -> Iterator[tuple[int, int, bool]]:
    """Sizes before and after on both sides of a reordering, and whether they count heads rather
    than channels."""
    graph = found.graph
    shapes = {name: graph.by_name[name].shape for name in (*node.inputs, node.name)}
    boxes = {name: kept_box(gone[found.roots(name)], shape) for name, shape in shapes.items()}
    fewest = min(len(shape) for shape in shapes.values())
    sizes = [
        (len(shape), size, len(kept))
        for name, shape in shapes.items()
        for size, kept in zip(shape, boxes[name] or (), strict=False)
    ]
    widest = max((size for _, size, kept in sizes if kept < size), default=0)
    for ndim, size, kept in sizes:
        # `view(b, s, heads, size)`: where channels are split, the side with more dimensions counts
        # heads and the other one channels.
        yield size, kept, ndim >= 4 or (ndim > fewest and size < widest)


def _counts(attribute: str) -> bool:
    """Whether an attribute counts heads, judged by its name."""
    return attribute.rstrip("s").endswith("head")


# Trying a rearrangement on fewer channels: does the function of the model's code still put them
# where they belong?
#
# `view(b, 9216)`, `chunk(2)` or a channel shuffle carry sizes in the code. Positions are sent
# through the function twice, all of them and only those that stay; where the second run fails or
# ends elsewhere, the channels must stay.


def kept_box(gone: Tensor, shape: Sequence[int]) -> list[Tensor] | None:
    """The indices that stay along each dimension; None where what goes is not a set of whole
    slices.

    gone: truth values that broadcast to the shape.
    """
    if not torch.Size(shape).numel():
        # An empty tensor, such as a cache of keys at its start, has nothing to lose.
        return [torch.arange(size) for size in shape]
    kept: list[Tensor] = []
    left = gone
    for dim, size in enumerate(shape):
        # Marks of size 1 hold for the whole dimension: they cut no slice out of it. Nor does it
        # matter how often they are repeated, so nothing here is as large as the value itself.
        if gone.shape[dim] == 1:
            kept.append(torch.arange(size))
            continue
        whole = gone.movedim(dim, 0).flatten(1).all(1) if gone.ndim > 1 else gone
        kept.append((~whole).nonzero().flatten())
        left = left.index_select(dim, kept[-1])
    # If marked neurons are left over now, they were not whole slices.
    return None if bool(left.any()) or left.numel() == 0 else kept


def sticking_out(gone: Tensor, shape: Sequence[int]) -> Tensor:
    """Entries that go although no whole slice through them does, in the full shape."""
    marks = gone.expand(tuple(shape)).clone()
    for dim in range(marks.ndim):
        moved = marks.movedim(dim, 0)
        if gone.shape[dim] > 1:
            whole = gone.expand(tuple(shape)).movedim(dim, 0).flatten(1).all(1)
            moved[whole] = False
    return marks


def narrow_tensor(tensor: Tensor, kept: Sequence[Tensor]) -> Tensor:
    """Only these indices along each dimension."""
    for dim, index in enumerate(kept):
        if len(index) < tensor.shape[dim]:
            tensor = tensor.index_select(dim, index)
    return tensor


def still_fits(
    node: Structural,
    shapes: Sequence[Sequence[int]],
    gone: Sequence[Tensor],
    out: Tensor,
) -> bool:
    """Whether the function, on what stays of its inputs, gives what should stay of its output."""
    tried = _tried(node, shapes, gone, out)
    if tried is None:
        return False
    few, expected = tried
    try:
        found = node.function(*few)
    # The code asks for a size that no longer exists.
    except (RuntimeError, IndexError, ValueError):
        return False
    return found.shape == expected.shape and torch.equal(found, expected)


# Rearrangements that name sizes or places by number; a flip or a roll names none.
_SIZED = ("view", "shape", "flatten", "split", "getitem", "expand", "slice", "narrow")


def could_follow(
    node: Structural,
    shapes: Sequence[Sequence[int]],
    gone: Sequence[Tensor],
    out: Tensor,
) -> bool:
    """Whether the function could give what should stay if it asked for other sizes.

    `x.view(b, s, self.heads, -1)` does once `heads` is set. A reshape has to keep the order of what
    stays; other rearrangements only have to find it among their inputs.
    """
    tried = _tried(node, shapes, gone, out)
    if tried is None or not any(word in node.place.operation for word in _SIZED):
        return False
    few, expected = tried
    if len(few) == 1 and few[0].numel() == expected.numel():
        order = few[0].flatten()
        if "view" in node.place.operation or "shape" in node.place.operation:
            return torch.equal(order, expected.flatten())
    there = torch.cat([*(places.flatten() for places in few), torch.zeros(1)])
    return bool(torch.isin(expected, there).all())


def _tried(
    node: Structural,
    shapes: Sequence[Sequence[int]],
    gone: Sequence[Tensor],
    out: Tensor,
) -> tuple[list[Tensor], Tensor] | None:
    """Positions that stay of the inputs, and those that should stay of the result; None where what
    goes is not a set of whole slices."""
    boxes = [kept_box(g, shape) for g, shape in zip(gone, shapes, strict=True)]
    after = kept_box(out, node.shape)
    if after is None or any(box is None for box in boxes):
        return None
    # Every neuron has a number of its own, from 1: a 0 in the result is padding.
    places, offset = [], 1.0
    for shape in shapes:
        count = torch.Size(shape).numel()
        places.append(torch.arange(count, dtype=torch.float64).reshape(*shape) + offset)
        offset += count
    few = [narrow_tensor(p, box) for p, box in zip(places, boxes, strict=True) if box is not None]
    return few, narrow_tensor(node.function(*places), after)


# Weights that the model computes, and every tensor without the slices that go.


def stuck_in_computed_weights(found: Labelled, gone: Tensor, state: State) -> dict[str, Tensor]:
    """Weights that the model computes: on the narrowed tensors the computation must give the
    narrowed weight."""
    blocked: dict[str, Tensor] = {}
    small: dict[str, Tensor] | None = None
    for node in affines(found.graph):
        for source in (node.weight, node.bias):
            if source is None or source.direct is not None:
                continue
            labels = [found.dims[key] for key in found.dims if key[0] in source.names]
            roots = (
                torch.cat([found.groups.roots(v) for v in labels])
                if labels
                else torch.zeros(0).long()
            )
            roots = distinct(roots[gone[roots]])
            if not len(roots):
                continue
            # Only once: narrowing goes through every tensor of the model.
            small = small or narrowed_state(found, gone, state)
            try:
                computed = source(small)
            # Its code may count on the sizes of today: a view, an index.
            except (RuntimeError, IndexError, ValueError, TypeError):
                computed = None
            if computed is None or not _same_weight(found, gone, node, source(state), computed):
                blocked[f"{describe_node(node)} computes its weight from all channels"] = roots
    return blocked


def _same_weight(found: Labelled, gone: Tensor, node: Affine, whole: Tensor, small: Tensor) -> bool:
    """Whether the small weight is the whole one without slices: every kept slice is found again, in
    order."""
    if whole.ndim != small.ndim:
        return False
    expected = whole
    for dim, kept in _slices(found, gone, node, whole).items():
        expected = expected.index_select(dim, kept)
    # Computed twice in float64: only the order of its sums may differ.
    return expected.shape == small.shape and torch.allclose(expected, small, rtol=1e-12, atol=0)


def _slices(found: Labelled, gone: Tensor, node: Affine, whole: Tensor) -> dict[int, Tensor]:
    use = next((use for use in found.uses if use.node is node), None)
    if use is not None and whole.ndim > 1:
        kept = {use.axes.weight_out: kept_places(found, gone, use.out)}
        if use.axes.groups == 1:
            kept[use.axes.weight_in] = kept_places(found, gone, use.into)
        # A transposed convolution: dimension 0, its inputs, spans all groups.
        elif use.axes.weight_in < use.axes.weight_out:
            kept = {use.axes.weight_in: kept_places(found, gone, use.into)}
        return kept
    box = kept_box(gone[found.roots(node.name)], node.shape)
    if box is None:
        return {}
    shape = node.operation.bias_shape
    first = (
        shape.index(-1) if shape is not None and whole.ndim == 1 else len(node.shape) - whole.ndim
    )
    return {i: box[first + i] for i in range(whole.ndim) if whole.shape[i] == node.shape[first + i]}


def kept_places(found: Labelled, gone: Tensor, labels: Tensor) -> Tensor:
    return (~gone[found.groups.roots(labels)]).nonzero().flatten()


def narrowed_state(found: Labelled, gone: Tensor, state: State) -> dict[str, Tensor]:
    """Every named tensor without the slices whose labels go."""
    small = dict(state)
    for (name, dim), labels in found.dims.items():
        kept = kept_places(found, gone, labels)
        if name in small and len(kept) < len(labels):
            small[name] = small[name].index_select(dim, kept)
    return small


# Why dead channels stay, apart from their constants.

PACKED = "MultiheadAttention"
"""Its code divides embed_dim by num_heads, and torch's fused kernels trust both: heads go only
together with channels of the stream, which changes the norms."""


def stuck_in_rearrangements(
    found: Labelled, gone: Tensor, options: RemovalOptions
) -> dict[str, Tensor]:
    """Labels stuck in reorderings whose code does not follow the new sizes."""
    blocked: dict[str, Tensor] = {}
    for node in found.graph.nodes:
        if not isinstance(node, Structural):
            continue
        before = [gone[found.roots(name)] for name in node.inputs]
        after = gone[found.roots(node.name)]
        if not any(bool(marks.any()) for marks in (*before, after)):
            continue
        shapes = [found.graph.by_name[name].shape for name in node.inputs]
        failed = options.failed | {PACKED} if options.hopeful else None
        if not options.rearranged or not follows(node, shapes, before, after, failed):
            blocked[_counting(node)] = _labels_of(found, gone, node)
    return blocked


def follows(
    node: Structural,
    shapes: Sequence[Sequence[int]],
    before: Sequence[Tensor],
    after: Tensor,
    failed: frozenset[str] | None,
) -> bool:
    """Whether a reordering works on what stays, as it stands or (unless `failed` is None) with
    other sizes in a module of no class that failed."""
    if still_fits(node, shapes, before, after):
        return True
    if failed is None or node.place.kind in failed:
        return False
    return could_follow(node, shapes, before, after)


def _counting(node: Structural) -> str:
    if node.place.kind == PACKED:
        return (
            f"{own_name(node.place.module)} is torch's {PACKED}, whose heads share out embed_dim: "
            "write the attention with linear layers to lose heads"
        )
    return f"{describe_node(node)} counts on every channel"


def _labels_of(found: Labelled, gone: Tensor, node: Node) -> Tensor:
    """What goes of a reordering: first what it does not read, such as a padding's zeros, without
    which it may still follow."""
    read = torch.cat([found.roots(name).flatten() for name in node.inputs])
    made = found.roots(node.name).flatten()
    made = made[gone[made] & ~torch.isin(made, read)]
    return distinct(made if len(made) else read[gone[read]])


def last_of_layers(found: Labelled, gone: Tensor) -> dict[str, Tensor]:
    """A layer without channels does not run: where all would go, one stays."""
    for labels in found.values.values():
        roots = found.groups.roots(labels)
        if bool(gone[roots].all()):
            return {"is the last channel of a layer": roots.flatten()[:1]}
    return {}


def uneven_slices(found: Labelled, gone: Tensor) -> dict[str, Tensor]:
    """What goes has to be whole slices of every value; only what sticks out is given back.

    Behind `view(b, groups, c // groups, h, w)` a channel goes where its like goes in every group.
    """
    for name, labels in found.values.items():
        roots = found.groups.roots(labels)
        marks = gone[roots]
        if not bool(marks.any()):
            continue
        shape = found.graph.by_name[name].shape
        if kept_box(marks, shape) is None:
            back = roots.expand(shape)[sticking_out(marks, shape)]
            why = distinct(back) if len(back) else distinct(roots[marks])
            return {"cannot be cut out in one piece": why}
    return {}


def surplus_to_multiple(found: Labelled, gone: Tensor, multiple: int) -> dict[str, Tensor]:
    """Give channels back until every layer writes the multiple asked for, or all it had."""
    if multiple <= 1:
        return {}
    for use in found.uses:
        roots = found.groups.roots(use.out)
        kept = int((~gone[roots]).sum())
        missing = min(-kept % multiple, roots.numel() - kept)
        if missing:
            return {f"fills up to a multiple of {multiple}": distinct(roots[gone[roots]])[:missing]}
    return {}
