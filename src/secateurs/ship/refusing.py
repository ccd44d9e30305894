"""Which classes of modules do not follow when channels go: seen on a copy that has lost some."""

import torch
from torch import Tensor

from secateurs.graph import Example
from secateurs.scores.copies import private
from secateurs.ship.compaction.computed import narrowed_state
from secateurs.ship.compaction.following import failing_module, resized, set_
from secateurs.ship.compaction.labels import Labelled
from secateurs.ship.compaction.marks import distinct
from secateurs.ship.compaction.narrow import narrow_, resize_
from secateurs.ship.compaction.outputs import AllOutputs
from secateurs.ship.compaction.verify import difference
from secateurs.ship.removable import removable

# Sums of other lengths in the model's own precision differ by far less, other channels by far more.
_ROUNDING = 1e-2


def refusing(
    model: AllOutputs, found: Labelled, example: Example
) -> frozenset[str] | None:
    """Classes whose code fails on a copy without half of its channels; None where more does."""
    failed: frozenset[str] = frozenset()
    contested: frozenset[str] = frozenset()
    while True:
        gone = _half(found, removable(found, failed))
        small = _narrowed(model, found, gone, contested)
        failing = failing_module(small.inner, example)
        if failing is None:
            # A reshape can go through and put channels in other places.
            same = difference(_masked(model, found, gone).inner, small.inner, example)
            return failed if same <= _ROUNDING else None
        kind = type(small.inner.get_submodule(failing)).__name__
        if kind in failed:
            # It failed for what another module hands it: nothing is taken to follow.
            return None
        if kind in contested:
            failed |= {kind}
        contested |= {kind}


def _half(found: Labelled, labels: Tensor) -> Tensor:
    """Marks of every second channel of each layer that may go; a layer keeps one at least."""
    free = torch.zeros(len(found.groups), dtype=torch.bool)
    free[labels] = True
    gone = torch.zeros_like(free)
    written = [distinct(found.groups.roots(use.out)) for use in found.uses]
    for mine in written:
        some = mine[free[mine]]
        gone[some[: len(some) // 2]] = True
    for mine in written:
        if bool(gone[mine].all()):
            gone[mine[:1]] = False
    return gone


def _masked(model: AllOutputs, found: Labelled, gone: Tensor) -> AllOutputs:
    """The model with zeros in the place of what goes."""
    copy = AllOutputs(private(model.inner))
    own = dict(copy.named_parameters(remove_duplicate=False))
    for (name, dim), labels in found.dims.items():
        if name in own:
            own[name].movedim(dim, 0)[gone[found.groups.roots(labels)]] = 0
    return copy


def _narrowed(
    model: AllOutputs, found: Labelled, gone: Tensor, contested: frozenset[str]
) -> AllOutputs:
    # Only shapes matter here: whatever the weights are, they lose half of their channels.
    state = found.graph.state(model, dtype=None)
    small = narrowed_state(found, gone, state)
    changed = {n: t for n, t in small.items() if t.shape != state[n].shape}
    copy = AllOutputs(private(model.inner))
    narrow_(copy, changed, set())
    resize_(copy, found)
    set_(copy, resized(copy, found, gone, contested))
    return copy
