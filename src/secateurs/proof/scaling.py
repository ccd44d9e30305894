"""Multiplying the tensors of a model by the scales of their channels."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.parameters import aliases, unwrap
from secateurs.channels.labels import NOTHING, LabelFlow, Labelled, LayerUse, label
from secateurs.errors import CaptureError, TheoryError, UnsupportedOperation
from secateurs.graph import Affine, Example, Graph, Pool, Source, affines, capture, evaluate
from secateurs.graph.export import Call, call_of, check_parameters, outputs_of
from secateurs.graph.ir import Wrapper, kind_of, tensors_of
from secateurs.graph.replay import COMPARED
from secateurs.graph.spot_check import answers
from secateurs.graph.untouched import untouched

# Which channels must be rescaled together: labels on every value, united where the network ties
# them.
#
# A hidden channel may be multiplied by λ > 0 when everything that reads it can divide by λ.
# Activations, pools, skip connections and copies pass a scale on; weights absorb it; inputs,
# outputs and constants pin it to 1.


@dataclass(slots=True)
class Coupling(Labelled):
    """Labels of channels that share one scale, and the tensors that carry it.

    Attributes:
        biases: Tensors that scale with the channels they are added to, with their labels.
        diagonal: What each channel is multiplied by, such as a batch norm, with its labels.
    """

    biases: list[tuple[str, Tensor]] = field(default_factory=list)
    diagonal: list[tuple[Affine, Tensor]] = field(default_factory=list)

    def root_of(self, labels: Tensor) -> Tensor:
        """Group numbers of labels, 0 for pinned and for padding."""
        return self.groups.roots(labels).clamp_min(0)


class ScaleFlow(LabelFlow):
    """Labels of channels that share one scale.

    A layer has a scale of its own for what it reads and for what it writes, whatever its groups; a
    norm passes a scale on; a window has to lie in one channel; padding has every scale.
    """

    def __init__(self, found: Coupling) -> None:
        # The model only tells whether its groups can be removed, and a scale leaves them alone.
        super().__init__(found, nn.Module())
        self.coupling = found

    def pool(self, node: Pool, x: Tensor) -> Tensor:
        return self.windows(node, node.total, x)

    def diagonal(self, node: Affine, weight: Source, x: Tensor) -> None:
        self.coupling.diagonal.append((node, x))

    def bias(self, node: Affine, bias: Source, y: Tensor) -> None:
        entries = node.spread(torch.empty(bias.shape, device="meta")).shape
        sizes = (*[1] * (len(node.shape) - len(entries)), *entries)
        own = [dim for dim, size in enumerate(sizes) if size > 1]
        shared = [dim for dim, size in enumerate(sizes) if size == 1]
        every = y.expand([max(size, there) for size, there in zip(sizes, y.shape, strict=True)])
        count = max(1, math.prod(bias.shape))
        labels = self.groups.shared(every.permute(own + shared).reshape(count, -1))
        names, graph = node.bias_scaled_by, self.found.graph
        if names is None or not set(names) <= {*graph.parameters, *graph.buffers}:
            self.groups.pin(labels, "is added in a way that is not followed")
        else:
            self.coupling.biases += [(name, labels) for name in names]

    def mixes(self, weight: Source) -> bool:
        return weight.direct in self.found.graph.parameters

    def learnt(self, weight: Source) -> bool:
        return not set(weight.names).isdisjoint(self.found.graph.parameters)

    def tie_weight(self, use: LayerUse) -> None:
        """Entries are multiplied by out / into: neither ties the other."""

    def windows(self, node: Affine | Pool, total: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        found = self.one_each(node, total, x)
        return self.pin(x, node) if found is None else found

    def padding(self, count: int) -> Tensor:
        return torch.full((count,), NOTHING)


def coupling(graph: Graph) -> Coupling:
    """Label every channel of the graph."""
    found = Coupling(graph)
    label(ScaleFlow(found))
    # Outputs keep their scale: nothing behind them divides it out.
    found.groups.pin(found.values[graph.output], "is an output of the model")
    _pin_foreign(found)
    # A tied tensor is multiplied once, so all its uses must ask for the same scales.
    first: dict[str, LayerUse] = {}
    for use in found.uses:
        other = first.setdefault(str(use.weight.direct), use)
        found.groups.unite(use.into, other.into)
        found.groups.unite(use.out, other.out)
    added: dict[str, Tensor] = {}
    for name, labels in found.biases:
        found.groups.unite(labels, added.setdefault(name, labels))
    return found


def _pin_foreign(found: Coupling) -> None:
    """A tensor that also enters through some other function (a transpose, a norm) must keep its
    values.
    """
    foreign: set[str] = set()
    for node in affines(found.graph):
        if node.weight is not None and node.weight.direct is None:
            foreign |= set(node.weight.names)
        # How to scale what this bias is computed from is unknown.
        if node.bias is not None and node.bias_scaled_by is None:
            foreign |= set(node.bias.names)
    foreign |= {str(use.weight.direct) for use in found.uses} & {name for name, _ in found.biases}
    carried = [(use.weight.direct, labels) for use in found.uses for labels in (use.into, use.out)]
    for name, labels in (*carried, *found.biases):
        if name in foreign:
            found.groups.pin(labels, f"{name} is read in a way that is not followed")


def entry_scales(use: LayerUse, into: Tensor, out: Tensor, shape: Sequence[int]) -> Tensor:
    """The factor out[o] / into[i] of every weight entry, in a shape that broadcasts over the
    weight.
    """
    axes = use.axes
    outs, ins = shape[axes.weight_out], shape[axes.weight_in]
    # With groups, a row of the weight reads only the channels of its own group.
    if axes.weight_in == 1:  # (out, in / groups)
        group = torch.arange(outs) // (outs // axes.groups)
        matrix = out.unsqueeze(1) / into[group.unsqueeze(1) * ins + torch.arange(ins)]
    else:  # (in, out / groups)
        group = torch.arange(ins) // (ins // axes.groups)
        matrix = out[group.unsqueeze(1) * outs + torch.arange(outs)] / into.unsqueeze(1)
    return matrix.reshape(*matrix.shape, *[1] * (len(shape) - 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaling:
    """What was rescaled.

    Attributes:
        channels: Hidden channels with a scale of their own (channels tied by skip connections share
            one).
        pinned: Channels whose scale must stay 1 because they meet an input, an output or a
            constant.
        changed: The tensors that were multiplied.
    """

    channels: int
    pinned: int
    changed: tuple[str, ...]


def scale_(model: nn.Module, found: Coupling, scales: Tensor) -> Rescaling:
    """Multiply every tensor by the scales of its channels, each tensor once."""
    tensors = tensors_of(model)
    changed: dict[str, bool] = {}
    for use in found.uses:
        name, tensor = str(use.weight.direct), tensors[str(use.weight.direct)]
        # Each tensor once: a tied one appears under every use.
        if name not in changed:
            into, out = scales[found.root_of(use.into)], scales[found.root_of(use.out)]
            changed[name] = _multiply_(tensor, entry_scales(use, into, out, tensor.shape))
    for name, labels in found.biases:
        if name not in changed:
            entries = scales[found.root_of(labels)]
            changed[name] = _multiply_(tensors[name], entries.reshape(tensors[name].shape))
    roots = torch.cat([torch.zeros(0).long(), *(found.root_of(use.out) for use in found.uses)])
    free = torch.unique(roots[roots > 0]).numel()
    return Rescaling(
        channels=free,
        pinned=int((roots == 0).sum()),
        changed=tuple(name for name, moved in changed.items() if moved),
    )


def silence_(model: nn.Module, found: Coupling, silent: Tensor) -> None:
    """Outgoing weights of channels that carry nothing become zero."""
    tensors = tensors_of(model)
    for use in found.uses:
        tensor = tensors[str(use.weight.direct)]
        ones = torch.ones(use.out.numel(), dtype=torch.float64)
        # 1/∞ = 0 zeroes what reads a silent channel, all else is multiplied by 1.
        into = torch.where(silent[found.root_of(use.into)], torch.inf, 1.0).double()
        _multiply_(tensor, entry_scales(use, into, ones, tensor.shape))


def _multiply_(tensor: Tensor, scale: Tensor) -> bool:
    """In place, in float64; whether anything changed."""
    moved = bool((scale != 1).any())
    if moved:
        tensor.copy_((tensor.double() * scale.to(tensor.device)).to(tensor.dtype))
    return moved


# Rewrites a model and checks that its function is unchanged; a rewrite that fails is undone.

_FEW, _MANY, _LARGE = 2, 32, 1_000_000
"""Random inputs that are compared: many if they are cheap, since a neuron that is off on all of
them hides its change. Models of this many numbers get few.
"""


@contextmanager
def unchanged(model: nn.Module, x: Example | Graph, graph: Graph, name: str) -> Iterator[None]:
    """Compare all outputs before and after, in float64 on random inputs; on a difference put every
    parameter and buffer back and raise.
    """
    calls = _calls(model, x, graph)
    # Clones, not references: the rewriting is in place.
    saved = {key: tensor.clone() for key, tensor in _tensors(model).items()}
    before = _answers(model, graph, calls)
    try:
        yield
        _compare(model, before, _answers(model, graph, calls), name)
    # An interrupt in the middle would leave a half-scaled model, so it is taken back
    # too.
    except BaseException:
        for key, tensor in _tensors(model).items():
            tensor.copy_(saved[key])
        raise


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor under each of its names: the first name of a tie need not stay the first."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _calls(model: nn.Module, x: Example | Graph, graph: Graph) -> list[Call]:
    """Random inputs in float64; of a graph given, the positions of its inputs."""
    # The same inputs before and after, whatever the global generator does.
    generator = torch.Generator().manual_seed(0)
    samples = _FEW if sum(p.numel() for p in model.parameters()) > _LARGE else _MANY
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    like = (
        Call(tuple(torch.zeros(node.shape) for node in graph.inputs))
        if isinstance(x, Graph)
        else call_of(x, model)
    )

    def drawn(t: Tensor) -> Tensor:
        return torch.randn(t.shape, generator=generator, dtype=torch.float64).to(device)

    return [like.replaced([drawn(t) for t in like.tensors]) for _ in range(samples)]


@torch.no_grad()
def _answers(model: nn.Module, graph: Graph, calls: list[Call]) -> list[dict[str, Tensor]]:
    """Outputs of the graph, and of the model itself (all of them) where it runs in float64."""
    state = graph.state(model)
    found = []
    for call in calls:
        outputs = {"the captured output": evaluate(graph, call.tensors, state)}
        # Keyword inputs of a graph given, or a dtype written in the code: the graph has to do.
        with suppress(Exception):
            outputs |= answers(model, call, torch.float64)
        found.append(outputs)
    return found


def _compare(
    model: nn.Module,
    before: list[dict[str, Tensor]],
    after: list[dict[str, Tensor]],
    name: str,
) -> None:
    # Each rewritten weight is rounded once in the model's own precision; over many
    # layers some thousand units add up. Real errors are of the size of the outputs.
    share = min(0.25, 4000 * _coarsest(model))
    for one, two in zip(before, after, strict=True):
        for key, value in one.items():
            scale = float(value.abs().max()) if value.numel() else 0.0
            gap = float((value - two[key]).abs().max()) if value.numel() else 0.0
            # `not … <=` refuses NaN; 1e-30 stands in for outputs that are all 0.
            if not gap <= share * max(scale, 1e-30):
                raise TheoryError(
                    f"{name} would move {key or 'the output'} of {kind_of(model)} by"
                    f" {gap:.3g} (outputs reach {scale:.3g}), so everything was restored."
                    f"{_tied_note(model)} Please report the model if its weights are its own."
                )


def _tied_note(model: nn.Module) -> str:
    tied = sorted(alias for alias, first in aliases(model).items() if alias != first)
    return f" Tied tensors, often the reason: {', '.join(tied[:4])}." if tied else ""


def _coarsest(model: nn.Module) -> float:
    return max((torch.finfo(p.dtype).eps for p in model.parameters()), default=1e-7)


# A model with all its outputs as one: what rewrites a model must keep every one of them.
#
# A graph ends in one output. A channel that this output does not use may be read by another, and a
# weight may be read outside of the graph. So the functions that rewrite look at the graph of all
# outputs together: what is dead there is dead for each of them, what is read anywhere is seen.


class Whole(Wrapper):
    """All tensors a model returns, one behind the other in one row."""

    def __init__(self, model: nn.Module, alone: Mapping[str, Tensor]) -> None:
        super().__init__(model)
        # Of one sample: a weight that is returned has no dimension of the batch.
        self.batched = {name for name, t in alone.items() if t.shape[:1] == (1,)}

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """A row per sample; what is the same for all of them stands in every row."""
        found = outputs_of(self.inner(*args, **kwargs))
        rows = max((len(t) for n, t in found.items() if n in self.batched), default=1)
        return torch.cat([self._rows(n, t, rows) for n, t in found.items()], dim=1)

    def _rows(self, name: str, tensor: Tensor, rows: int) -> Tensor:
        if name in self.batched and len(tensor) == rows:
            return tensor.reshape(rows, -1)
        return tensor.reshape(1, -1).expand(rows, -1)


def whole(model: nn.Module, example: Example | Graph, name: str) -> tuple[nn.Module, Graph]:
    """The model and the graph of all it returns; the names of the graph are those of the first.

    Refused where one of the outputs cannot be read, or where the forward pass writes into a buffer:
    then it is unknown what else reads the channels to be changed.
    """
    model = unwrap(model)
    check_parameters(model)
    call = _call(model, example)
    found, written = _call_outputs(model, call)
    if written:
        raise UnsupportedOperation(
            f"{name} must know all that reads a channel, but the forward pass of"
            f" {type(model).__name__} writes into {', '.join(written[:4])}. Call .eval(), or leave"
            " the writing out."
        )
    # One output: the graph given, or captured as usual, already says all.
    if len(found) == 1:
        graph = example if isinstance(example, Graph) else capture(model, example)
        return model, _refuse_mixed_batch(graph, name)
    together = Whole(model, found)
    COMPARED.share(together, model)
    named: Any = call.kwargs or list(call.args)
    try:
        if call.args and call.kwargs:
            raise CaptureError("it takes inputs by position and by keyword")
        graph = capture(together, named)
    except CaptureError as error:
        listed = ", ".join(repr(key) for key in list(found)[:6])
        raise UnsupportedOperation(
            f"{name} must keep all {len(found)} outputs of {type(model).__name__}"
            f" ({listed}), and not all can be read: {error}"
            " Wrap the model so that it returns the output you use, if nobody reads the others."
        ) from error
    return together, _refuse_mixed_batch(graph, name)


def _refuse_mixed_batch(graph: Graph, name: str) -> Graph:
    """Refuse models whose samples act on each other: what is equal for one need not be so for a
    batch.
    """
    if graph.alone:
        raise UnsupportedOperation(
            f"{name} keeps the function of each input alone, and {graph.alone}. Leave the batch out"
            " of the forward pass."
        )
    return graph


def _call(model: nn.Module, example: Example | Graph) -> Call:
    if not isinstance(example, Graph):
        return call_of(example, model)
    like = next(model.parameters(), torch.zeros(()))
    return Call(tuple(torch.zeros(n.shape).to(like) for n in example.inputs))


@torch.no_grad()
def _call_outputs(model: nn.Module, call: Call) -> tuple[dict[str, Tensor], list[str]]:
    """What one call returns, and the buffers it writes into; these are put back."""
    before = [b.clone() for b in model.buffers()]
    try:
        with untouched(model):
            found = outputs_of(model(*call.args, **call.kwargs))
            written = [
                key
                for (key, now), then in zip(model.named_buffers(), before, strict=True)
                if not torch.equal(now, then)
            ]
            return found, written
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} does not run on inputs of shape {call.shapes}: {error} "
            "Instead of the graph, give an example in the form in which the model is called."
        ) from error
