"""A sparse network is a short message, and a short message generalises.

The message, in order, for a reader who knows the architecture; every choice is paid for with the
logarithm of the number of alternatives:

1. how many different values the weights take, K from 0 to 256, and in which of two formats they
   are listed; the list, a set of K numbers of that format;
2. for every parameter where its weights are, by the shortest of three codes, which is named: among
   all entries; among rows and columns that are not empty, which are named first; the same with the
   columns (of a vector: the entries) taken from the rows that the matrix before left alive;
3. how often each value occurs, then which weight has which;
4. buffers, entry by entry, and whatever else the model reads that nobody handed to it.

Hidden units of a fully connected network can change places without changing the function, and every
order has a message of the same length. The chance of the function is the sum over them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from scipy.optimize import brentq
from scipy.special import gammaln
from scipy.stats import beta
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from secateurs.base.copies import call_with, evaluating
from secateurs.base.printing import Reported, plain
from secateurs.errors import ArgumentError, SecateursError
from secateurs.graph import Graph, capture
from secateurs.paths.layered import MatrixLayer, layers_of

LEVELS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
"""How many values are tried by default; any number up to 256 may be given."""

FORMATS = {torch.float8_e4m3fn: 8, torch.bfloat16: 16}
"""The formats in which a value may be listed, with their bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionLength(Reported):
    """A network as a message, and what its length proves about fresh data.

    Attributes:
        bits: −log₂ of the network's share under a code that was fixed before the data; fractions
            count.
        parts: The bits of each part of the message; the last, negative, is what the order of hidden
            units gives back.
        errors: Wrong answers of the network with its values rounded, on the training samples.
        samples: How many these are.
        bound: The test error is at most this, with probability `confidence` over the samples.
        weights: The rounded parameters by name; the claim is about the network that has these.
    """

    bits: float
    parts: Mapping[str, float]
    kept: int
    total: int
    levels: int
    samples: int
    errors: int
    confidence: float
    bound: float
    assumptions: tuple[str, ...]
    weights: Mapping[str, Tensor] = field(repr=False, compare=False)

    @property
    def training_error(self) -> float:
        return self.errors / self.samples

    @property
    def compression(self) -> float:
        return self.total / max(1, self.kept)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the weights."""
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "weights"}
        found: dict[str, Any] = plain(
            {**shown, "training_error": self.training_error, "compression": self.compression}
        )
        return found

    def __rich__(self) -> Table:
        title = (
            f"test error ≤ {self.bound:.2%} with probability {self.confidence:g}:"
            f" {self.training_error:.2%} of {self.samples} samples are wrong"
        )
        table = Table(title=title, caption="; ".join(self.assumptions))
        # As wide as the text above and below it.
        table.add_column("part of the message", min_width=80)
        table.add_column("bits", justify="right")
        for name, bits in self.parts.items():
            table.add_row(name, f"{bits:.1f}")
        table.add_row(
            f"{self.kept} weights of {self.total}, {self.levels} values", f"{self.bits:.1f}"
        )
        return table


def description_length(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    confidence: float = 0.95,
    levels: int | None = None,
    alternatives: int = 1,
    tune: int = 0,
    generator: torch.Generator | None = None,
    batch: int = 1024,
) -> DescriptionLength:
    """Write a sparse network as a message of L bits and bound its test error by L.

    With probability at least `confidence` over n independent samples, for every network h of L(h)
    bits at once: its test error is at most the largest p with P(Bin(n, p) ≤ wrong(h)) ≥
    (1 − confidence)·2^{−L(h)}.

    Proof: for one h whose error is larger than that p, so few wrong answers have a probability
    below (1 − confidence)·2^{−L(h)}. The code is fixed before the data, so 2^{−L} sums to at most
    one over all networks, and these probabilities to at most 1 − confidence.

    The values are rounded to a list that is part of the message, and the errors are counted after
    rounding. Tensors that the model reads and that are neither parameters nor buffers (plain
    attributes, those of closures) are written as they are; packed ones (`quantize_dynamic`) are
    refused. Numbers in the code of the model (`0.37 * x`) are its architecture, and are not paid
    for: they must not know the data. The model is left as it is; `weights` has the network that
    the claim is about.

    Args:
        inputs, labels: the training samples, all of them; labels are classes.
        levels: how many different values the weights take, at most 256; by default the number with
            the smallest bound of a dozen. The message says the number, so the choice is paid for.
        alternatives: among how many architectures (and ways to scale the inputs) the data were
            looked at to choose; log₂ of it is added.
        tune: steps of Adam on the values after the weights were assigned to them, with the
            cross-entropy of 512 samples each; a few hundred make a short list nearly as good as a
            long one. The list is part of the message, so it may know the data.
        generator: draws the samples of these steps.
        batch: samples that go through the network together.

    >>> import torch
    >>> model = nn.Linear(4, 2, bias=False)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.tensor([[1., 0, 0, 0], [0, 0, 0, 0]]))
    >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    >>> found = description_length(model, x, (x[:, 0] < 0).long())
    >>> found.kept, found.errors, round(found.bits), round(found.bound, 2)
    (1, 0, 25, 0.04)

    Reference: Blumer et al. 1987; Langford 2005, Corollary 3.7; Lotfi et al. 2022 for what a
    compressed network attains.
    """
    _check(inputs, labels, confidence, levels, alternatives, tune)
    chance = math.log1p(-confidence)
    with evaluating(model):
        graph = _graph_of(model, inputs[:1])
        # Copies: what still reads the parameters themselves reads a tensor that was not handed in.
        own = {name: p.detach().clone() for name, p in model.named_parameters()}
        hidden = _HiddenTensors(model, (*own.values(), *model.buffers(), inputs))
        wrong = _count_wrong(model, own, inputs, labels, batch, hidden)
        messages = [
            _write(model, count, kind, alternatives, graph, hidden.bits)
            for count in (LEVELS if levels is None else (levels,))
            for kind in FORMATS
        ]

        def bound_without_rounding(message: _Message) -> float:
            """The bound that this message would have if rounding the weights added no error."""
            return largest_error(wrong, len(inputs), chance - message.bits * math.log(2))

        best, found, errors = math.inf, messages[0], 0
        for message in sorted(messages, key=bound_without_rounding):
            # All further messages are longer, so their networks would have to be right more often
            # than the network before rounding.
            if bound_without_rounding(message) >= best:
                break
            if tune:
                tuned = _tune(model, message, inputs, labels, tune, generator)
                message = _message(model, tuned, message.kind, alternatives, graph, hidden.bits)
            now = _count_wrong(model, message.weights, inputs, labels, batch)
            bound = largest_error(now, len(inputs), chance - message.bits * math.log(2))
            if bound < best:
                best, found, errors = bound, message, now
    return DescriptionLength(
        bits=found.bits,
        parts=found.parts,
        kept=sum(int((w != 0).sum()) for w in found.weights.values()),
        total=sum(w.numel() for w in found.weights.values()),
        levels=found.levels,
        samples=len(inputs),
        errors=errors,
        confidence=confidence,
        bound=best,
        assumptions=(
            "samples and fresh data are drawn independently from one distribution",
            "the architecture was fixed before the data"
            + (f", or chosen among {alternatives}" if alternatives > 1 else ""),
            "hidden units may change places"
            if found.parts["order of hidden units"]
            else "nothing is gained from the order of units",
        ),
        weights=found.weights,
    )


def largest_error(wrong: int, samples: int, log_chance: float) -> float:
    """The largest p with ln P(Bin(samples, p) ≤ wrong) ≥ log_chance, exactly where that is a
    float, else rounded up: a sum of falling terms is at most its geometric series.

    >>> round(largest_error(0, 100, math.log(0.05)), 4)  # 1 − 0.05^(1/100)
    0.0295
    """
    if wrong >= samples:
        return 1.0
    if log_chance > -600:
        # Exactly Clopper and Pearson's limit; a smaller chance underflows.
        return float(beta.isf(math.exp(log_chance), wrong + 1, samples - wrong))

    def excess(p: float) -> float:
        # P(k) of the largest term, and how fast the terms fall towards 0 below it.
        choose = gammaln(samples + 1) - gammaln(wrong + 1) - gammaln(samples - wrong + 1)
        term = float(choose) + (samples - wrong) * math.log1p(-p)
        term += wrong * math.log(p) if wrong else 0.0
        ratio = wrong * (1 - p) / ((samples - wrong + 1) * p)
        return min(0.0, term - math.log1p(-ratio)) - log_chance

    # Just above wrong/n the series hardly falls and the tail is most of 1; at 1 it is 0.
    low, high = (wrong + 1e-9) / samples if wrong else 1e-300, 1.0 - 1e-15
    if excess(high) > 0:
        return 1.0
    return min(1.0, float(brentq(excess, low, high, xtol=1e-12)) * (1 + 1e-9) + 1e-12)


# One message: the values rounded, and what each part costs.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    parts: Mapping[str, float]
    codebook: Tensor
    kind: torch.dtype
    weights: Mapping[str, Tensor]

    @property
    def levels(self) -> int:
        return len(self.codebook)

    @property
    def bits(self) -> float:
        return math.fsum(self.parts.values())


class _HiddenTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds the tensors that a model reads and nobody handed to it: plain attributes, those of
    closures and of the code. They are part of the message, each once; what an operator holds
    packed cannot be, and is refused.
    """

    def __init__(self, model: nn.Module, given: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.given = type(model).__name__, [_memory(t) for t in given]
        self.known: set[int] = set()
        self.held: list[Tensor] = []
        self.read: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}

    def __enter__(self) -> "_HiddenTensors":
        super().__enter__()  # type: ignore[no-untyped-call]
        self.known = set(self.given)
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        # Until here nothing was freed, so no address stood for two tensors.
        self.held.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.ScriptObject):
                raise ArgumentError(
                    f"{self.model} reads weights that {func} holds packed: they are neither"
                    " parameters nor buffers, and no message can contain them. Describe the model"
                    " before it is quantized."
                )
            if isinstance(leaf, Tensor) and _memory(leaf) not in self.known:
                self._keep(leaf)
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._hold(leaf)
        return result

    def _keep(self, tensor: Tensor) -> None:
        self._hold(tensor)
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        self.read[str(tensor.dtype), tuple(tensor.shape), raw] = tensor

    def _hold(self, tensor: Tensor) -> None:
        self.known.add(_memory(tensor))
        self.held.append(tensor)

    @property
    def bits(self) -> float:
        """Bits of these tensors written out in full."""
        return float(sum(8 * len(raw) for _, _, raw in self.read))


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _write(
    model: nn.Module,
    levels: int,
    kind: torch.dtype,
    alternatives: int,
    graph: Graph | None,
    hidden: float,
) -> _Message:
    """The weights, rounded to this many values of a format, as a message."""
    own = {name: p.detach() for name, p in model.named_parameters()}
    values = torch.cat([w[w != 0].double().flatten().cpu() for w in own.values()])
    if not bool(torch.isfinite(values).all()):
        raise ArgumentError(
            "a weight is NaN or infinite: repair the network before it is described."
        )
    codebook = _codebook(values, levels, kind)
    weights = {name: _round(w, codebook) for name, w in own.items()}
    return _message(model, weights, kind, alternatives, graph, hidden)


