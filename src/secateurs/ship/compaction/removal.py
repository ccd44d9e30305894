"""Which labels go: the dead ones, less those that something holds back, until nothing more is held
back."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from secateurs.graph import Affine, Node, State, Structural, affines
from secateurs.ship.compaction.folding import Folds, folds
from secateurs.ship.compaction.groups import PINNED
from secateurs.ship.compaction.known import Reach
from secateurs.ship.compaction.labels import Labelled
from secateurs.ship.compaction.marks import distinct, together
from secateurs.ship.compaction.outputs import own_name
from secateurs.ship.compaction.positions import kept_box, still_fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds channels back besides the network itself.

    Attributes:
        multiple_of: Kept channels of a layer are rounded up to a multiple.
        rearranged: Whether channels that pass through a reordering written in the model's code may
            go at all.
    """

    multiple_of: int = 1
    rearranged: bool = True


@dataclass(slots=True, kw_only=True)
class Removal:
    """The labels that go (a truth value per label), where their constants go, and why other dead
    labels stay."""

    gone: Tensor
    dead: Tensor
    folds: Folds
    kept: dict[str, Tensor] = field(default_factory=dict)


def removal(
    model: nn.Module, found: Labelled, known: Reach, state: State, options: Options
) -> Removal:
    """Start from every dead label and give back what must stay; cheap reasons first, rounding
    last."""
    dead = _dead(found, known)
    gone = dead.clone()
    kept: dict[str, Tensor] = {}
    # Labels given back can block others. It ends, because every round gives at least
    # one back.
    while True:
        folding = folds(model, found, known, gone)
        # `or`: one reason a round, since labels given back for it change what the later
        # ones see.
        blocked = (
            _emptied(found, gone)
            or _rearranged(found, gone, options)
            or _uneven(found, gone)
            or _computed(found, gone, state)
            or folding.kept
            or _rounded(found, gone, options.multiple_of)
        )
        if not blocked:
            return Removal(gone=gone, dead=dead, folds=folding, kept=kept)
        for why, labels in blocked.items():
            kept[why] = torch.unique(torch.cat([kept.get(why, labels[:0]), labels]))
            gone[labels] = False


def _dead(found: Labelled, known: Reach) -> Tensor:
    """Labels of which no neuron is both reached by an input and used by an output."""
    live = torch.zeros(len(found.groups), dtype=torch.bool)
    seen = torch.zeros_like(live)
    for node in found.graph.nodes:
        labels = found.roots(node.name)
        seen[labels.flatten()] = True
        both = known.arrive[node.name] & known.used[node.name]
        labels, both = together(labels, both)
        live[labels[both]] = True
    live[PINNED] = True
    # Labels united into another are seen on no value any more: they are no channels.
    return seen & ~live


def gone_in(found: Labelled, gone: Tensor, name: str) -> Tensor:
    """Where a value loses neurons."""
    return gone[found.roots(name)]


def _rearranged(found: Labelled, gone: Tensor, options: Options) -> dict[str, Tensor]:
    """Reorderings whose code does not follow."""
    blocked: dict[str, Tensor] = {}
    for node in found.graph.nodes:
        if not isinstance(node, Structural):
            continue
        before = [gone_in(found, gone, name) for name in node.inputs]
        after = gone_in(found, gone, node.name)
        if not any(bool(marks.any()) for marks in (*before, after)):
            continue
        shapes = [found.graph.by_name[name].shape for name in node.inputs]
        if not options.rearranged or not still_fits(node, shapes, before, after):
            blocked[f"{_place(node)} counts on every channel"] = _labels_of(
                found, gone, node
            )
    return blocked


def _labels_of(found: Labelled, gone: Tensor, node: Node) -> Tensor:
    labels = torch.cat(
        [found.roots(name).flatten() for name in (*node.inputs, node.name)]
    )
    return distinct(labels[gone[labels]])


