"""Weights that the model computes, and every tensor without the slices that go."""

import torch
from torch import Tensor

from secateurs.graph import Affine, State, affines
from secateurs.ship.compaction.labels import Labelled, told
from secateurs.ship.compaction.marks import distinct
from secateurs.ship.compaction.positions import kept_box


def gone_in(found: Labelled, gone: Tensor, name: str) -> Tensor:
    """Where a value loses neurons."""
    return gone[found.roots(name)]


def computed(found: Labelled, gone: Tensor, state: State) -> dict[str, Tensor]:
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
                blocked[f"{told(node)} computes its weight from all channels"] = roots
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
        kept = {use.weight_out: kept_places(found, gone, use.out)}
        if use.groups == 1:
            kept[use.weight_in] = kept_places(found, gone, use.into)
        # A transposed convolution: dimension 0, its inputs, spans all groups.
        elif use.weight_in < use.weight_out:
            kept = {use.weight_in: kept_places(found, gone, use.into)}
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
