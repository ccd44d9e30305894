"""`compact`: a sparse model without its dead channels, as a module of the same class with smaller
tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateurs.base.copies import private_copy
from secateurs.base.parameters import refuse_wrapped
from secateurs.base.printing import Reported
from secateurs.base.progress import Progress, show_progress
from secateurs.channels.folding import apply_folds
from secateurs.channels.labels import AllOutputs, Labelled, label_channels, own_name
from secateurs.channels.macs import Macs, macs
from secateurs.channels.removal import Removal, RemovalOptions, narrowed_state, removal
from secateurs.channels.verify import (
    difference,
    difference_in_a_batch,
    difference_in_every_mode,
    failing_module,
    shrink_,
)
from secateurs.errors import ArgumentError, CaptureError, ShipError
from secateurs.graph import Add, Example, Graph, capture
from secateurs.graph.export import check_parameters
from secateurs.graph.replay import COMPARED
from secateurs.graph.untouched import keeping
from secateurs.paths.reach import Reachability, reach

_ROUNDING = 1e-3

# The largest relative difference of outputs that is accepted in float64.
_TOLERANCE = 1e-9

# Outputs that differ by less differ in digits that single precision lacks: any other fault of a
# compaction, such as a size that the code relies on, makes a larger difference.
_OTHER_DIGITS = 1e-4

# The record of a compaction: what was removed, what stayed and why, and how much the outputs
# changed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """One tensor of the model, before and after."""

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Dead channels that stay, and why."""

    why: str
    channels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Reported):
    """A smaller model, with a record of everything that was changed.

    Attributes:
        model: The same class with smaller tensors.
        narrowed: Every tensor that became smaller.
        new: Biases that the model did not have.
        kept: Dead channels that stay and why.
        idle: Blocks that add only a constant, and layers that no input reaches.
        resized: Attributes of the model's own modules that follow, with old and new value.
        parameters, macs: Before and after.
        difference: The largest relative difference of the outputs in `precision` on the inputs
            tried, at most `tolerance`.
        precision: float64; the model's own where its code does not run in float64, such as code
            that makes float32 tensors. `tolerance` is then 2000 units of rounding at least.
        rounding: The same in the model's own dtype, where moved constants are rounded once, on two
            inputs at a time; beyond 1e-3 float64 compares a batch, too.
    """

    model: nn.Module
    narrowed: tuple[Narrowed, ...]
    new: tuple[str, ...]
    resized: Mapping[str, tuple[int, int]]
    kept: tuple[Kept, ...]
    idle: tuple[str, ...]
    parameters: tuple[int, int]
    macs: tuple[Macs, Macs]
    difference: float
    tolerance: float
    rounding: float
    removed: int
    dead: int
    precision: str = "float64"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the model."""
        return {
            "parameters": list(self.parameters),
            "macs": [work.dense for work in self.macs],
            "difference": self.difference,
            "tolerance": self.tolerance,
            "precision": self.precision,
            "rounding": self.rounding,
            "dead": self.dead,
            "removed": self.removed,
            "narrowed": {t.name: [list(t.before), list(t.after)] for t in self.narrowed},
            "new": list(self.new),
            "resized": {name: list(sizes) for name, sizes in self.resized.items()},
            "kept": {kept.why: kept.channels for kept in self.kept},
            "idle": list(self.idle),
        }

    def __rich__(self) -> Group:
        before, after = self.macs
        counts = f"{self.parameters[0]:,} parameters became {self.parameters[1]:,}"
        share = _share(self.parameters[1], self.parameters[0])
        table = Table("weight", "shape", "compacted", title=f"{counts} ({share})")
        for heading in ("MACs", "left"):
            table.add_column(heading, justify="right")
        for old, new in zip(before.layers, after.layers, strict=True):
            shapes = ["×".join(map(str, layer.shape)) for layer in (old, new)]
            left = _share(new.dense, old.dense)
            table.add_row(escape(old.name), *shapes, f"{new.dense:,}", left)
        table.add_section()
        table.add_row("total", "", "", f"{after.dense:,}", _share(after.dense, before.dense))
        return Group(table, *self._notes())

    def _notes(self) -> list[str]:
        said = [
            f"{self.removed} of {self.dead} dead channels removed; outputs differ by "
            f"{self.difference:.1e} ({self.precision}, at most {self.tolerance:.0e} allowed), "
            f"{self.rounding:.1e} in the model's own dtype"
        ]
        said += [f"kept: {kept.channels} × {kept.why}" for kept in self.kept]
        said += [f"idle: {text}" for text in self.idle]
        if self.new:
            said.append(f"new: {', '.join(self.new)}")
        if self.resized:
            sizes = (f"{name} {old} → {new}" for name, (old, new) in self.resized.items())
            said.append(f"attributes that follow: {', '.join(sizes)}")
        if not self.removed:
            said.append("no gain: no channel can be removed")
        # rich would take a name in brackets for markup.
        return [escape(line) for line in said]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


# The model as it is read before a compaction, and smaller copies of it.


@dataclass(slots=True, kw_only=True)
class ReadModel:
    """The masked model in its own dtype and in float64, and what is known of its channels.

    read_in: the precision in which the model was traced.
    precision: that of `exact`: float64, or the model's own where its code does not run in that.
    """

    original: nn.Module
    sparse: AllOutputs
    exact: AllOutputs
    graph: Graph
    read_in: torch.dtype
    precision: torch.dtype
    state: dict[str, Tensor]
    found: Labelled
    known: Reachability


def read_model(model: nn.Module, example: Example, *, in_float64: bool = False) -> ReadModel:
    """A private copy of the model, and what is known of its channels.

    in_float64: trace the float64 model, not the one in the model's own precision.
    """
    copy = private_copy(model, error=ShipError)
    # In the model's own precision: what was compared with its graph is not compared again.
    _restore_(copy, model)
    sparse = AllOutputs(copy)
    # What is decided and compared must not depend on
    # the rounding of the model's own dtype.
    exact = AllOutputs(private_copy(copy, error=ShipError).double().cpu())
    _pick_experts_(exact.inner)
    for ours in (sparse, exact):
        COMPARED.share(ours, model)
    graph = None if in_float64 else _graph_in_own_precision(sparse, example)
    read_in = torch.float64 if graph is None else torch.float32
    precision = torch.float64
    if graph is None:
        try:
            graph = capture(exact, example, opaque=True)
        except (CaptureError, RuntimeError):
            # Code that makes float32 tensors, or a kernel that takes no others: in its own
            # precision the model has run, or says why it does not.
            graph = capture(sparse, example, opaque=True)
            exact = AllOutputs(private_copy(copy, error=ShipError).cpu())
            COMPARED.share(exact, model)
            read_in = precision = _own_precision(model)
    found = label_channels(graph, exact)
    state = {name: value.detach() for name, value in graph.state(exact).items()}
    return ReadModel(
        original=model,
        sparse=sparse,
        exact=exact,
        graph=graph,
        read_in=read_in,
        precision=precision,
        state=state,
        found=found,
        known=reach(graph, state),
    )


def _pick_experts_(model: nn.Module) -> None:
    """Let the experts of transformers run on matrices picked by index: the same function as by
    their usual kernel, which takes no float64."""
    for module in model.modules():
        held: Any = vars(module).get("config")
        if getattr(held, "_experts_implementation", None) == "grouped_mm":
            held._experts_implementation = "batched_mm"


def _graph_in_own_precision(sparse: AllOutputs, example: Example) -> Graph | None:
    """The graph of a float32 model, which usually is that of its float64 copy, too; None where it
    cannot be.

    `prune_channels_` or an earlier call has usually read this model already: then nothing is
    traced. If its code, or a number in it, depends on the precision, the comparison of the outputs
    shows it, and the float64 copy is read after all.
    """
    tensors = [*sparse.parameters(), *sparse.buffers()]
    if {t.dtype for t in tensors if t.is_floating_point()} != {torch.float32}:
        return None
    graph = capture(sparse, example, opaque=True)
    # A tensor that the code makes in single precision has seven digits, not sixteen. Plain numbers
    # are read in float64.
    return None if torch.float32 in {value.dtype for value in graph.constants.values()} else graph


def shrunken_copy(
    model: AllOutputs, read: ReadModel, choice: Removal, small: Mapping[str, Tensor]
) -> AllOutputs:
    """A smaller copy of the model."""
    copy = AllOutputs(private_copy(model.inner, error=ShipError))
    shrink_(copy, read.found, small, choice.resized, choice.folds.fresh)
    return copy


# Turns a sparse model into a smaller one.


@torch.inference_mode(False)  # which channels are used is found by a gradient
@torch.no_grad()
def compact(
    model: nn.Module,
    example: Example,
    *,
    multiple_of: int = 1,
    progress: Progress | None = None,
) -> nn.Module:
    """The model without its dead channels and neurons: the same class, smaller tensors, the same
    outputs.

    A channel is dead when no input reaches it or no output uses it, by the zeros of the weights.
    What dead channels emit (a bias behind zero weights) moves into the layers that read it,
    exactly, at every pixel and resolution. The outputs of both models are compared in float64 on
    every call (in the model's own precision where its code runs in no other, and the record says
    so). `.compaction` of the result is the record: print it.

    Args:
        model: any module that `secateurs.capture` reads, in evaluation mode; it is left as it is.
        example: an input of the right shape; its values do not matter.
        multiple_of: round the channels of every layer up to a multiple, which suits some
        processors.
        progress: called with one line for each step.

    Raises:
        UnsupportedOperation: the graph does not cover an operator; it is named.
        ShipError: the model's code counts on sizes that the graph does not show, so that the
        smaller one differs.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> _ = model[0].weight.data[1].zero_()
    >>> small = compact(model, torch.zeros(1, 3))
    >>> small[0].weight.shape, small.compaction.parameters
    (torch.Size([3, 3]), (26, 20))
    """
    if multiple_of < 1:
        raise ArgumentError(f"multiple_of={multiple_of!r} is below 1; with 1 nothing is rounded.")
    refuse_wrapped(model)
    check_parameters(model)
    # Copies run below; what they share with the model, such as a class or a closure, is kept.
    with keeping(model) as held, show_progress(progress, "compact") as say:
        result = _compaction(model, held, example, multiple_of, say)
    small = result.model
    small.compaction = result  # type: ignore[assignment]
    return small


def _compaction(
    model: nn.Module, held: str, example: Example, multiple_of: int, say: Progress
) -> Compaction:
    say("reading the model")
    read = read_model(model, example)
    done, apart = _cut_and_compare(read, held, example, multiple_of, say)
    if done is None and read.read_in != read.precision:
        # The model's code may do something else in each precision.
        say("reading the model in float64")
        read = read_model(model, example, in_float64=True)
        done, apart = _cut_and_compare(read, held, example, multiple_of, say)
    if done is not None:
        return done
    raise ShipError(
        f"the compacted {type(model).__name__} would differ from the model by {apart:.1e}: its "
        "code relies on sizes that are not in its operators"
        + (f", or on the batch: {read.graph.alone}" if read.graph.alone else "")
        + ". Nothing was changed; write the sizes in terms of the tensors' own shapes."
    )


def _cut_and_compare(
    read: ReadModel, held: str, example: Example, multiple_of: int, say: Progress
) -> tuple[Compaction | None, float]:
    """Cut more and more carefully until the outputs are those of the model; None, and how far they
    are apart, where that does not help.
    """
    model, limit = read.original, _limit(read)
    options: RemovalOptions | None = RemovalOptions(multiple_of=multiple_of, hopeful=True)
    while options is not None:
        say("choosing the channels that go")
        choice = removal(read.exact, read.found, read.known, read.state, options)
        say("cutting them out")
        small = _narrow_tensors(read, choice)
        say(f"comparing the outputs in {_text(read.precision)}")
        tried = shrunken_copy(read.exact, read, choice, small)
        try:
            apart = difference(read.exact.inner, tried.inner, example)
        # The smaller model does not even run: its code relies on the old sizes. Or the model does
        # not run in float64, which is said where it is read in that.
        except Exception:
            apart = float("inf")
        if apart <= limit:
            # Checked once per model, cut and input size: whether gradients change anything does not
            # depend on weights.
            sizes = [(name, tuple(value.shape)) for name, value in small.items()]
            cut = f"cut {held} {sizes} {[tuple(t.shape) for t in pytree.tree_leaves(example)]}"
            known = COMPARED.is_done(model, cut)
            done = account(
                read,
                choice,
                small,
                example,
                apart=apart,
                tolerance=limit,
                differ=difference_in_a_batch
                if known
                else partial(difference_in_every_mode, alike=not read.graph.alone),
            )
            # Rounding alone differs by far less; above it, float64 decides for batches as well.
            if not done.rounding <= _ROUNDING:
                apart = difference_in_a_batch(read.exact.inner, tried.inner, example)
            if apart <= limit:
                done = _check_own_precision(done, model)
                COMPARED.note(model, cut)
                say("done")
                return done, apart
        # Read in the precision in which it is compared, it may be less.
        if read.read_in != read.precision and apart < _OTHER_DIGITS:
            break
        options = _more_careful(options, tried, example)
    return None, apart


@torch.inference_mode(False)
@torch.no_grad()
def idle_blocks(model: nn.Module, example: Example) -> tuple[str, ...]:
    """Branches that add only a constant and layers that carry nothing, as the weights are now."""
    return idle(read_model(model, example))


def _own_precision(model: nn.Module) -> torch.dtype:
    """The coarsest dtype of the parameters."""
    floating = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def _rounding_of(dtype: torch.dtype) -> float:
    """How far outputs may differ that are computed in this dtype: 2000 units of rounding."""
    return min(0.5, 2000 * torch.finfo(dtype).eps)


def _limit(read: ReadModel) -> float:
    """How far outputs may differ in the precision in which they are compared."""
    return _TOLERANCE if read.precision == torch.float64 else _rounding_of(read.precision)


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_own_precision(done: Compaction, model: nn.Module) -> Compaction:
    """Refuse a model whose code does something else in its own precision than in float64."""
    if done.rounding <= max(_rounding_of(_own_precision(model)), done.tolerance):
        return done
    raise ShipError(
        f"{type(model).__name__} and its compacted form are equal in float64 and differ by "
        f"{done.rounding:.1e} in the model's own precision: its code depends on the precision it "
        "runs in, or on whether gradients are recorded. Nothing was changed; make forward compute "
        "the same in every case."
    )


def _more_careful(
    options: RemovalOptions, tried: AllOutputs, example: Example
) -> RemovalOptions | None:
    """The options to try after a failure, each more cautious; None after the last.

    First all attributes that could be meant are set in the class of modules whose code failed; then
    it keeps its sizes, then so does every reshape that asks for the old sizes, and at last
    everything that passes through any reshape.
    """
    if options.hopeful:
        failing = failing_module(tried.inner, example)
        if failing is not None:
            kind = type(tried.inner.get_submodule(failing)).__name__
            if kind not in options.contested:
                return replace(options, contested=options.contested | {kind})
            if kind not in options.failed:
                return replace(options, failed=options.failed | {kind})
        return replace(options, hopeful=False)
    return replace(options, rearranged=False) if options.rearranged else None


def _narrow_tensors(read: ReadModel, choice: Removal) -> dict[str, Tensor]:
    """The tensors that change, in float64."""
    changed = apply_folds(read.state, choice.folds)
    for name, labels in choice.folds.fresh.items():
        # A new bias is narrowed with its layer, like
        # the tensors that were there before.
        read.found.dims[name, 0] = labels
    # Folds count channels at full width, so they come before the narrowing.
    small = narrowed_state(read.found, choice.gone, {**read.state, **changed})
    names = {name for name, _ in read.found.dims} | set(changed)
    # In the model's order: that of a set changes from one process to the next.
    return {
        name: tensor
        for name, tensor in small.items()
        if name in names and (name in changed or tensor.shape != read.state[name].shape)
    }


# The record: the smaller model in its own dtype, and everything that is reported about it.


def account(
    read: ReadModel,
    choice: Removal,
    small: Mapping[str, Tensor],
    example: Example,
    *,
    apart: float,
    tolerance: float,
    differ: Callable[[nn.Module, nn.Module, Example], float],
) -> Compaction:
    """The record of a compaction: the smaller model in its own dtype, and everything reported about
    it.

    differ: how far two models differ in the model's own precision.
    """
    model = shrunken_copy(read.sparse, read, choice, small).inner
    _restore_(model, read.original)
    before = macs(read.exact, read.graph)
    count = (
        sum(p.numel() for p in read.original.parameters()),
        sum(p.numel() for p in model.parameters()),
    )
    return Compaction(
        model=model,
        narrowed=tuple(
            Narrowed(
                name=own_name(n),
                before=tuple(read.state[n].shape),
                after=tuple(t.shape),
            )
            for n, t in small.items()
            if n in read.state and t.shape != read.state[n].shape
        ),
        new=tuple(own_name(name) for name in choice.folds.fresh),
        resized={
            own_name(f"{one.module}.{one.attribute}"): (one.before, one.after)
            for one in choice.resized
        },
        kept=tuple(
            Kept(why=why, channels=len(labels))
            for why, labels in (*choice.kept.items(), *choice.pinned.items())
        ),
        idle=idle(read),
        parameters=count,
        macs=(before.named(own_name), _after(before, read.state, small).named(own_name)),
        difference=apart,
        tolerance=tolerance,
        rounding=differ(read.sparse.inner, model, example),
        removed=_channels(read.found, choice.gone),
        dead=_channels(read.found, choice.dead) + _count_pinned(read.found, choice),
        precision=_text(read.precision),
    )


def _restore_(model: nn.Module, original: nn.Module) -> None:
    """Parameters require a gradient where they did."""
    wanted = {
        name: p.requires_grad for name, p in original.named_parameters(remove_duplicate=False)
    }
    # A new bias has no counterpart: it is trained if anything in the model is.
    anything = any(wanted.values())
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameter.requires_grad_(wanted.get(name, anything))


def _channels(found: Labelled, marks: Tensor) -> int:
    """How many rows of weights carry these labels."""
    return sum(int(marks[found.groups.roots(use.out)].sum()) for use in found.uses)


def _count_pinned(found: Labelled, choice: Removal) -> int:
    """How many rows of weights carry dead labels that are tied to what stays."""
    dead = torch.zeros(len(found.groups), dtype=torch.bool)
    for labels in choice.pinned.values():
        dead[labels] = True
    return sum(int(dead[found.groups.unpinned(use.out)].sum()) for use in found.uses)


def _after(before: Macs, state: Mapping[str, Tensor], small: Mapping[str, Tensor]) -> Macs:
    layers = []
    for layer in before.layers:
        old = state[layer.name]
        new = small.get(layer.name, old)
        # A computed weight is of another shape than the
        # tensor behind it: its line keeps its own.
        shape = tuple(new.shape) if layer.shape == tuple(old.shape) else layer.shape
        dense = round(layer.dense * new.numel() / max(1, old.numel()))
        nonzero = round(layer.uses * int(new.count_nonzero()))
        layers.append(replace(layer, shape=shape, dense=dense, nonzero=nonzero))
    return Macs(layers=tuple(layers))


def idle(read: ReadModel) -> tuple[str, ...]:
    """Blocks whose branch adds a constant, and layers that carry nothing."""
    # A dictionary, so that a layer used twice is named once and the order stays.
    said: dict[str, None] = {}
    for node in read.graph.nodes:
        if isinstance(node, Add):
            for name in node.inputs:
                if not bool(read.known.arrive[name].any()):
                    said[_idle_branch(read, node, name)] = None
    for use in read.found.uses:
        live = read.known.arrive[use.node.name] & read.known.used[use.node.name]
        if not bool(live.any()):
            said[f"{own_name(use.weight.names[0])} carries nothing from input to output"] = None
    if not bool(read.known.arrive[read.graph.output].any()):
        said["the output does not depend on the input"] = None
    return tuple(said)


def _idle_branch(read: ReadModel, node: Add, name: str) -> str:
    what = "adds a constant" if bool(read.known.constant[name].any()) else "adds nothing"
    return f"a branch of {own_name(node.place.module) or 'the model itself'} {what}"
