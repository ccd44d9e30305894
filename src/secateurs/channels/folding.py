"""Moves the constants of removed channels into a bias, a running mean, or one channel for all of
them.

A constant read by a layer without border is a bias. Read through zero padding it is not: there one
constant channel stays, and the weights of the others are added to its own in proportion (c_j/c ·
w_j), which is exact at every pixel of every resolution.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from secateurs.channels.labels import Labelled, LayerUse, own_name
from secateurs.graph import Affine, Graph, Named, State
from secateurs.paths.reach import Reachability, rows

# What is added to which tensors when constant channels are removed, and the tensors afterwards.


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Input channels of a weight that are removed, the channel that stands for them, and its factor
    for each.
    """

    dim: int
    index: Tensor
    factors: Tensor
    keeper: int


@dataclass(slots=True, kw_only=True)
class Folds:
    """What is added to which tensors, and what cannot go and why.

    Attributes:
        added: Additions to vectors by name.
        columns: What is added to a channel of a weight.
        fresh: Biases that are new, with the labels of their entries.
        kept: Labels that have to stay, with the reason.
    """

    added: dict[str, Tensor] = field(default_factory=dict)
    columns: dict[str, Columns] = field(default_factory=dict)
    fresh: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, why: str, labels: Tensor) -> None:
        """These labels stay."""
        self.kept[why] = torch.cat([self.kept.get(why, labels[:0]), labels])


def apply_folds(state: State, result: Folds) -> dict[str, Tensor]:
    """The tensors that the folds change, still at full width."""
    changed: dict[str, Tensor] = {}
    for name, columns in result.columns.items():
        weight = state[name].clone()
        # A view: the addition below writes to the weight.
        channels = weight.movedim(columns.dim, -1)
        channels[..., columns.keeper] += (channels[..., columns.index] * columns.factors).sum(-1)
        changed[name] = weight
    for name, addition in result.added.items():
        before = torch.zeros_like(addition) if name in result.fresh else state[name]
        changed[name] = before + addition
    return changed


# Which tensor can take a constant: a bias, the running mean behind it, or a new bias.


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tensor that can take a constant: bias or running mean (with sign −1), or a new bias."""

    name: str
    sign: float = 1.0
    new: bool = False


def target_of(model: nn.Module, graph: Graph, uses: list[LayerUse]) -> Target | None:
    """The layer's bias, else the running mean of its batch norm, else a new bias."""
    nodes = {use.node.name for use in uses}
    targets = {_target_of_one(model, graph, use.node, nodes) for use in uses}
    return targets.pop() if len(targets) == 1 else None


def _target_of_one(model: nn.Module, graph: Graph, node: Affine, nodes: set[str]) -> Target | None:
    if node.bias is not None:
        return _own_bias(graph, node, nodes)
    after = [graph.by_name[name] for name in graph.consumers[node.name]]
    if len(after) == 1 and isinstance(after[0], Affine) and after[0].bias is not None:
        follower, read = after[0], after[0].bias.names
        mean = next((name for name in read if _is_mean(model, name)), None)
        # A batch norm subtracts its running mean, hence the sign; another reader would
        # be shifted, too.
        if mean is not None and _readers(graph, mean) == {follower.name}:
            return Target(name=mean, sign=-1.0)
        if (
            follower.weight is None
            and (own := _own_bias(graph, follower, {follower.name})) is not None
        ):
            return own
    return _new_bias(model, node)


def _own_bias(graph: Graph, node: Affine, nodes: set[str]) -> Target | None:
    """The bias of a node, when it is a parameter that nobody else reads."""
    name = None if node.bias is None else node.bias.direct
    if name is None or len(graph.parameters.get(name, ())) != 1:
        return None
    return Target(name=name) if _readers(graph, name) <= nodes else None


def _new_bias(model: nn.Module, node: Affine) -> Target | None:
    """A layer of PyTorch's own that was made without a bias can be given one."""
    owner = model.get_submodule(node.place.module)
    plain = isinstance(owner, nn.Linear | nn.modules.conv._ConvNd) and owner.bias is None
    direct = "" if node.weight is None else str(node.weight.direct)
    mine = dict(model.named_parameters(remove_duplicate=False)).get(direct)
    # Only where the module's own weight is the one in use
    # is it sure that its forward adds `bias`.
    if not plain or mine is None or getattr(owner, "weight", None) is not mine:
        return None
    return Target(name=f"{node.place.module}.bias", new=True)


def _is_mean(model: nn.Module, name: str) -> bool:
    """Whether a tensor is the running mean of a batch norm."""
    path, _, leaf = name.rpartition(".")
    if leaf != "running_mean":
        return False
    # The type decides: any module may call a buffer of its own running_mean.
    return isinstance(model.get_submodule(path), nn.modules.batchnorm._NormBase)


