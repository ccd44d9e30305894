"""Which labels go: the dead ones, less those that something holds back, until nothing more is held
back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from secateurs.channels.folding import Folds, folds
from secateurs.channels.labels import PINNED, Labelled, together
from secateurs.channels.positions import (
    Options,
    computed,
    emptied,
    kept_box,
    rearranged,
    rounded,
    uneven,
)
from secateurs.channels.reach import Reach
from secateurs.graph import State, Structural

# Attributes of the user's own modules that hold a size which has changed.
#
# `num_heads`, `split_size`, `nf`: a module's code reshapes by numbers that it keeps as attributes.
# Where channels go, the numbers that stood for them are set anew. Whether the right ones were
# found is not trusted: the smaller model is run and compared, as always.


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """An attribute of a module that holds a size, before and after."""

    module: str
    attribute: str
    before: int
    after: int


def resized(
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
                # A name that says heads is not contested by another dimension of that size.
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


def set_(model: nn.Module, changes: Sequence[Resized]) -> None:
    """Set the attributes of a copy of the model."""
    for change in changes:
        setattr(model.get_submodule(change.module), change.attribute, change.after)


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
    """Whether an attribute's name says that it counts heads."""
    return attribute.rstrip("s").endswith("head")


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
    model: nn.Module, found: Labelled, known: Reach, state: State, options: Options
) -> Removal:
    """Start from every dead label and give back what must stay; cheap reasons first, rounding
    last."""
    dead = _dead(found, known)
    gone = dead.clone()
    kept: dict[str, Tensor] = {}
    # Labels given back can block others. It ends,
    # because every round gives at least one back.
    while True:
        folding = folds(model, found, known, gone)
        # `or`: one reason a round, since labels given back
        # for it change what the later ones see.
        blocked = (
            emptied(found, gone)
            or uneven(found, gone)
            or rearranged(found, gone, options)
            or computed(found, gone, state)
            or folding.kept
            or rounded(found, gone, options.multiple_of)
        )
        if not blocked:
            return Removal(
                gone=gone,
                dead=dead,
                pinned=pinned_and_dead(found, known),
                folds=folding,
                resized=resized(model, found, gone, options.contested),
                kept=kept,
            )
        for why, labels in blocked.items():
            kept[why] = torch.unique(torch.cat([kept.get(why, labels[:0]), labels]))
            gone[labels] = False


def pinned_and_dead(found: Labelled, known: Reach) -> dict[str, Tensor]:
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


def _dead(found: Labelled, known: Reach) -> Tensor:
    """Labels of which no neuron is both reached by an input and used by an output."""
    dead = _lifeless(found, known, found.groups.roots)
    dead[PINNED] = False
    return dead


def _lifeless(found: Labelled, known: Reach, roots: Callable[[Tensor], Tensor]) -> Tensor:
    live = torch.zeros(len(found.groups), dtype=torch.bool)
    seen = torch.zeros_like(live)
    for node in found.graph.nodes:
        labels = roots(found.values[node.name])
        seen[labels.flatten()] = True
        both = known.arrive[node.name] & known.used[node.name]
        labels, both = together(labels, both)
        live[labels[both]] = True
    # Labels united into another are seen on no value any more: they are no channels.
    return seen & ~live
