"""Which channels of a network can be removed whole, and everything that has to go with each.

A filter that is set to zero leaves its bias, its batch norm and the columns that read it behind; a
channel of a residual stream is written by many layers. Here a channel is a label of the graph: all
rows, columns, biases, scales and shifts that carry it, so that what is masked together can also be
cut out together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.channels.labels import AllOutputs, Labelled, distinct, label_channels, own_name
from secateurs.channels.macs import Macs, macs
from secateurs.channels.removal import even_, find_resized, layers_of, narrowed_state, removable
from secateurs.channels.verify import difference, failing_module, shrink_
from secateurs.errors import ScoreError
from secateurs.graph import Example, capture
from secateurs.graph.replay import COMPARED
from secateurs.parameters import Params
from secateurs.stateless import private_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a network that can be removed whole.

    Attributes:
        labels: One number per channel.
        layers: For each layer, the positions in `labels` of the channels it writes.
        rows: For each dimension of each parameter, the position of every index in `labels`, −1
            where it has to stay.
        work: Multiplications of the whole network.
    """

    labels: Tensor
    layers: tuple[Tensor, ...]
    rows: Mapping[tuple[str, int], Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    work: Macs

    def masks(self, kept: Tensor) -> dict[str, Tensor]:
        """Masks of every parameter that loses an entry; `kept` holds a truth value per channel."""
        found: dict[str, Tensor] = {}
        for (name, dim), index in self.rows.items():
            stays = _stays(kept, index)
            if not bool(stays.all()):
                mask = found.setdefault(name, torch.ones(self.shapes[name], dtype=torch.bool))
                # movedim gives a view: this writes into the mask, and another dimension
                # cuts further entries.
                mask.movedim(dim, 0)[~stays] = False
        return found

    def shares(self, kept: Tensor) -> dict[str, float]:
        """The density of every parameter."""
        found = dict.fromkeys(self.shapes, 1.0)
        for (name, _), index in self.rows.items():
            # Rows and columns go independently of each
            # other, so their densities multiply.
            found[name] *= float(_stays(kept, index).double().mean())
        return found

    def macs(self, kept: Tensor) -> int:
        """Multiplications of the network without the other channels."""
        shares = self.shares(kept)
        return round(sum(layer.dense * shares.get(layer.name, 1.0) for layer in self.work.layers))

    def score(self, scores: Params) -> Tensor:
        """The mean score of the entries that go with each channel, in float64."""
        total = torch.zeros(len(self.labels), dtype=torch.float64)
        count = torch.zeros_like(total)
        for (name, dim), index in self.rows.items():
            if name in scores:
                rows = scores[name].detach().double().cpu().movedim(dim, 0).flatten(1)
                inside = index >= 0
                total.index_add_(0, index[inside], rows.sum(1)[inside])
                count.index_add_(
                    0,
                    index[inside],
                    torch.full_like(rows.sum(1), rows.shape[1])[inside],
                )
        # A channel without a single scored entry was not
        # meant to be judged: inf keeps it.
        return torch.where(count > 0, total / count.clamp_min(1), torch.inf)


def _stays(kept: Tensor, index: Tensor) -> Tensor:
    # −1 would read the last channel's entry; the left side has then decided already.
    return (index < 0) | kept[index.clamp_min(0)]


@torch.no_grad()
def channels(model: nn.Module, example: Example) -> Channels:
    """Every channel that can be removed whole, with everything that goes with it; the model stays
    as it is.

    Channels tied to an input or an output stay, and those that a reordering in the model's code
    counts on (a `view(b, 9216)`). Heads of an attention and feed-forward neurons count as channels.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    >>> found = channels(model, torch.zeros(1, 3))
    >>> len(found.labels), sorted({name for name, _ in found.rows})
    (4, ['0.bias', '0.weight', '1.bias', '1.weight', '3.weight'])
    """
    # All outputs at once: a channel that only the second output reads is in use.
    seen = AllOutputs(model)
    COMPARED.share(seen, model)
    graph = capture(seen, example, opaque=True)
    found = label_channels(graph, seen)
    even_(found)
    labels = removable(found)
    # A reshape by an attribute or a shape may follow: a narrowed copy shows whether it does.
    if len(removable(found, frozenset())) > len(labels):
        labels = removable(found, refusing(seen, found, example))
    position = torch.full((len(found.groups),), -1)
    position[labels] = torch.arange(len(labels))
    rows = {
        (own_name(name), dim): position[found.groups.roots(vector)]
        for (name, dim), vector in found.dims.items()
        # Running means follow their channel as well, but buffers take no mask.
        if name in graph.parameters
    }
    return Channels(
        labels=labels,
        layers=layers_of(found, position),
        rows={key: index for key, index in rows.items() if bool((index >= 0).any())},
        shapes={own_name(name): tuple(shape) for name, shape in graph.parameters.items()},
        work=macs(seen, graph).named(own_name),
    )


# Finds the classes of modules that cannot run with fewer channels, by trying a copy that has lost
# some.

# Sums of other lengths in the model's own precision differ by far less, other channels by far more.
_ROUNDING = 1e-2


def refusing(model: AllOutputs, found: Labelled, example: Example) -> frozenset[str] | None:
    """Classes whose code fails on a copy without half of its channels; None where more does."""
    failed: frozenset[str] = frozenset()
    contested: frozenset[str] = frozenset()
    while True:
        gone = _half(found, removable(found, failed))
        small = _narrow(model, found, gone, contested)
        failing = failing_module(small.inner, example)
        if failing is None:
            # A reshape can go through and put channels in other places.
            same = difference(_mask_model(model, found, gone).inner, small.inner, example)
            return failed if same <= _ROUNDING else None
        kind = type(small.inner.get_submodule(failing)).__name__
        if kind in failed:
            # It failed because of what another module passes to it: no class is assumed to follow.
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


def _mask_model(model: AllOutputs, found: Labelled, gone: Tensor) -> AllOutputs:
    """The model with zeros in the place of what goes."""
    copy = AllOutputs(private_copy(model.inner, error=ScoreError))
    own = dict(copy.named_parameters(remove_duplicate=False))
    for (name, dim), labels in found.dims.items():
        if name in own:
            own[name].movedim(dim, 0)[gone[found.groups.roots(labels)]] = 0
    return copy


def _narrow(
    model: AllOutputs, found: Labelled, gone: Tensor, contested: frozenset[str]
) -> AllOutputs:
    # Only shapes matter here: whatever the weights are, they lose half of their channels.
    state = found.graph.state(model, dtype=None)
    small = narrowed_state(found, gone, state)
    changed = {n: t for n, t in small.items() if t.shape != state[n].shape}
    copy = AllOutputs(private_copy(model.inner, error=ScoreError))
    shrink_(copy, found, changed, find_resized(copy, found, gone, contested))
    return copy
