"""`compact`: a sparse model without its dead channels, as a module of the same class with smaller
tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, ScoreError, ShipError
from secateurs.graph import Add, Example, Graph, capture
from secateurs.masks import apply_
from secateurs.parameters import Params, refuse_wrapped
from secateurs.scores.copies import private
from secateurs.ship.channels import regrouped
from secateurs.ship.compaction.folding import folded
from secateurs.ship.compaction.known import Reach
from secateurs.ship.compaction.labels import Labelled, labelled
from secateurs.ship.compaction.marks import full
from secateurs.ship.compaction.narrow import narrow_, resize_
from secateurs.ship.compaction.outputs import AllOutputs, own_name
from secateurs.ship.compaction.reach import reach
from secateurs.ship.compaction.removal import (
    Options,
    Removal,
    narrowed_state,
    removal,
)
from secateurs.ship.compaction.result import Compaction, Kept, Narrowed
from secateurs.ship.compaction.verify import difference
from secateurs.ship.macs import LayerMacs, Macs, macs

Progress = Callable[[str], None]


def compact(
    model: nn.Module,
    example: Example,
    *,
    masks: Params | None = None,
    multiple_of: int = 1,
    tolerance: float = 1e-9,
    progress: Progress | None = None,
) -> nn.Module:
    """The model without its dead channels and neurons: the same class, smaller tensors, the same
    outputs.

    A channel is dead when no input reaches it or no output uses it, by the zeros of the weights.
    What dead channels emit (a bias behind zero weights) moves into the layers that read it,
    exactly, at every pixel and resolution. The outputs of both models are compared in float64 on
    every call. The account is at `.compaction` of the result: print it.

    Args:
        model: any module that `secateurs.capture` reads, in evaluation mode; it is left as it is.
        example: an input of the right shape; its values do not matter.
        masks: masks by parameter name that are not applied yet.
        multiple_of: round the channels of every layer up to a multiple, which suits some
        processors.
        tolerance: the largest relative difference of outputs accepted in float64.
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
    result = compaction(
        model,
        example,
        masks=masks,
        multiple_of=multiple_of,
        tolerance=tolerance,
        progress=progress,
    )
    small = result.model
    small.compaction = result  # type: ignore[assignment]
    return small


@torch.inference_mode(False)  # following use backwards takes a gradient
@torch.no_grad()
def compaction(
    model: nn.Module,
    example: Example,
    *,
    masks: Params | None = None,
    multiple_of: int = 1,
    tolerance: float = 1e-9,
    progress: Progress | None = None,
) -> Compaction:
    """What `compact` does, as the account with the smaller model in it."""
    if multiple_of < 1:
        raise ArgumentError(
            f"multiple_of={multiple_of!r} is below 1; 1 rounds nothing."
        )
    refuse_wrapped(model)
    say = progress or (lambda text: None)
    say("reading the model")
    read = _read(model, example, masks or {})
    # First try to cut through reshapes in the model's code, too. If the outputs then
    # differ, leave the channels that pass through one.
    for rearranged in (True, False):
        say("choosing the channels that go")
        options = Options(multiple_of=multiple_of, rearranged=rearranged)
        choice = removal(read.exact, read.found, read.known, read.state, options)
        say("cutting them out")
        small = _cut(read, choice)
        say("comparing the outputs in float64")
        try:
            apart = difference(
                read.exact.inner,
                _applied(read.exact, read, choice, small).inner,
                example,
            )
        # The smaller model does not even run: its code counts on the old sizes.
        except (RuntimeError, ValueError, IndexError, TypeError):
            apart = float("inf")
        if apart <= tolerance:
            say("done")
            return _account(
                read, choice, small, example, apart=apart, tolerance=tolerance
            )
    raise ShipError(
        f"the compacted {type(model).__name__} would differ from the model by {apart:.1e}: its "
        "code relies on sizes that are not in its operators. Nothing was changed; write the sizes "
        "in terms of the tensors' own shapes."
    )


@dataclass(slots=True, kw_only=True)
class _Model:
    """The masked model in its own dtype and in float64, and what is known of its channels."""

    original: nn.Module
    sparse: AllOutputs
    exact: AllOutputs
    graph: Graph
    state: dict[str, Tensor]
    found: Labelled
    known: Reach


