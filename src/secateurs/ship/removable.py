"""Which labels of a network can go whole."""

import torch
from torch import Tensor

from secateurs.graph import Structural
from secateurs.ship.compaction.labels import Labelled
from secateurs.ship.compaction.labels.groups import PINNED
from secateurs.ship.compaction.marks import distinct, reduced
from secateurs.ship.compaction.reasons import follows


def removable(found: Labelled, failed: frozenset[str] | None = None) -> Tensor:
    """Labels that some layer writes, less the pinned ones and those a reordering cannot lose.

    failed: classes of modules whose code does not follow when sizes change; that of all others is
    taken to follow. None: a reordering has to work as it stands in the program.
    """
    if not found.uses:
        return torch.zeros(0, dtype=torch.long)
    free = torch.zeros(len(found.groups), dtype=torch.bool)
    for use in found.uses:
        free[found.groups.roots(use.out)] = True
    free[PINNED] = False
    for node in found.graph.nodes:
        if isinstance(node, Structural):
            free[_stuck(found, node, free, failed)] = False
    return free.nonzero().flatten()


def _stuck(
    found: Labelled, node: Structural, free: Tensor, failed: frozenset[str] | None
) -> Tensor:
    """The labels of a reordering that does not work without one of them, or without the first
    half."""
    mine = distinct(
        torch.cat([found.roots(name).flatten() for name in (*node.inputs, node.name)])
    )
    mine = mine[free[mine]]
    shapes = [found.graph.by_name[name].shape for name in node.inputs]
    for some in (mine[:1], mine[: len(mine) // 2]):
        gone = torch.zeros_like(free)
        gone[some] = True
        before = [gone[found.roots(name)] for name in node.inputs]
        if len(some) and not follows(
            node, shapes, before, gone[found.roots(node.name)], failed
        ):
            return mine
    return mine[:0]


def layers_of(found: Labelled, position: Tensor) -> tuple[Tensor, ...]:
    """The removable channels of every layer, where all that it writes can go; elsewhere enough
    stays anyway."""
    members = [distinct(position[found.groups.roots(use.out)]) for use in found.uses]
    return tuple(
        index for index in members if len(index) and bool((index >= 0).all())
    )


def even_(found: Labelled) -> None:
    """Tie the channels that a reshape lays out in two dimensions, so that they go in whole slices.

    A shuffle sees `(groups, channels of a group)`: a channel goes with its like in every group.
    """
    for name in found.values:
        # Ties made here are seen by the values that follow.
        labels = reduced(found.roots(name))
        varying = [d for d in range(labels.ndim) if labels.shape[d] > 1]
        if len(varying) > 1:
            longest = max(varying, key=lambda d: labels.shape[d])
            found.groups.shared(labels.movedim(longest, 0).flatten(1))
