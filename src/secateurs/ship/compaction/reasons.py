"""What holds dead channels back besides their constants."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Node, Structural
from secateurs.ship.compaction.computed import gone_in
from secateurs.ship.compaction.labels import Labelled, told
from secateurs.ship.compaction.marks import distinct
from secateurs.ship.compaction.outputs import own_name
from secateurs.ship.compaction.positions import (
    could_follow,
    kept_box,
    sticking_out,
    still_fits,
)

# Its code divides embed_dim by num_heads, and torch's fused kernels trust both.
_PACKED = "MultiheadAttention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds channels back besides the network itself.

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


def rearranged(found: Labelled, gone: Tensor, options: Options) -> dict[str, Tensor]:
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
        failed = options.failed if options.hopeful else None
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
    if failed is None or node.place.kind in failed or node.place.kind == _PACKED:
        return False
    return could_follow(node, shapes, before, after)


def _counting(node: Structural) -> str:
    if node.place.kind == _PACKED:
        return (
            f"{own_name(node.place.module)} is torch's {_PACKED}, whose heads share out embed_dim: "
            "write the attention with linear layers to lose heads"
        )
    return f"{told(node)} counts on every channel"


def _labels_of(found: Labelled, gone: Tensor, node: Node) -> Tensor:
    labels = torch.cat(
        [found.roots(name).flatten() for name in (*node.inputs, node.name)]
    )
    return distinct(labels[gone[labels]])


def emptied(found: Labelled, gone: Tensor) -> dict[str, Tensor]:
    """A layer of no channels does not run: where all would go, one stays."""
    for labels in found.values.values():
        roots = found.groups.roots(labels)
        if bool(gone[roots].all()):
            return {"is the last channel of a layer": roots.flatten()[:1]}
    return {}


def uneven(found: Labelled, gone: Tensor) -> dict[str, Tensor]:
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


def rounded(found: Labelled, gone: Tensor, multiple: int) -> dict[str, Tensor]:
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
