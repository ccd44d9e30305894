"""Attributes of the user's own modules that hold a size which has changed.

`num_heads`, `split_size`, `nf`: a module's code reshapes by numbers that it keeps as attributes.
Where channels go, the numbers that stood for them are set anew. Whether the right ones were found
is not trusted: the smaller model is run and compared, as always.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from secateurs.graph import Structural
from secateurs.ship.compaction.labels import Labelled
from secateurs.ship.compaction.positions import kept_box


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


def _sizes(
    found: Labelled, gone: Tensor, node: Structural
) -> Iterator[tuple[int, int, bool]]:
    """Sizes before and after on both sides of a reordering, and whether they count heads rather
    than channels."""
    graph = found.graph
    shapes = {name: graph.by_name[name].shape for name in (*node.inputs, node.name)}
    boxes = {
        name: kept_box(gone[found.roots(name)], shape)
        for name, shape in shapes.items()
    }
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
