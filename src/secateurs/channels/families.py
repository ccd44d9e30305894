"""Which labels of a network can be removed whole, and which of them go together."""

import torch
from torch import Tensor

from secateurs.channels.labels import PINNED, Labelled, distinct
from secateurs.channels.removal import follows
from secateurs.graph import Structural
from secateurs.paths.reach import compress_marks


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
    """The labels of a reordering that does not work without one of them, or without the first half
    of those of each input; of a padding that does, those of its zeros."""
    own = [distinct(found.roots(name).flatten()) for name in (*node.inputs, node.name)]
    own = [labels[free[labels]] for labels in own]
    read = distinct(torch.cat(own[:-1]))
    # Of each input, so that none of those that a `cat` joins is lost whole.
    halves = torch.cat([labels[: len(labels) // 2] for labels in own[:-1]])

    def fails(some: Tensor) -> bool:
        gone = torch.zeros_like(free)
        gone[some] = True
        return len(some) > 0 and not _follows_without(found, node, gone, failed)

    if fails(read[:1]) or fails(halves):
        return distinct(torch.cat(own))
    # How many zeros there are stands in the code, whatever the padded channels are.
    zeros = own[-1][~torch.isin(own[-1], read)]
    return zeros if fails(zeros[:1]) else zeros[:0]


def _follows_without(
    found: Labelled, node: Structural, gone: Tensor, failed: frozenset[str] | None
) -> bool:
    shapes = [found.graph.by_name[name].shape for name in node.inputs]
    before = [gone[found.roots(name)] for name in node.inputs]
    return follows(node, shapes, before, gone[found.roots(node.name)], failed)


def layers_of(found: Labelled, position: Tensor) -> tuple[Tensor, ...]:
    """The removable channels of every layer, where all that it writes can go; elsewhere enough
    stays anyway."""
    members = [distinct(position[found.groups.roots(use.out)]) for use in found.uses]
    return tuple(index for index in members if len(index) and bool((index >= 0).all()))


def families_of(found: Labelled, position: Tensor) -> tuple[Tensor, ...]:
    """The removable channels, parted by the layers that write them: a residual stream is one
    family."""
    family = torch.zeros(int(position.max()) + 1, dtype=torch.long)
    for use in found.uses:
        mine = position[found.groups.roots(use.out)]
        written = torch.zeros_like(family)
        written[mine[mine >= 0]] = 1
        # Every layer parts each family into what it writes and what it does not.
        family = torch.unique(2 * family + written, return_inverse=True)[1]
    return tuple((family == each).nonzero().flatten() for each in distinct(family))


def even_(found: Labelled) -> None:
    """Tie the channels that a reshape lays out in two dimensions, so that they go in whole slices,
    and those at the same place of equal pieces.

    A shuffle sees `(groups, channels of a group)`: a channel goes with its like in every group.
    """
    for name in found.values:
        # Ties made here are seen by the values that follow.
        labels = compress_marks(found.roots(name))
        varying = [d for d in range(labels.ndim) if labels.shape[d] > 1]
        if len(varying) > 1:
            longest = max(varying, key=lambda d: labels.shape[d])
            found.groups.shared(labels.movedim(longest, 0).flatten(1))
    for node in found.graph.nodes:
        if isinstance(node, Structural) and len(node.inputs) == 1:
            _pair_pieces_(found, node)


def _pair_pieces_(found: Labelled, node: Structural) -> None:
    """Tie the channels at the same place of all pieces of a `chunk`, which shares out what it is
    given: its pieces stay as they were only where each of them loses a channel."""
    whole = found.graph.by_name[node.inputs[0]].shape
    cut = [dim for dim, size in enumerate(node.shape) if whole[dim : dim + 1] != (size,)]
    labels = compress_marks(found.roots(node.inputs[0]))
    if len(whole) != len(node.shape) or len(cut) != 1 or labels.numel() != whole[cut[0]]:
        return
    if whole[cut[0]] % node.shape[cut[0]] or bool((labels <= PINNED).any()):
        return
    pieces = labels.reshape(-1, node.shape[cut[0]])
    fits = []
    for some in (pieces[:1, 0], pieces[:, 0]):
        gone = torch.zeros(len(found.groups), dtype=torch.bool)
        gone[some] = True
        fits.append(_follows_without(found, node, gone, None))
    if fits == [False, True]:
        found.groups.shared(pieces.T)