def _computed(found: Labelled, gone: Tensor, state: State) -> dict[str, Tensor]:
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
            if not _same_weight(found, gone, node, source(state), source(small)):
                blocked[f"{_place(node)} computes its weight from all channels"] = (
                    roots
                )
    return blocked


def _same_weight(
    found: Labelled, gone: Tensor, node: Affine, whole: Tensor, small: Tensor
) -> bool:
    """Whether the small weight is the whole one without slices: every kept slice is found again, in
    order."""
    if whole.ndim != small.ndim:
        return False
    expected = whole
    for dim, kept in _slices(found, gone, node, whole).items():
        expected = expected.index_select(dim, kept)
    # Computed twice in float64: only the order of its sums may differ.
    return expected.shape == small.shape and torch.allclose(
        expected, small, rtol=1e-12, atol=0
    )


def _slices(
    found: Labelled, gone: Tensor, node: Affine, whole: Tensor
) -> dict[int, Tensor]:
    use = next((use for use in found.uses if use.node is node), None)
    if use is not None and whole.ndim > 1:
        kept = {use.weight_out: _kept(found, gone, use.out)}
        if use.groups == 1:
            kept[use.weight_in] = _kept(found, gone, use.into)
        # A transposed convolution: dimension 0, its inputs, spans all groups.
        elif use.weight_in < use.weight_out:
            kept = {use.weight_in: _kept(found, gone, use.into)}
        return kept
    box = kept_box(gone_in(found, gone, node.name), node.shape)
    if box is None:
        return {}
    shape = node.operation.bias_shape
    first = (
        shape.index(-1)
        if shape is not None and whole.ndim == 1
        else len(node.shape) - whole.ndim
    )
    return {
        i: box[first + i]
        for i in range(whole.ndim)
        if whole.shape[i] == node.shape[first + i]
    }


def _kept(found: Labelled, gone: Tensor, labels: Tensor) -> Tensor:
    return (~gone[found.groups.roots(labels)]).nonzero().flatten()


def narrowed_state(found: Labelled, gone: Tensor, state: State) -> dict[str, Tensor]:
    """Every named tensor without the slices whose labels go."""
    small = dict(state)
    for (name, dim), labels in found.dims.items():
        kept = _kept(found, gone, labels)
        if name in small and len(kept) < len(labels):
            small[name] = small[name].index_select(dim, kept)
    return small


def _emptied(found: Labelled, gone: Tensor) -> dict[str, Tensor]:
    """A layer of no channels does not run: where all would go, one stays."""
    for labels in found.values.values():
        roots = found.groups.roots(labels)
        if bool(gone[roots].all()):
            return {"is the last channel of a layer": roots.flatten()[:1]}
    return {}


def _uneven(found: Labelled, gone: Tensor) -> dict[str, Tensor]:
    """What goes has to be whole slices of every value."""
    for name, labels in found.values.items():
        marks = gone[found.groups.roots(labels)]
        if (
            bool(marks.any())
            and kept_box(marks, found.graph.by_name[name].shape) is None
        ):
            roots = found.groups.roots(labels)
            return {"cannot be cut out in one piece": distinct(roots[marks])}
    return {}


def _rounded(found: Labelled, gone: Tensor, multiple: int) -> dict[str, Tensor]:
    """Give channels back until every layer writes a multiple of what is asked, or all it had."""
    if multiple <= 1:
        return {}
    for labels in _written(found):
        roots = found.groups.roots(labels)
        kept = int((~gone[roots]).sum())
        missing = min(-kept % multiple, roots.numel() - kept)
        if missing:
            return {
                f"fills up to a multiple of {multiple}": distinct(roots[gone[roots]])[
                    :missing
                ]
            }
    return {}


def _written(found: Labelled) -> Iterator[Tensor]:
    for use in found.uses:
        yield use.out


def _place(node: Node) -> str:
    return f"{node.place.operation} in {own_name(node.place.module) or 'the model itself'}"