def _message(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    kind: torch.dtype,
    alternatives: int,
    graph: Graph | None,
    hidden: float,
) -> _Message:
    """The cost of these weights, whose values are numbers of the format."""
    values = torch.cat([w[w != 0].double().flatten().cpu() for w in weights.values()])
    codebook, counts = torch.unique(values, return_counts=True)
    parts = {
        "values": math.log2(257 * 2) + _log2_choose(2 ** FORMATS[kind], len(codebook)),
        **_positions(weights),
        "which value where": _symbols(counts),
        "buffers": float(sum(8 * b.element_size() * b.numel() for b in model.buffers())),
        "tensors that are neither parameters nor buffers": hidden,
        "choice of architecture": math.log2(alternatives),
        "order of hidden units": -_orders(_layers(graph, weights)),
    }
    return _Message(parts=parts, codebook=codebook, kind=kind, weights=weights)


def _tune(
    model: nn.Module,
    message: _Message,
    inputs: Tensor,
    labels: Tensor,
    steps: int,
    generator: torch.Generator | None,
) -> Mapping[str, Tensor]:
    """Better values for the weights; those that were equal stay equal."""
    if not message.levels:
        return message.weights
    first = next(iter(message.weights.values()))
    values = message.codebook.to(first).requires_grad_()
    mean, last = torch.zeros_like(message.codebook), steps - steps // 2
    index = {
        name: torch.bucketize(w, message.codebook.to(w)).clamp_max(message.levels - 1)
        for name, w in message.weights.items()
    }
    zero = {name: w == 0 for name, w in message.weights.items()}
    # A step is a hundredth of a usual value.
    adam = torch.optim.Adam([values], lr=0.01 * float(values.detach().abs().mean()))
    for step in range(steps):
        chosen = torch.randint(len(inputs), (512,), generator=generator).to(inputs.device)
        weights = {n: values[i].masked_fill(zero[n], 0.0) for n, i in index.items()}
        answers = call_with(model, weights, (inputs[chosen],))
        gradient = torch.autograd.grad(F.cross_entropy(answers, labels[chosen].long()), values)
        values.grad = gradient[0]
        adam.step()
        # The mean of the second half: single steps wander.
        if step >= last or steps < 2:
            mean += values.detach().to(mean) / max(1, steps // 2)
    tuned = _in_format(mean, message.kind)
    return {n: tuned.to(w)[index[n]].masked_fill(zero[n], 0.0) for n, w in message.weights.items()}


def _count_wrong(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
    batch: int,
    watch: AbstractContextManager[Any] | None = None,
) -> int:
    wrong = 0
    with torch.no_grad():
        for x, y in zip(torch.split(inputs, batch), torch.split(labels, batch), strict=True):
            with watch or nullcontext():
                answers = call_with(model, weights, (x,))
            if not isinstance(answers, Tensor) or answers.ndim != 2 or len(answers) != len(x):
                raise ArgumentError(
                    "misclassified samples are counted: the model must return (N, classes) for a "
                    f"batch of N = {len(x)}."
                )
            wrong += int((answers.argmax(1) != y).sum())
    return wrong


def _codebook(values: Tensor, levels: int, kind: torch.dtype) -> Tensor:
    """At most this many numbers of this format, none of them 0, near the values, sorted: Lloyd's
    algorithm from quantiles.
    """
    if not len(values):
        return values
    ordered = values.sort().values
    places = (torch.arange(levels, dtype=torch.float64) + 0.5) / levels * len(ordered)
    centres = torch.unique(ordered[places.long().clamp_max(len(ordered) - 1)])
    for _ in range(50):
        nearest = _nearest(ordered, centres)
        count = torch.bincount(nearest, minlength=len(centres))
        total = torch.zeros(len(centres), dtype=torch.float64).index_add_(0, nearest, ordered)
        # A centre that is nearest to no value is dropped.
        centres = torch.unique((total / count)[count > 0])
    codebook: Tensor = torch.unique(_in_format(centres, kind))
    return codebook


def _in_format(values: Tensor, kind: torch.dtype) -> Tensor:
    """The nearest numbers of the format that are not zero."""
    least, most = torch.finfo(kind).smallest_normal, torch.finfo(kind).max
    return torch.copysign(values.abs().clamp(least, most), values).to(kind).double()


def _nearest(values: Tensor, centres: Tensor) -> Tensor:
    """For each value the index of the nearest of sorted centres."""
    between = (centres[1:] + centres[:-1]) / 2
    return torch.bucketize(values, between)


def _round(weight: Tensor, codebook: Tensor) -> Tensor:
    if not len(codebook):
        return torch.zeros_like(weight)
    near = codebook[_nearest(weight.double().cpu(), codebook)].to(weight)
    return torch.where(weight == 0, torch.zeros_like(weight), near)


# What the parts of the message cost, in bits.


def _log2_choose(n: float, k: float) -> float:
    """log₂ of the number of ways to choose k of n.

    >>> round(_log2_choose(5, 2), 6) == round(math.log2(10), 6)
    True
    """
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)) / math.log(2)


