"""What holds dead channels back besides their constants."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Node, Structural
from secateurs.ship.compaction.computed import gone_in, place_of
from secateurs.ship.compaction.labels import Labelled
from secateurs.ship.compaction.marks import distinct
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
        if not options.rearranged or not still_fits(node, shapes, before, after):
            blocked[f"{place_of(node)} counts on every channel"] = _labels_of(
                found, gone, node
            )
    return blocked


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