def _readers(graph: Graph, name: str) -> set[str]:
    """The nodes that read a tensor."""
    return {
        node.name
        for node in graph.nodes
        if isinstance(node, Affine)
        for source in (node.weight, node.bias)
        if source is not None and name in source.names
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one layer reads of removed channels: which columns, their constants, and which it
    needs."""

    use: LayerUse
    labels: Tensor
    values: Tensor
    gone: Tensor
    needed: Tensor


def folds(model: nn.Module, found: Labelled, known: Reachability, gone: Tensor) -> Folds:
    """Where every constant of the labels in `gone` (a truth value per label) goes."""
    result = Folds()
    by_weight: dict[tuple[str, ...], list[Reading]] = {}
    for use in found.uses:
        # In a grouped layer, inputs and outputs of a group go together: nothing is left to read the
        # constant.
        if use.axes.groups == 1:
            reading = _reading(use, found, known, gone)
            # By weight, because one fold serves all uses of a shared weight.
            by_weight.setdefault(use.weight.names, []).append(reading)
    for readings in by_weight.values():
        if any(bool(reading.needed.any()) for reading in readings):
            _fold(model, found, known, readings, result)
    return result


def _reading(use: LayerUse, found: Labelled, known: Reachability, gone: Tensor) -> Reading:
    axes, count = use.axes, use.into.numel()
    labels = found.groups.roots(use.into)
    constants = rows(known.constant[use.x], axes.x, count)
    # NaN equals nothing, so a channel with an unknown value is unknown itself.
    same = (constants == constants[:, :1]).all(1)
    values = torch.where(same, constants[:, 0], torch.nan)
    arrive = rows(known.arrive[use.x], axes.x, count).any(1)
    used = rows(known.used[use.node.name], axes.y, use.out.numel()).any(1)
    reads = ((known.weights[use.node.name][0] != 0).any(2) & used.unsqueeze(1)).any(0)
    # NaN != 0 marks a constant that is not a single number.
    needed = gone[labels] & reads & ~arrive & (values != 0)
    return Reading(use=use, labels=labels, values=values, gone=gone[labels], needed=needed)


def _fold(
    model: nn.Module,
    found: Labelled,
    known: Reachability,
    readings: list[Reading],
    result: Folds,
) -> None:
    first = readings[0]
    for reading in readings:
        unknown = reading.needed & reading.values.isnan()
        if bool(unknown.any()):
            where = _where(reading.use)
            result.keep(
                f"emits a constant that differs near the border, read by {where}",
                reading.labels[unknown],
            )
    # The labels just kept change what goes: `removal`
    # asks again, and nothing is moved this time.
    if any(bool((r.needed & r.values.isnan()).any()) for r in readings):
        return
    # At the border a padding's zero takes the place of
    # the constant: a bias would be wrong there.
    if known.padded.get(first.use.node.name, False):
        _fold_columns(readings, result)
    else:
        _fold_bias(model, found, known, readings, result)


def _fold_columns(readings: list[Reading], result: Folds) -> None:
    """One constant channel stands for all others of a layer that sees the border."""
    reading = readings[0]
    where = _where(reading.use)
    # The fold changes the weight itself, which another
    # use or a computation would see as well.
    if len(readings) > 1 or not isinstance(reading.use.weight, Named):
        for other in readings:
            why = f"is a constant read through zero padding by {where}, whose weight has other uses"
            result.keep(why, other.labels[other.needed])
        return
    values = reading.values
    able = ~values.isnan() & (values != 0)
    standing = able & ~reading.gone
    if not bool(standing.any()):
        # All constants were to go, so the largest stays: the others are divided by it.
        best = torch.where(reading.needed, values.abs(), 0.0).argmax()
        result.keep(
            f"stands for all constants that {where} reads through zero padding",
            reading.labels[best : best + 1],
        )
        return
    # A large divisor keeps the factors small, and their rounding errors with them.
    keeper = int(torch.where(standing, values.abs(), 0.0).argmax())
    index = reading.needed.nonzero().flatten()
    result.columns[reading.use.weight.name] = Columns(
        dim=reading.use.axes.weight_in,
        index=index,
        factors=values[index] / values[keeper],
        keeper=keeper,
    )


def _fold_bias(
    model: nn.Module,
    found: Labelled,
    known: Reachability,
    readings: list[Reading],
    result: Folds,
) -> None:
    """A shift of the outputs: the sum of constants times weights."""
    shifts = [_shift(reading, known) for reading in readings]
    # Weights can cancel the constants: then there is nothing to move.
    if all(not bool(shift.any()) for shift in shifts):
        return
    first = readings[0].use
    target = target_of(model, found.graph, [reading.use for reading in readings])
    # Uses of one weight share one bias, which can take only one shift.
    equal = all(torch.equal(shift, shifts[0]) for shift in shifts)
    if target is None or not equal:
        for reading in readings:
            why = f"is a constant that {_where(first)} has no bias for"
            result.keep(why, reading.labels[reading.needed])
        return
    if target.new:
        result.fresh[target.name] = first.out
    result.added[target.name] = result.added.get(target.name, 0) + target.sign * shifts[0]


def _shift(reading: Reading, known: Reachability) -> Tensor:
    weight = known.weights[reading.use.node.name][0].sum(2)
    values = torch.where(reading.needed, reading.values, 0.0)
    return weight @ values


def _where(use: LayerUse) -> str:
    return own_name(use.weight.direct or use.node.place.module or use.node.name)
