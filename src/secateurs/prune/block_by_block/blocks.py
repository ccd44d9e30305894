"""The blocks of a model: the modules of its largest list, one after another."""

from collections.abc import Iterator, Sequence

from torch import nn

from secateurs.errors import ArgumentError
from secateurs.registry import unknown

Blocks = dict[str, nn.Module]
"""The blocks by name, in the order in which they run."""


def blocks_of(model: nn.Module, blocks: str | Sequence[str] | None) -> Blocks:
    """The children of the list that is named, the modules that are named, or, without names, the
    children of the list that holds most of the model.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]))
    >>> list(blocks_of(model, None))
    ['1.0', '1.1']
    """
    known = dict(model.named_modules())
    if blocks is None:
        return _largest(model)
    if isinstance(blocks, str):
        if blocks not in known:
            raise ArgumentError(unknown("module", blocks, known))
        found = {f"{blocks}.{n}": m for n, m in known[blocks].named_children()}
        if not found:
            raise ArgumentError(
                f"blocks={blocks!r} names a {type(known[blocks]).__name__} without children: name"
                " the list that holds the blocks, or the blocks one by one."
            )
        return found
    lost = [name for name in blocks if name not in known]
    if lost or not blocks:
        raise ArgumentError(
            unknown("module", lost[0], known) if lost else "blocks=[] names no block."
        )
    return {name: known[name] for name in blocks}


def _largest(model: nn.Module) -> Blocks:
    lists = list(_lists(model))
    if not lists:
        raise ArgumentError(
            f"{type(model).__name__} has no list of blocks of one kind: name them with blocks=,"
            " such as blocks='transformer.h'."
        )
    # Lists inside blocks (experts, heads) hold less than the list of the blocks.
    name, modules = max(lists, key=lambda pair: _size(pair[1]))
    return {f"{name}.{number}": block for number, block in enumerate(modules)}


def _lists(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    for name, module in model.named_modules():
        # Blocks of one kind: a list of a stem, a body and a head is no list of blocks.
        kinds = {type(block) for block in module.children()}
        if isinstance(module, nn.ModuleList) and name and len(kinds) == 1:
            yield name, module


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
