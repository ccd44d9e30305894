"""Which channels of a network can go whole, and everything that has to go with each of them.

A filter that is set to zero leaves its bias, its batch norm and the columns that read it behind; a
channel of a residual stream is written by many layers. Here a channel is a label of the graph: all
rows, columns, biases, scales and shifts that carry it, so that what is masked together can also be
cut out together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from secateurs.channels.labels import AllOutputs, labelled, own_name
from secateurs.channels.macs import LayerMacs, Macs, macs, refusing
from secateurs.channels.positions import even_, layers_of, removable
from secateurs.graph import Affine, Example, capture
from secateurs.graph.replay import COMPARED
from secateurs.parameters import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a network that can go whole.

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
    """Every channel that can go whole, with everything that goes with it; the model is left as it
    is.

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
    found = labelled(graph, regrouped=lambda node: regrouped(seen, node))
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
    work = macs(seen, graph)
    return Channels(
        labels=labels,
        layers=layers_of(found, position),
        rows={key: index for key, index in rows.items() if bool((index >= 0).any())},
        shapes={own_name(name): tuple(shape) for name, shape in graph.parameters.items()},
        work=Macs(layers=tuple(_renamed(work))),
    )


def regrouped(model: nn.Module, node: Affine) -> bool:
    """Whether a layer is one of PyTorch's, whose number of groups is an attribute that can be
    set."""
    owner = model.get_submodule(node.place.module)
    axes = node.operation.axes
    if axes is None or not isinstance(owner, nn.modules.conv._ConvNd):
        return False
    # A subclass may compute its groups as it runs: then
    # setting the attribute changes nothing.
    return owner.groups == axes.groups


def _renamed(work: Macs) -> list[LayerMacs]:
    return [replace(layer, name=own_name(layer.name)) for layer in work.layers]
