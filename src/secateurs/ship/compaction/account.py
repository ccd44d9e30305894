"""The account of a compaction: what went, what stayed and why, before and after."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from secateurs.graph import Add, Example
from secateurs.ship.compaction.labels import Labelled
from secateurs.ship.compaction.marks import full
from secateurs.ship.compaction.model import ReadModel, applied
from secateurs.ship.compaction.outputs import own_name
from secateurs.ship.compaction.removal import (
    Removal,
)
from secateurs.ship.compaction.result import Compaction, Kept, Narrowed
from secateurs.ship.compaction.verify import difference_in_every_mode
from secateurs.ship.macs import macs
from secateurs.ship.work import LayerMacs, Macs


def account(
    read: ReadModel,
    choice: Removal,
    small: Mapping[str, Tensor],
    example: Example,
    *,
    apart: float,
    tolerance: float,
) -> Compaction:
    """The smaller model in its own dtype, with everything that is told of it."""
    model = applied(read.sparse, read, choice, small).inner
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
        macs=(_named(before.layers), _named(_after(before, read.state, small))),
        difference=apart,
        tolerance=tolerance,
        rounding=difference_in_every_mode(read.sparse.inner, model, example),
        removed=_channels(read.found, choice.gone),
        dead=_channels(read.found, choice.dead) + _pinned(read.found, choice),
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


def _pinned(found: Labelled, choice: Removal) -> int:
    """How many rows of weights carry dead labels that are tied to what stays."""
    dead = torch.zeros(len(found.groups), dtype=torch.bool)
    for labels in choice.pinned.values():
        dead[labels] = True
    return sum(int(dead[found.groups.unpinned(use.out)].sum()) for use in found.uses)


def _after(
    before: Macs, state: Mapping[str, Tensor], small: Mapping[str, Tensor]
) -> list[LayerMacs]:
    return [
        _smaller(layer, state[layer.name], small.get(layer.name, state[layer.name]))
        for layer in before.layers
    ]


def _smaller(layer: LayerMacs, old: Tensor, new: Tensor) -> LayerMacs:
    # A computed weight is of another shape than the
    # tensor behind it: its line keeps its own.
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
            said[
                f"{own_name(use.weight.names[0])} carries nothing from input to output"
            ] = None
    if not bool(read.known.arrive[read.graph.output].any()):
        said["the output does not depend on the input"] = None
    return tuple(said)


def _idle_branch(read: ReadModel, node: Add, name: str) -> str:
    value = full(read.known.constant[name], read.graph.by_name[name].shape)
    what = "adds nothing" if not bool(value.any()) else "adds a constant"
    return f"a branch of {own_name(node.place.module) or 'the model itself'} {what}"
