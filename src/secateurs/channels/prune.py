"""Which channels of a network can be removed whole, and everything that has to go with each.

A filter that is set to zero leaves its bias, its batch norm and the columns that read it behind; a
channel of a residual stream is written by many layers. Here a channel is a label of the graph: all
rows, columns, biases, scales and shifts that carry it, so that what is masked together can also be
cut out together.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.copies import private_copy
from secateurs.base.parameters import Params
from secateurs.base.parametrized import empty_norms, made_of
from secateurs.base.resized import resize_attribute_
from secateurs.channels.families import even_, families_of, layers_of, removable
from secateurs.channels.inexact import InexactFlow
from secateurs.channels.labels import (
    AllOutputs,
    LabelFlow,
    Labelled,
    LayerUse,
    distinct,
    label_channels,
    own_name,
)
from secateurs.channels.macs import Macs, macs
from secateurs.channels.removal import PACKED, Resized, find_resized, narrowed_state
from secateurs.channels.verify import (
    difference,
    failing_module,
    resize_,
    run,
    samples,
    shrink_,
)
from secateurs.errors import ScoreError, ShipError, first_line
from secateurs.graph import Example, capture
from secateurs.graph.ir import tensors_of
from secateurs.graph.replay import COMPARED
from secateurs.graph.untouched import keeping


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a network that can be removed whole.

    Attributes:
        labels: One number per channel.
        layers: For each layer, the positions in `labels` of the channels it writes.
        families: The positions parted by the layers that write them, each in one family.
        rows: For each dimension of each parameter, the position of every index in `labels`, −1
            where it has to stay.
        work: Multiplications of the whole network.
        packed: Streams whose attention counts its heads by the stream's width.
        directions: Dimensions of directions that weight_norm divides by their norms: a channel goes
            by the factor beside them, since a direction without entries would become NaN.
        labelled, contested: For `narrow_`: the labels of the network, and the classes of modules
            whose attributes follow.
    """

    labels: Tensor
    layers: tuple[Tensor, ...]
    families: tuple[Tensor, ...]
    rows: Mapping[tuple[str, int], Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    work: Macs
    packed: "tuple[Packed, ...]" = ()
    directions: frozenset[tuple[str, int]] = frozenset()
    labelled: Labelled = field(repr=False)
    contested: frozenset[str] = frozenset()

    def masks(self, kept: Tensor) -> dict[str, Tensor]:
        """Masks of every parameter that loses an entry; `kept` holds a truth value per channel."""
        found: dict[str, Tensor] = {}
        for (name, dim), index in self.rows.items():
            stays = _stays(kept, index)
            if (name, dim) in self.directions:
                continue
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
                rows = scores[name].detach().double().cpu().movedim(dim, 0)
                rows = rows.reshape(len(rows), -1)  # one entry a row, where it is a vector
                inside = index >= 0
                total.index_add_(0, index[inside], rows.sum(1)[inside])
                count.index_add_(
                    0,
                    index[inside],
                    torch.full_like(rows.sum(1), rows.shape[1])[inside],
                )
        # A channel without any scored entry is not to be judged: inf keeps it.
        return torch.where(count > 0, total / count.clamp_min(1), torch.inf)


def _stays(kept: Tensor, index: Tensor) -> Tensor:
    # −1 would read the last channel's entry, but then the left side has already decided.
    return (index < 0) | kept[index.clamp_min(0)]


# Streams behind attention whose width says how many heads it has.


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A stream and the heads of torch's `MultiheadAttention` on it, which are as wide together as
    the stream: of both the same share stays.

    Attributes:
        stream: The channels of the stream.
        step: What the channels that stay must be a multiple of.
        heads: The heads of each attention, and how wide one is.
    """

    stream: Tensor
    step: int
    heads: tuple[tuple[Tensor, int], ...]

    def settle(self, kept: Tensor, rank: Tensor) -> Tensor:
        """The largest choice of whole heads that fits into what is kept; the best by rank stay."""
        count = max(1, int(kept[self.stream].sum()) // self.step) * self.step
        settled = _keep_best(kept, self.stream, count, rank)
        for heads, width in self.heads:
            settled = _keep_best(settled, heads, count // width, rank)
        return settled


def _keep_best(kept: Tensor, members: Tensor, count: int, rank: Tensor) -> Tensor:
    """Exactly this many of the members stay: first those that are kept, then the best by rank."""
    # Stable, for equal ranks (the rule in masks/topk.py).
    order = members[rank[members].argsort(descending=True, stable=True)]
    order = order[(~kept[order]).long().argsort(stable=True)]
    chosen = kept.clone()
    chosen[order[:count]], chosen[order[count:]] = True, False
    return chosen


def _packed(model: nn.Module, found: Labelled, labels: Tensor) -> tuple[tuple[Packed, ...], Tensor]:
    """The packed streams of a network, in labels, and the labels that may go beside them."""
    free = torch.zeros(len(found.groups), dtype=torch.bool)
    free[labels] = True
    streams: dict[tuple[int, ...], list[tuple[Tensor, int]]] = {}
    for use, owner in _attentions(model, found):
        stream, written = found.groups.roots(use.into), found.groups.roots(use.out)
        heads, whole = written[:0], False
        if use.weight.direct == f"{use.node.place.module}.in_proj_weight":
            rows = written.reshape(-1, owner.num_heads, owner.head_dim)
            heads = rows[0, :, 0]
            whole = len(written) == 3 * len(stream) and bool((rows == heads[:, None]).all())
            whole = whole and len(distinct(heads)) == len(heads)
            whole = whole and len(distinct(stream)) == len(stream)
        if whole and bool(free[torch.cat([stream, heads])].all()):
            streams.setdefault(tuple(stream.tolist()), []).append((heads, owner.head_dim))
        else:
            free[torch.cat([stream, written])] = False
    packed = []
    for labels_of_stream, heads_of in streams.items():
        stream = torch.tensor(labels_of_stream)
        mine = torch.cat([stream, *(heads for heads, _ in heads_of)])
        # Another attention on the same stream may have held it back.
        if bool(free[mine].all()):
            step = math.lcm(*(width for _, width in heads_of))
            packed.append(Packed(stream=stream, step=step, heads=tuple(heads_of)))
        else:
            free[mine] = False
    return tuple(packed), free.nonzero().flatten()


def _attentions(
    model: nn.Module, found: Labelled
) -> Iterator[tuple[LayerUse, nn.MultiheadAttention]]:
    """The layers that lead into a `MultiheadAttention` of torch."""
    for use in found.uses:
        owner = model.get_submodule(use.node.place.module)
        leaves = use.weight.direct == f"{use.node.place.module}.out_proj.weight"
        if isinstance(owner, nn.MultiheadAttention) and not leaves:
            yield use, owner


# Every channel that can be removed whole.


@torch.no_grad()
def channels(model: nn.Module, example: Example, *, exact: bool = True) -> Channels:
    """Every channel that can be removed whole, with everything that goes with it; the model stays
    as it is.

    Channels tied to an input or an output stay, and those that a reordering in the model's code
    counts on (a `view(b, 9216)`). Heads of an attention and feed-forward neurons count as channels.

    exact: whether the others have to compute what they did. If not, the channels that a norm reads
        may go as well, and the heads of torch's `MultiheadAttention`.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    >>> found = channels(model, torch.zeros(1, 3))
    >>> len(found.labels), sorted({name for name, _ in found.rows})
    (4, ['0.bias', '0.weight', '1.bias', '1.weight', '3.weight'])
    """
    # All outputs at once: a channel that only the second output reads is in use.
    seen = AllOutputs(model) if exact else _Answers(model)
    COMPARED.share(seen, model)
    graph = capture(seen, example, opaque=True)
    found = label_channels(graph, seen, LabelFlow if exact else InexactFlow)
    even_(found)
    failed, contested = _refusing(seen, found, example, exact=exact)
    labels = removable(found, failed)
    packed, labels = _packed(seen, found, labels)
    position = torch.full((len(found.groups),), -1)
    position[labels] = torch.arange(len(labels))
    rows = {
        (own_name(name), dim): position[found.groups.roots(vector)]
        for (name, dim), vector in found.dims.items()
        # Running means follow their channel as well, but buffers take no mask.
        if name in graph.parameters
    }
    rows = {key: index for key, index in rows.items() if bool((index >= 0).any())}
    return Channels(
        labels=labels,
        layers=layers_of(found, position),
        families=families_of(found, position),
        rows=rows,
        shapes={own_name(name): tuple(shape) for name, shape in graph.parameters.items()},
        work=macs(seen, graph).named(own_name),
        packed=tuple(
            Packed(
                stream=position[each.stream],
                step=each.step,
                heads=tuple((position[heads], width) for heads, width in each.heads),
            )
            for each in packed
        ),
        directions=_directions(model, rows) if exact else frozenset(),
        labelled=found,
        contested=contested,
    )


class _Answers(AllOutputs):
    """All outputs without the hidden states that a model returns beside its logits."""

    def read(self, out: Any) -> Any:
        """The result without its hidden states, where it has logits."""
        if not (isinstance(out, Mapping) and "logits" in out):
            return out
        return {name: value for name, value in out.items() if "hidden_state" not in name}


def _directions(
    model: nn.Module, rows: Mapping[tuple[str, int], Tensor]
) -> frozenset[tuple[str, int]]:
    """Where a direction is divided by a norm of its own, and the factor in its place goes with the
    same channels.
    """
    found = set()
    for (name, dim), index in rows.items():
        made = made_of(model, name)
        if made is None:
            continue
        factors = (
            each
            for (other, along), each in rows.items()
            if other != name
            and along == dim
            and (of := made_of(model, other)) is not None
            and of.name == made.name
        )
        mask = torch.ones_like(model.get_parameter(name), dtype=torch.bool)
        mask.movedim(dim, 0)[0] = False
        if any(torch.equal(each, index) for each in factors) and empty_norms(model, {name: mask}):
            found.add((name, dim))
    return frozenset(found)


@torch.no_grad()
def narrow_(model: nn.Module, example: Example, found: Channels, kept: Tensor) -> None:
    """Remove the other channels from the model itself, whose parameters stay the same objects.

    A copy is cut and run first: if its code relies on the old sizes, nothing has changed.
    """
    gone = torch.zeros(len(found.labelled.groups), dtype=torch.bool)
    gone[found.labels[~kept]] = True
    seen = AllOutputs(model)
    small = _narrow(seen, found.labelled, gone, found.contested)
    failing = failing_module(small.inner, example)
    if failing is not None:
        raise ShipError(
            f"{type(model).__name__} does not run with fewer channels: the code of "
            f"{failing or 'the model itself'} relies on sizes that its tensors do not carry. "
            "Nothing was changed; write the sizes in terms of the tensors' own shapes, or leave "
            "exact=True."
        )
    _refuse_training_only(seen, small, found, example)
    changes = find_resized(seen, found.labelled, gone, found.contested)
    _shrink_in_place_(seen, found.labelled, small, changes)


def _shrink_in_place_(
    model: nn.Module, found: Labelled, small: nn.Module, changes: Sequence[Resized]
) -> None:
    """Give a labelled model the tensors of a smaller copy of it, and the sizes.

    Parameters stay the objects they are, so that an existing optimizer goes on with them; what it
    has stored for their entries no longer fits.
    """
    smaller = tensors_of(small)
    for name, tensor in tensors_of(model).items():
        if tensor.shape != smaller[name].shape:
            tensor.data, tensor.grad = smaller[name].detach(), None
    resize_(model, found)
    for change in changes:
        resize_attribute_(model.get_submodule(change.module), change.attribute, change.after)


def _refuse_training_only(
    model: AllOutputs, small: AllOutputs, found: Channels, example: Example
) -> None:
    """Refuse a cut after which a training step would fail: what only training reads, such as the
    embedding of masked places, is in no graph of the model in evaluation mode.
    """
    own = {name: tuple(p.shape) for name, p in model.named_parameters()}
    cut = {
        size
        for name, p in small.named_parameters()
        for size, left in zip(own[name], p.shape, strict=True)
        if size != left
    }
    unread = [
        own_name(name)
        for name, shape in own.items()
        if name not in found.labelled.graph.parameters and cut.intersection(shape)
    ]
    # Only what runs before the cut can tell whether the cut is at fault.
    if unread and _trains(model.inner, example) is None:
        problem = _trains(small.inner, example)
        if problem is not None:
            raise ShipError(
                f"{type(model.inner).__name__} would no longer run in training mode"
                f" ({first_line(problem)}): {', '.join(unread[:4])} is read there alone, so which"
                " of its channels go cannot be seen. Nothing was changed; switch off what reads it"
                " in training, or leave exact=True."
            )


def _trains(model: nn.Module, example: Example) -> Exception | None:
    """What a copy of the model raises on a batch in training mode, if anything."""
    *_, together = samples(example, next(model.parameters()))
    copy = private_copy(model, error=ScoreError)
    with keeping(model):  # chance goes on as if nothing had run
        try:
            run(copy.train(), together)
        except Exception as error:  # the model's own code
            return error
    return None


# Finds the classes of modules that cannot run with fewer channels, by trying a copy that has lost
# some.

# Sums of other lengths in the model's own precision differ by far less, other channels by far more.
_ROUNDING = 1e-2


def _refusing(
    model: AllOutputs, found: Labelled, example: Example, *, exact: bool
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Classes whose code fails on a copy without half of its channels (None where more does), and
    those whose attributes have to follow even where their size stands for something else too."""
    failed: frozenset[str] = frozenset({PACKED} if exact else ())
    contested: frozenset[str] = frozenset()
    # A reshape by an attribute or a shape may follow: a narrowed copy shows whether it does.
    if exact and len(removable(found, failed)) == len(removable(found)):
        return None, contested
    while True:
        packed, labels = _packed(model, found, removable(found, failed))
        gone = _half(found, labels)
        for each in packed:
            gone = ~each.settle(~gone, -torch.arange(len(gone)))
        small = _narrow(model, found, gone, contested)
        failing = failing_module(small.inner, example)
        if failing is None:
            # A reshape can go through and put channels in other places. A norm over fewer channels
            # says something else: then all that can be asked is that it runs to outputs as before.
            allowed = _ROUNDING if exact else math.inf
            same = difference(_mask_model(model, found, gone), small, example)
            return (failed if same <= allowed and same < math.inf else None), contested
        kind = type(small.inner.get_submodule(failing)).__name__
        if kind in failed:
            # It failed because of what another module passes to it: no class is assumed to follow.
            return None, contested
        if kind in contested:
            failed |= {kind}
        contested |= {kind}


def _half(found: Labelled, labels: Tensor) -> Tensor:
    """Marks every second removable channel of each layer; a layer keeps at least one."""
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
    """The model with zeros in place of what is removed."""
    copy = type(model)(private_copy(model.inner, error=ScoreError))
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
    copy = type(model)(private_copy(model.inner, error=ScoreError))
    shrink_(copy, found, changed, find_resized(copy, found, gone, contested))
    return copy
