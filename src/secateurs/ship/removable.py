"""Which labels of a network can go whole."""

import torch
from torch import Tensor

from secateurs.graph import Structural
from secateurs.ship.compaction.labels import Labelled
from secateurs.ship.compaction.labels.groups import PINNED
from secateurs.ship.compaction.marks import distinct
from secateurs.ship.compaction.positions import still_fits


def removable(found: Labelled) -> Tensor:
    """Labels that some layer writes, less the pinned ones and those a reordering cannot lose."""
    if not found.uses:
        return torch.zeros(0, dtype=torch.long)
    free = torch.zeros(len(found.groups), dtype=torch.bool)
    for use in found.uses:
        free[found.groups.roots(use.out)] = True
    free[PINNED] = False
    for node in found.graph.nodes:
        if isinstance(node, Structural):
            free[_stuck(found, node, free)] = False
    return free.nonzero().flatten()


def _stuck(found: Labelled, node: Structural, free: Tensor) -> Tensor:
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
        if len(some) and not still_fits(
            node, shapes, before, gone[found.roots(node.name)]
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
