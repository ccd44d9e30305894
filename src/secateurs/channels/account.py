"""The account of a compaction: what went, what stayed and why, before and after."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from secateurs.channels.labels import AllOutputs, Labelled, full, labelled, own_name
from secateurs.channels.macs import LayerMacs, Macs, macs
from secateurs.channels.prune import regrouped
from secateurs.channels.reach import Reach, reach
from secateurs.channels.removal import Removal, set_
from secateurs.channels.verify import narrow_, resize_
from secateurs.errors import ScoreError, ShipError
from secateurs.graph import Add, Example, Graph, capture
from secateurs.graph.replay import COMPARED
from secateurs.masks import apply_
from secateurs.parameters import Params
from secateurs.printing import Printed
from secateurs.scores.scorer import private

# The model as it is read before a compaction, and smaller copies of it.


@dataclass(slots=True, kw_only=True)
class ReadModel:
    """The masked model in its own dtype and in float64, and what is known of its channels."""

    original: nn.Module
    sparse: AllOutputs
    exact: AllOutputs
    graph: Graph
    state: dict[str, Tensor]
    found: Labelled
    known: Reach


def read_model(model: nn.Module, example: Example, masks: Params) -> ReadModel:
    """A private copy with the masks applied, and what is known of its channels."""
    sparse = copied(model)
    if masks:
        apply_(sparse, masks)
    # What is decided and compared must not depend on
    # the rounding of the model's own dtype.
    exact = AllOutputs(copied(sparse).double().cpu())
    COMPARED.share(exact, model)
    try:
        graph = capture(exact, example, opaque=True)
    except RuntimeError as error:
        raise ShipError(
            f"{type(model).__name__} does not run in float64, in which compaction decides and"
            f" compares ({error}). Its code or its library names single precision somewhere: let"
            " it follow the dtype of its weights, or bring the library up to date."
        ) from error
    found = labelled(graph, regrouped=lambda node: regrouped(exact, node))
    state = {name: value.detach() for name, value in graph.state(exact).items()}
    return ReadModel(
        original=model,
        sparse=AllOutputs(sparse),
        exact=exact,
        graph=graph,
        state=state,
        found=found,
        known=reach(found, state),
    )


def copied(model: nn.Module) -> nn.Module:
    """A copy of the model, or an error that says why there is none."""
    try:
        return private(model)
    except ScoreError as error:
        raise ShipError(
            f"{type(model).__name__} cannot be copied, and the input model is to stay as it is: "
            f"{error.__cause__}."
        ) from error


def applied(
    model: AllOutputs, read: ReadModel, choice: Removal, small: Mapping[str, Tensor]
) -> AllOutputs:
    """A smaller copy of the model."""
    copy = AllOutputs(copied(model.inner))
    narrow_(copy, small, set(choice.folds.fresh))
    resize_(copy, read.found)
    set_(copy, choice.resized)
    return copy


# What a compaction did: what went, what stayed and why, and how far the outputs are from what they
# were.


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
class Compaction(Printed):
    """A smaller model and the account of how it came about.

    Attributes:
        model: The same class with smaller tensors.
        narrowed: Every tensor that became smaller.
        new: Biases that the model did not have.
        kept: Dead channels that stay and why.
        idle: Blocks that add only a constant, and layers that no input reaches.
        resized: Attributes of the model's own modules that follow, with old and new value.
        parameters, macs: Before and after.
        difference: The largest relative difference of the outputs in float64 on the inputs tried,
            at most `tolerance`.
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

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the model."""
        return {
            "parameters": list(self.parameters),
            "macs": [work.dense for work in self.macs],
            "difference": self.difference,
            "tolerance": self.tolerance,
            "rounding": self.rounding,
            "dead": self.dead,
            "removed": self.removed,
            "narrowed": {t.name: [list(t.before), list(t.after)] for t in self.narrowed},
            "new": list(self.new),
            "resized": {name: list(sizes) for name, sizes in self.resized.items()},
            "kept": {kept.why: kept.channels for kept in self.kept},
            "idle": list(self.idle),
        }

    def to_json(self) -> str:
        """The account as a JSON object."""
        # JSON has no NaN: better an error than a file that strict readers refuse.
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __rich__(self) -> Group:
        before, after = self.macs
        table = Table("weight", "shape", "compacted", title=self._title())
        for heading in ("MACs", "left"):
            table.add_column(heading, justify="right")
        for old, new in zip(before.layers, after.layers, strict=True):
            table.add_row(*_row(old, new))
        table.add_section()
        table.add_row("total", "", "", f"{after.dense:,}", _share(after.dense, before.dense))
        return Group(table, *self._notes())

    def _title(self) -> str:
        old, new = self.parameters
        return f"{old:,} parameters became {new:,} ({_share(new, old)})"

    def _notes(self) -> list[str]:
        said = [
            f"{self.removed} of {self.dead} dead channels removed; outputs differ by "
            f"{self.difference:.1e} (float64, at most {self.tolerance:.0e} allowed), "
            f"{self.rounding:.1e} in the model's own dtype"
        ]
        said += [f"kept: {kept.channels} × {kept.why}" for kept in self.kept]
        said += [f"idle: {text}" for text in self.idle]
        if self.new:
            said.append(f"new: {', '.join(self.new)}")
        if self.resized:
            said.append(f"attributes that follow: {_followed(self.resized)}")
        if not self.removed:
            said.append("no gain: no channel can be removed")
        # rich would take a name in brackets for markup.
        return [escape(line) for line in said]


def _followed(resized: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in resized.items())


def _row(old: LayerMacs, new: LayerMacs) -> tuple[str, ...]:
    sizes = ["×".join(map(str, layer.shape)) for layer in (old, new)]
    return (
        escape(old.name),
        sizes[0],
        sizes[1],
        f"{new.dense:,}",
        _share(new.dense, old.dense),
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


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
    """The smaller model in its own dtype, with everything that is told of it.

    differ: how far two models differ in the model's own precision.
    """
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
        rounding=differ(read.sparse.inner, model, example),
        removed=_channels(read.found, choice.gone),
        dead=_channels(read.found, choice.dead) + _pinned(read.found, choice),
    )


def _restore_(model: nn.Module, original: nn.Module) -> None:
    """Parameters require a gradient where they did."""
    wanted = {
        name: p.requires_grad for name, p in original.named_parameters(remove_duplicate=False)
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
    return Macs(layers=tuple(replace(layer, name=own_name(layer.name)) for layer in layers))


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
    value = full(read.known.constant[name], read.graph.by_name[name].shape)
    what = "adds nothing" if not bool(value.any()) else "adds a constant"
    return f"a branch of {own_name(node.place.module) or 'the model itself'} {what}"