def _some(n: int, k: int) -> float:
    """Bits that say which k of n things are meant: the number k, then the choice."""
    return math.log2(n + 1) + _log2_choose(n, k)


def _positions(weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Where each parameter's weights are, by the shortest code; its name costs log₂ 3."""
    parts = {}
    alive: Tensor | None = None  # rows of the last matrix that have a weight or a bias
    for name, weight in weights.items():
        where = (weight != 0).reshape(weight.shape[0] if weight.ndim else 1, -1)
        codes = [_some(where.numel(), int(where.sum()))]
        if weight.ndim > 1:
            codes += _by_rows(where, alive)
            alive = where.any(1)
        else:
            column = where.flatten()
            if alive is not None and len(alive) == len(column):
                if not bool((column & ~alive).any()):
                    codes.append(_some(int(alive.sum()), int(column.sum())))
                alive = alive | column
        parts[f"places in {name}"] = math.log2(3) + min(codes)
    return parts


def _by_rows(where: Tensor, alive: Tensor | None) -> Iterator[float]:
    rows, columns = where.any(1), where.any(0)
    inside = _some(int(rows.sum()) * int(columns.sum()), int(where.sum()))
    named = _some(len(rows), int(rows.sum()))
    yield named + _some(len(columns), int(columns.sum())) + inside
    if alive is not None and len(alive) == len(columns) and not bool((columns & ~alive).any()):
        yield named + _some(int(alive.sum()), int(columns.sum())) + inside


def _symbols(counts: Tensor) -> float:
    """How often each value occurs, and which weight has which."""
    if not len(counts):
        return 0.0
    total, more = int(counts.sum()), len(counts) - 1
    orders = float(gammaln(total + 1)) - math.fsum(float(gammaln(int(c) + 1)) for c in counts)
    # The reader knows the number of weights from their places.
    return _log2_choose(total + more, more) + orders / math.log(2)


def _graph_of(model: nn.Module, example: Tensor) -> Graph | None:
    """Its graph, if that reads the very parameters that are coded and nothing else."""
    try:
        graph = capture(model, example)
        state = graph.state(model)
    except SecateursError:
        return None
    return graph if {*state} == {name for name, _ in model.named_parameters()} else None


def _layers(graph: Graph | None, weights: Mapping[str, Tensor]) -> list[MatrixLayer]:
    """The layers of a fully connected network; none for any other.

    Its matrices must be the parameters themselves, each once and in this order: units of a matrix
    that is shared, or computed from others, cannot change places by themselves; and in another
    order the places of the columns would be derived from the rows of another layer.
    """
    layers = [] if graph is None else layers_of(graph, weights) or []
    used = [t for layer in layers for t in (layer.weight, layer.bias) if t is not None]
    same = len(used) == len(weights) and all(map(torch.equal, used, weights.values()))
    return layers if same else []


def _orders(layers: list[MatrixLayer]) -> float:
    """log₂ of how many different messages describe the same function with its hidden units in
    another order, or less.

    Exchanging equal units changes nothing. Units are equal only if their incoming weights and bias
    are, seen from a layer before whose order is fixed; counting every such pair as equal can only
    lose.
    """
    bits = 0.0
    for layer in layers[:-1]:
        bias = torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias
        units = torch.cat([layer.weight, bias.to(layer.weight)[:, None]], dim=1)
        _, counts = torch.unique(units, dim=0, return_counts=True)
        alike = math.fsum(float(gammaln(int(count) + 1)) for count in counts)
        bits += (float(gammaln(len(units) + 1)) - alike) / math.log(2)
    return bits


def _check(
    inputs: Tensor,
    labels: Tensor,
    confidence: float,
    levels: int | None,
    alternatives: int,
    tune: int,
) -> None:
    whole = not labels.is_floating_point() and labels.ndim == 1
    if len(inputs) < 1 or len(inputs) != len(labels) or not whole:
        raise ArgumentError(
            f"{len(inputs)} inputs and labels of {labels.dtype}, {tuple(labels.shape)}: give one"
            " class for each training sample, and at least one sample."
        )
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence={confidence!r} is not between 0 and 1 (0.95 is usual).")
    if levels is not None and not 1 <= levels <= 256:
        raise ArgumentError(f"levels={levels!r} is not between 1 and 256.")
    if tune < 0:
        raise ArgumentError(f"tune={tune!r}: give a number of steps, 0 for none.")
    if alternatives < 1:
        raise ArgumentError(
            f"alternatives={alternatives!r}: give at least 1, for the architecture itself."
        )