def _read(model: nn.Module, example: Example, masks: Params) -> _Model:
    sparse = _copy(model)
    if masks:
        apply_(sparse, masks)
    # What is decided and compared must not depend on the rounding of the model's own
    # dtype.
    exact = AllOutputs(_copy(sparse).double().cpu())
    graph = capture(exact, example)
    found = labelled(graph, regrouped=lambda node: regrouped(exact, node))
    state = {name: value.detach() for name, value in graph.state(exact).items()}
    return _Model(
        original=model,
        sparse=AllOutputs(sparse),
        exact=exact,
        graph=graph,
        state=state,
        found=found,
        known=reach(found, state),
    )


def _copy(model: nn.Module) -> nn.Module:
    try:
        return private(model)
    except ScoreError as error:
        raise ShipError(
            f"{type(model).__name__} cannot be copied, and the input model is to stay as it is: "
            f"{error.__cause__}."
        ) from error


def _cut(read: _Model, choice: Removal) -> dict[str, Tensor]:
    """The tensors that change, in float64."""
    changed = folded(read.state, choice.folds)
    for name, labels in choice.folds.fresh.items():
        # A new bias is narrowed with its layer, like the tensors that were there
        # before.
        read.found.dims[name, 0] = labels
    # Folds count channels at full width, so they come before the narrowing.
    small = narrowed_state(read.found, choice.gone, {**read.state, **changed})
    names = {name for name, _ in read.found.dims} | set(changed)
    return {
        name: small[name]
        for name in names
        if name in small
        and (name in changed or small[name].shape != read.state[name].shape)
    }


def _applied(
    model: AllOutputs, read: _Model, choice: Removal, small: Mapping[str, Tensor]
) -> AllOutputs:
    """A smaller copy of the model."""
    copy = AllOutputs(_copy(model.inner))
    narrow_(copy, small, set(choice.folds.fresh))
    resize_(copy, read.found)
    return copy


def _account(
    read: _Model,
    choice: Removal,
    small: Mapping[str, Tensor],
    example: Example,
    *,
    apart: float,
    tolerance: float,
) -> Compaction:
    model = _applied(read.sparse, read, choice, small).inner
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
        kept=tuple(
            Kept(why=why, channels=len(labels)) for why, labels in choice.kept.items()
        ),
        idle=_idle(read),
        parameters=count,
        macs=(_named(before.layers), _named(_after(before, read.state, small))),
        difference=apart,
        tolerance=tolerance,
        rounding=difference(read.sparse.inner, model, example),
        removed=_channels(read.found, choice.gone),
        dead=_channels(read.found, choice.dead),
    )


def _restore_(model: nn.Module, original: nn.Module) -> None:
    """Parameters require a gradient where they did."""
    wanted = {
        name: p.requires_grad
        for name, p in original.named_parameters(remove_duplicate=False)
    }
    # A new bias has no counterpart: it trains where anything of the model trains.
    anything = any(wanted.values())
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameter.requires_grad_(wanted.get(name, anything))


def _channels(found: Labelled, marks: Tensor) -> int:
    """How many rows of weights carry these labels."""
    return sum(int(marks[found.groups.roots(use.out)].sum()) for use in found.uses)


def _after(
    before: Macs, state: Mapping[str, Tensor], small: Mapping[str, Tensor]
) -> list[LayerMacs]:
    return [
        _smaller(layer, state[layer.name], small.get(layer.name, state[layer.name]))
        for layer in before.layers
    ]


def _smaller(layer: LayerMacs, old: Tensor, new: Tensor) -> LayerMacs:
    # A computed weight is of another shape than the tensor behind it: its line keeps
    # its own.
    shape = tuple(new.shape) if layer.shape == tuple(old.shape) else layer.shape
    dense = round(layer.dense * new.numel() / max(1, old.numel()))
    return replace(
        layer,
        shape=shape,
        dense=dense,
        nonzero=round(layer.uses * int(new.count_nonzero())),
    )


def _named(layers: "tuple[LayerMacs, ...] | list[LayerMacs]") -> Macs:
    return Macs(
        layers=tuple(replace(layer, name=own_name(layer.name)) for layer in layers)
    )


def _idle(read: _Model) -> tuple[str, ...]:
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
            said[
                f"{own_name(use.weight.names[0])} carries nothing from input to output"
            ] = None
    if not bool(read.known.arrive[read.graph.output].any()):
        said["the output does not depend on the input"] = None
    return tuple(said)


def _idle_branch(read: _Model, node: Add, name: str) -> str:
    value = full(read.known.constant[name], read.graph.by_name[name].shape)
    what = "adds nothing" if not bool(value.any()) else "adds a constant"
    return f"a branch of {own_name(node.place.module) or 'the model itself'} {what}"
