"""The blocks of a model: the modules of its largest list, one after another."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, Unpack

import numpy as np
import torch
from rich.console import Group
from torch import Tensor, nn

from secateurs.base.copies import evaluating
from secateurs.base.interrupts import Uninterrupted
from secateurs.base.parameters import Params, refuse_wrapped
from secateurs.base.parametrized import parts_of_weights
from secateurs.base.printing import Printed
from secateurs.base.progress import Progress, show_progress
from secateurs.base.prunable import choose, prunable
from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, ParameterError, ScoreError
from secateurs.llm.amounts import BlockAmounts, Way, block_densities, outlier_ratio
from secateurs.llm.experts import join_masks, part_names, split_into_layers, split_masks
from secateurs.llm.reconstruct import DAMPING, Reconstruction, Runs, reconstruct_block_
from secateurs.llm.restoring import restoring
from secateurs.llm.sparsegpt import prune_by_sweeps_, refuse_unswept
from secateurs.masks.apply import apply_
from secateurs.masks.patterns import NM, Unstructured, pattern_of
from secateurs.masks.pieces import count_true, trouble
from secateurs.masks.report import SparsityReport, TensorSparsity
from secateurs.masks.select import check_selection, check_shapes, choose_masks
from secateurs.prune.axes import Orders, orders_of
from secateurs.prune.pruning import cut
from secateurs.prune.recipe import SPARSEGPT, Recipe, RecipeFields
from secateurs.scores import SCORES, Rule
from secateurs.scores.rules.wanda import input_squares
from secateurs.scores.task import (
    Inputs,
    Task,
    batches,
    call,
    map_tensors,
    wide_dtype,
    with_decoder_inputs,
)

Blocks = dict[str, nn.Module]
"""The blocks by name, in the order in which they run."""


def blocks_of(model: nn.Module, blocks: str | Sequence[str] | None) -> Blocks:
    """The children of the list that is named, the modules that are named, or, without names, the
    children of the list that holds most of the model.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]))
    >>> list(blocks_of(model, None))
    ['1.0', '1.1']
    """
    known = dict(model.named_modules())
    if blocks is None:
        return _largest(model)
    if isinstance(blocks, str):
        if blocks not in known:
            raise ArgumentError(unknown("module", blocks, known))
        found = {f"{blocks}.{n}": m for n, m in known[blocks].named_children()}
        if not found:
            raise ArgumentError(
                f"blocks={blocks!r} names a {type(known[blocks]).__name__} without children: name"
                " the list that holds the blocks, or the blocks one by one."
            )
        return found
    lost = [name for name in blocks if name not in known]
    if lost or not blocks:
        raise ArgumentError(
            unknown("module", lost[0], known) if lost else "blocks=[] names no block."
        )
    return {name: known[name] for name in blocks}


def _largest(model: nn.Module) -> Blocks:
    lists = list(_lists(model))
    if not lists:
        raise ArgumentError(
            f"{type(model).__name__} has no list of blocks of one kind: name them with blocks=,"
            " such as blocks='transformer.h'."
        )
    # Lists inside blocks (experts, heads) hold less than the list of the blocks.
    name, modules = max(lists, key=lambda pair: _size(pair[1]))
    return {f"{name}.{number}": block for number, block in enumerate(modules)}


def _lists(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    for name, module in model.named_modules():
        # Blocks of one kind: a list of a stem, a body and a head is not a list of blocks.
        kinds = {type(block) for block in module.children()}
        if isinstance(module, nn.ModuleList) and name and len(kinds) == 1:
            yield name, module


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# The masks of one block. Where every tensor is cut on its own, one tensor's scores are held at a
# time; else the block is pruned like any model.

PIECE = 1 << 20
"""Entries whose rows are ranked together: sorting takes some twenty bytes for each."""


def cut_block(
    block: nn.Module,
    recipe: Recipe,
    given: list[dict[str, Any]],
    generator: torch.Generator | None,
    *,
    idle: dict[str, Any] | None = None,
    split: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """The masks of a block by parameter name; nothing is changed. Everything that can be wrong is
    found before the first mask. `split` says that some layers stand for slices of one parameter,
    which no copy of the block would know.

    `idle` collects the layers that no batch reached, such as experts that no token is sent to:
    their only score is their weights.
    """
    if not (_each_alone(recipe) or (split and _plain(recipe))):
        yield from cut(block, recipe, batch=given, generator=generator).masks.items()
        return
    parameters = prunable(block, recipe.where)
    weights = {name: parameter.detach() for name, parameter in parameters.items()}
    orders = orders_of(block, weights, pattern=recipe.pattern, scope=recipe.scope, example=given[0])
    laid = {name: tuple(weight.shape) for name, weight in orders.outputs_first(weights).items()}
    check_shapes(pattern_of(recipe.pattern), laid)
    squares: Params = {}
    if recipe.score == "wanda":
        # The block itself runs, not a copy: it is in evaluation mode, and runs on the same data
        # afterwards anyway.
        squares, _ = input_squares(Task(model=block, parameters=parameters, data=given), idle=True)
        for name in weights.keys() - squares.keys():
            if idle is not None:
                idle[name] = "was pruned by magnitude: it met 0 inputs"
    if not _each_alone(recipe):
        yield from _masks_together(recipe, weights, squares, orders, generator)
        return
    for name, weight in weights.items():
        yield name, _mask(recipe, name, weight, squares.get(name), orders, generator)


def _each_alone(recipe: Recipe) -> bool:
    """Whether no tensor competes with another, and no score needs more than weights and inputs."""
    pattern = pattern_of(recipe.pattern)
    counted = isinstance(pattern, NM) and not recipe.given
    return _plain(recipe) and (counted or recipe.scope in ("row", "layer"))


def _plain(recipe: Recipe) -> bool:
    """Whether the scores need no more than weights and inputs."""
    return recipe.score in ("wanda", "magnitude") and not recipe.options and recipe.rounds == 1


def _masks_together(
    recipe: Recipe,
    weights: dict[str, Tensor],
    squares: Params,
    orders: Orders,
    generator: torch.Generator | None,
) -> Iterator[tuple[str, Tensor]]:
    """The masks of tensors that compete, by their scores in the same units."""
    lost = sorted(weights.keys() - squares.keys()) if recipe.score == "wanda" else []
    if lost:
        raise ScoreError(
            f"{_some(lost)} received no input, so its weights cannot compete by 'wanda' within"
            f" scope={recipe.scope!r}: give more batches, scope='row' or 'layer', or leave it out"
            " with where=."
        )
    scores = {
        name: weight.abs().to(wide_dtype(weight)) * (squares[name].sqrt() if squares else 1)
        for name, weight in weights.items()
    }
    for name, score in scores.items():
        if trouble(score):
            raise ScoreError(_not_finite(recipe, name))
    laid = orders.outputs_first(scores)
    chosen = choose_masks(check_selection(recipe, laid, finite=True), generator)
    yield from orders.restore(chosen).items()


def _some(names: list[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


def _not_finite(recipe: Recipe, name: str) -> str:
    return (
        f"the score {recipe.score!r} of {name!r} is not finite: the weights or the activations of"
        " the block hold NaN or infinite values."
    )


def _mask(
    recipe: Recipe,
    name: str,
    weight: Tensor,
    squares: Tensor | None,
    orders: Orders,
    generator: torch.Generator | None,
) -> Tensor:
    """The mask of one tensor, whose scores are made a few rows at a time: whole and in single
    precision they take twice the memory of half-precision weights, and a look for NaN as much
    again.
    """

    def laid(tensor: Tensor) -> Tensor:
        found = orders.outputs_first({name: tensor})[name]
        return found if found.ndim else found.reshape(1)

    weights = laid(weight)
    simple = isinstance(pattern_of(recipe.pattern), Unstructured) and recipe.floor <= 1
    length = max(1, len(weights))
    if recipe.scope == "row" and simple and recipe.how == "topk" and weights.ndim > 1:
        # Rows are cut each on its own, so they can be ranked a few at a time.
        length = max(1, PIECE * length // max(1, weights.numel()))
    mask = torch.empty(weights.shape, dtype=torch.bool, device=weights.device)
    norms = None
    if squares is not None:
        norms = torch.split(laid(squares.sqrt().expand(weight.shape)), length)
    for number, piece in enumerate(torch.split(weights, length)):
        # Wanda: |w| · ‖x‖₂ of the input (Sun et al. 2024).
        score = piece.abs() if norms is None else norms[number] * piece.abs()
        # NaN has no rank. The name of the tensor is what a user can search for.
        if trouble(score):
            raise ScoreError(_not_finite(recipe, name))
        kept = choose_masks(check_selection(recipe, {name: score}, finite=True), generator)[name]
        mask[number * length : number * length + len(piece)] = kept
    return orders.restore({name: mask})[name].reshape(weight.shape)


# What each block of a model is called with, found without running the blocks.
#
# The model's own forward pass runs once for every batch, with blocks that pass their input on: it
# embeds, makes masks, positions and rotations as it always does, and stops at the last block. So
# nothing of the model has to be known, and blocks that are called differently (every other one with
# a sliding window) get what they need.

CACHES = ("past_key_value", "past_key_values", "layer_past", "cache_params")
"""Arguments that carry keys and values from call to call; a block that is run twice must not."""


@dataclass(slots=True, kw_only=True)
class BlockCall:
    """One batch on its way: the hidden states, and what else each block is given."""

    hidden: Tensor
    name: str = "hidden_states"
    others: list[dict[str, Any]] = field(default_factory=list)

    def arguments(self, number: int) -> dict[str, Any]:
        """The keyword arguments of one block."""
        return {self.name: self.hidden, **self.others[number]}


# An exception is the only way out of a forward pass whose code is not ours.
class _Reached(Exception):
    """The last block is reached: nothing behind it is needed."""


@torch.no_grad()
def catch_call(model: nn.Module, blocks: Blocks, inputs: Inputs) -> BlockCall:
    """What every block is called with on this batch; the hidden states are those of the first."""
    watch = _Watch(len(blocks))
    with _recording_inputs(blocks, watch), uncached(model), suppress(_Reached):
        call(model, inputs)
    if watch.call is None or len(watch.call.others) != len(blocks):
        seen = 0 if watch.call is None else len(watch.call.others)
        raise ArgumentError(
            f"{seen} of {len(blocks)} blocks, of which {next(iter(blocks))!r} is the first, ran on"
            " the batch in the order of the list: name those that do with blocks=."
        )
    return watch.call


def share_tensors(own: dict[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a block, with tensors that are equal to those of the first batch taken from
    there: masks and positions are usually the same, and large.
    """

    def same(value: Any, other: Any) -> Any:
        if isinstance(value, Tensor):
            alike = isinstance(other, Tensor) and value.shape == other.shape
            return other if alike and torch.equal(value, other) else value
        pair = isinstance(value, tuple) and isinstance(other, tuple)
        if pair and len(value) == len(other):
            return tuple(same(a, b) for a, b in zip(value, other, strict=True))
        return value

    return {key: same(value, first.get(key)) for key, value in own.items()}


def first_of(output: Any) -> Tensor:
    """The hidden states among what a block returns."""
    found = output if isinstance(output, Tensor) else None
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        found = output[0]
    if found is None:
        raise ArgumentError(
            f"a block returns a {type(output).__name__}: its hidden states are expected alone, or"
            " first in a tuple."
        )
    return found


class _Watch:
    """Writes down what the blocks are given, in the order in which they are called."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.call: BlockCall | None = None
        self.output: Any = None

    def met(self, number: int, forward: Callable[..., Any], args: Any, given: Any) -> Any:
        """Note a call of this block; returns what the model goes on with."""
        arguments = _bound(forward, args, given)
        name = _hidden(arguments)
        hidden = arguments.pop(name)
        if self.call is None:
            self.call = BlockCall(hidden=hidden, name=name)
        # A block that runs twice (shared weights) or out of order cannot be pruned one
        # after the other.
        if number != len(self.call.others) or name != self.call.name:
            raise ArgumentError(
                f"block {number} runs as number {len(self.call.others)}: blocks= must list them in "
                "the order in which they run, each once."
            )
        self.call.others.append(_without_cache(arguments))
        if number == self.count - 1:
            raise _Reached
        if self.output is None:
            # The first block runs once, to show the form of what it returns.
            self.output = forward(*args, **given)
            if first_of(self.output).shape != hidden.shape:
                raise ArgumentError(
                    f"the first block maps {tuple(hidden.shape)} to "
                    f"{tuple(first_of(self.output).shape)}: blocks must keep the shape of what "
                    "runs through them."
                )
        if isinstance(self.output, Tensor):
            return hidden
        return type(self.output)((hidden, *self.output[1:]))


@contextmanager
def _recording_inputs(blocks: Blocks, watch: _Watch) -> Iterator[None]:
    """Within it, blocks record their inputs and hand them on; afterwards they run as before."""
    before = {name: vars(block).get("forward") for name, block in blocks.items()}
    try:
        for number, block in enumerate(blocks.values()):
            # The module is called as ever, so that its hooks still run.
            block.forward = _stub(number, block.forward, watch)
        yield
    finally:
        with Uninterrupted():
            for name, block in blocks.items():
                # Only the attribute of the instance is ours; the method of the class lies
                # beneath.
                vars(block).pop("forward", None)
                if before[name] is not None:  # accelerate leaves its own there
                    block.forward = before[name]  # type: ignore[assignment]


def _stub(number: int, forward: Callable[..., Any], watch: _Watch) -> Callable[..., Any]:
    def called(*args: Any, **given: Any) -> Any:
        return watch.met(number, forward, args, given)

    return called


@contextmanager
def uncached(model: nn.Module) -> Iterator[None]:
    """No cache of keys and values, which would grow with every call of a block."""
    config = getattr(model, "config", None)
    before = getattr(config, "use_cache", None)
    try:
        if before:
            config.use_cache = False  # type: ignore[union-attr]
        yield
    finally:
        if before:
            config.use_cache = before  # type: ignore[union-attr]


def _bound(forward: Callable[..., Any], args: Any, given: Any) -> dict[str, Any]:
    """All arguments by name."""
    # By name, since the block is called again later with other hidden states in the
    # same place.
    signature = inspect.signature(forward)
    bound = signature.bind(*args, **given).arguments
    named: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.POSITIONAL_ONLY,
        ):
            raise ArgumentError(
                f"a block takes its argument {name!r} by position only, so it cannot be called"
                " again by name."
            )
        else:
            named[name] = value
    return named


def _hidden(arguments: Mapping[str, Any]) -> str:
    """The first floating-point tensor is what runs through the blocks."""
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            return name
    raise ArgumentError("a block is called without a floating-point tensor.")


def _without_cache(arguments: dict[str, Any]) -> dict[str, Any]:
    kept = {name: None if name in CACHES else value for name, value in arguments.items()}
    if "use_cache" in kept:
        kept["use_cache"] = False
    detached: dict[str, Any] = map_tensors(kept, lambda tensor: tensor.detach())
    return detached


class PackedMasks(Mapping[str, Tensor]):
    """Masks by parameter name, True = kept, unpacked when they are looked at.

    >>> masks = PackedMasks()
    >>> masks.add("w", torch.tensor([[True, False, True]]))
    >>> masks["w"], masks.nbytes
    (tensor([[ True, False,  True]]), 1)
    """

    def __init__(self) -> None:
        self._bits: dict[str, tuple[np.ndarray, torch.Size, torch.device]] = {}

    def add(self, name: str, mask: Tensor) -> None:
        """Keep a mask under this name."""
        bits = np.packbits(mask.detach().cpu().numpy().reshape(-1))
        self._bits[name] = bits, mask.shape, mask.device

    @property
    def nbytes(self) -> int:
        """Memory of all masks."""
        return sum(bits.nbytes for bits, *_ in self._bits.values())

    def __getitem__(self, name: str) -> Tensor:
        bits, shape, device = self._bits[name]
        # `count` cuts the bits that fill the last byte; the view spares a copy from
        # uint8 to bool.
        flat = np.unpackbits(bits, count=math.prod(shape)).view(np.bool_)
        return torch.from_numpy(flat).reshape(shape).to(device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._bits)

    def __len__(self) -> int:
        return len(self._bits)


# A model of blocks pruned with calibration batches, one block at a time.


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedBlocks(Printed):
    """What pruning block by block did.

    Attributes:
        recipe: What was asked of every block.
        blocks: Their names, in the order in which they run.
        masks: By the parameter's name in the whole model, True = kept, one bit an entry until
            looked at; for `hold` and `save_masks`.
        report: Density, sparsity and compression per parameter and in total.
        notes: Where the result is weaker or other than asked, and where.
        reconstructed: With `reconstruct=True` or SparseGPT, what changing the weights that stay
            did, by the parameter's name.
        amounts: With `amounts=`, the density that was asked of each block.
    """

    recipe: Recipe
    blocks: tuple[str, ...]
    masks: Mapping[str, Tensor]
    report: SparsityReport
    notes: tuple[str, ...]
    reconstructed: Mapping[str, Reconstruction] = field(default_factory=dict)
    amounts: Mapping[str, float] = field(default_factory=dict)

    def __rich__(self) -> Group:
        lines = [f"[yellow]note:[/] {note}" for note in self.notes]
        if self.reconstructed:
            before, after = (
                median(getattr(done, name) for done in self.reconstructed.values())
                for name in ("masked", "error")
            )
            lines.insert(
                0,
                f"{len(self.reconstructed)} layers reconstructed: their outputs are off by"
                f" {after:.1%} in the median, where the masks alone leave {before:.1%}",
            )
        if self.amounts:
            shares = ", ".join(f"{name} {1 - share:.3f}" for name, share in self.amounts.items())
            lines.insert(0, f"sparsity by block: {shares}")
        return Group(self.report, *lines)


def prune_blocks_(
    model: nn.Module,
    recipe: Recipe | str | Rule,
    *,
    batch: Any,
    blocks: str | Sequence[str] | None = None,
    reconstruct: bool = False,
    amounts: BlockAmounts | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    **fields: Unpack[RecipeFields],
) -> PrunedBlocks:
    """Prune every block by a recipe, each on the outputs of the pruned blocks before it.

    That is how Wanda and SparseGPT prune language models; the name `"sparsegpt"` in the place of a
    score chooses masks and changes the weights that stay as the latter does. The model's own
    forward pass says what the blocks are called with; then each block is pruned as `prune_` would,
    run, and its outputs are the inputs of the next. Beside the model, memory holds the hidden
    states of the batches and, for Wanda and magnitude by rows or layers, the scores of one tensor;
    for other recipes a copy and the scores of one block. The weights as they were go to a temporary
    file until the end (in `TMPDIR`). What is outside of the blocks (embeddings, head) stays.

    Args:
        model: unmodified; evaluation mode while this runs. Its pruned weights are set to zero in
            place, block after block; after an error they are as they were.
        recipe: A `Recipe`, or the name of a score followed by the other fields. The amount holds
            in each block, `where` goes by the names inside a block (`"mlp.*"`). The published
            Wanda is `Recipe(score="wanda", scope="row", sparsity=0.5)`, the published SparseGPT
            `Recipe(score="sparsegpt", sparsity=0.5)`: the amount holds in each layer, of every 128
            columns. Scores that need the loss of the whole model are refused.
        batch: calibration batches, as for `score`: a dict of inputs, a tensor, or a list or loader
            of these. `labels` are not needed.
        blocks: the name of the list that holds the blocks (`"model.layers"`), or their names in the
            order in which they run. By default the list of modules that holds most of the model.
        reconstruct: solve for the weights that stay, so that every linear layer answers the inputs
            that it gets from the pruned layers before it as it did when it was whole: one damped
            least-squares problem for each row. Layers are done one after the other, with one
            matrix XᵀX in memory. `reconstructed` in the result has the errors before and after.
            Masks of SparseGPT can be solved for, too; the errors are then below its own.
        amounts: what is asked of each block, where it is not the same of all. A mapping gives the
            amount (a sparsity, where the recipe states one) of some blocks by name or place, and
            the others share what is left. `"owl"` keeps more where more scores |w| · ‖x‖ are
            outliers (Yin et al. 2024), `"progression"` keeps the most of the first block and ever
            less of the next ones, in equal steps, `"sensitivity"` keeps more where pruning a block
            alone changes its outputs more. These three lie within 0.08 of the recipe's density.
            The recipe's amount holds over all blocks together.
        generator: where scores and random selections draw from.
        progress: called with the name of each block.

    References: Sun et al. 2024, "A Simple and Effective Pruning Approach for Large Language
    Models"; Frantar & Alistarh 2023, "SparseGPT: Massive Language Models Can Be Accurately Pruned
    in One-Shot".

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    ...
    ...     def forward(self, x):
    ...         for block in self.blocks:
    ...             x = block(x)
    ...         return x
    >>> model, x = Net(), torch.randn(8, 4)
    >>> done = prune_blocks_(model, "wanda", scope="row", sparsity=0.5, batch=x)
    >>> done.report.sparsity, done.blocks
    (0.5, ('blocks.0', 'blocks.1', 'blocks.2'))
    """
    refuse_wrapped(model)
    recipe = Recipe.of(recipe, fields)
    _refuse_unfit(recipe)
    found = blocks_of(model, blocks)
    for name, block in found.items():
        if text := parts_of_weights(block, choose(block, recipe.where).parameters):
            raise ParameterError(f"block {name!r}: {text}.")
    masks, rows, notes = PackedMasks(), list[TensorSparsity](), list[str]()
    solved: dict[str, Reconstruction] = {}
    with (
        restoring() as keep,  # the outermost: also where the end of the others is interrupted
        evaluating(model),
        show_progress(progress, "prune_blocks_") as say,
    ):
        calls = _calls(model, found, batch)
        shares: dict[str, float] = {}
        if amounts is not None:
            sizes = {
                name: sum(p.numel() for p in prunable(block, recipe.where).values())
                for name, block in found.items()
            }
            measure = partial(_measure_dense, found, calls, recipe, generator)
            shares = block_densities(amounts, recipe, sizes, measure)
        for number, (name, block) in enumerate(found.items()):
            say(name)
            keep(prunable(block, recipe.where).values())
            given = [call.arguments(number) for call in calls]
            asked = recipe.keeping(shares[name]) if shares else recipe
            runs = [partial(_run, block, each, number) for each in calls]
            own, outcomes = _prune_block_(block, asked, given, runs, reconstruct, generator)
            # Frees this block's arguments before the next ones are made.
            del given
            for inner, mask in own.items():
                masks.add(f"{name}.{inner}", mask)
                rows.append(TensorSparsity.of(f"{name}.{inner}", mask, count_true(mask)))
            for inner, done in outcomes.items():
                if isinstance(done, str):
                    notes.append(f"{name}.{inner} {done}")
                    continue
                solved[f"{name}.{inner}"] = done
                if done.damping > DAMPING:
                    notes.append(
                        f"{name}.{inner}: the damping was raised from {DAMPING:g} to"
                        f" {done.damping:g} of the mean of the diagonal"
                    )
            notes += [f"{name}: {note}" for note in choose(block, recipe.where).notes]
            # Nothing follows the last block, so it need not run.
            if number + 1 < len(found):
                _advance_(block, calls, number)
    return PrunedBlocks(
        recipe=recipe,
        blocks=tuple(found),
        masks=masks,
        report=SparsityReport(tensors=tuple(rows), source="pruned blocks"),
        notes=tuple(notes),
        reconstructed=solved,
        amounts=shares,
    )


def _prune_block_(
    block: nn.Module,
    recipe: Recipe,
    given: list[dict[str, Any]],
    runs: Runs,
    reconstruct: bool,
    generator: torch.Generator | None,
) -> tuple["PackedMasks", dict[str, Reconstruction | str]]:
    """Prune one block; its masks, and of each parameter whose other weights were changed, what that
    did, or why it was only masked.
    """
    masks, outcomes = PackedMasks(), dict[str, Reconstruction | str]()
    chosen = list(prunable(block, recipe.where))
    sweeps = recipe.score == SPARSEGPT
    if not (sweeps or _plain(recipe)):
        for name, mask in cut_block(block, recipe, given, generator):
            masks.add(name, mask)
    else:
        # Each expert is a layer of its own here, on the tokens it gets.
        with split_into_layers(block, runs[0]) as parts:
            own = PackedMasks()
            inner = replace(recipe, where=part_names(chosen, parts)) if parts else recipe

            def rest(other: Recipe) -> Iterator[tuple[str, Tensor]]:
                return cut_block(block, other, given, generator, split=bool(parts))

            if sweeps:
                for name, mask, done in prune_by_sweeps_(
                    block, inner, runs, rest=rest, solve=reconstruct
                ):
                    own.add(name, mask)
                    outcomes[name] = done
            else:
                for name, mask in cut_block(
                    block, inner, given, generator, idle=outcomes, split=bool(parts)
                ):
                    own.add(name, mask)
        for name, mask in join_masks(own, parts, block):
            masks.add(name, mask)
    # Applied only when all masks of the block are there: an error among them leaves it whole.
    if reconstruct and not sweeps:
        with split_into_layers(block, runs[0]) as parts:
            own = PackedMasks()
            for name, mask in split_masks(masks, parts):
                own.add(name, mask)
            # What it says of layers without inputs is that they were only masked.
            outcomes |= reconstruct_block_(block, own, runs)
    elif not sweeps:
        for name, mask in masks.items():
            apply_(block, {name: mask})
    return masks, outcomes


def _measure_dense(
    found: Blocks,
    calls: list[BlockCall],
    recipe: Recipe,
    generator: torch.Generator | None,
    way: Way,
) -> list[float]:
    """A value for every block of the model as it is, by which amounts are shared out."""
    first, values = [each.hidden for each in calls], []
    for number, block in enumerate(found.values()):
        given = [each.arguments(number) for each in calls]
        if way == "owl":
            chosen = list(prunable(block, recipe.where))
            with split_into_layers(block, partial(block, **given[0])) as parts:
                inner = replace(recipe, where=part_names(chosen, parts))
                values.append(outlier_ratio(block, inner, given))
        else:
            values.append(_change_of_outputs(block, recipe, given, generator))
        if number + 1 < len(found):
            _advance_(block, calls, number)
    for each, hidden in zip(calls, first, strict=True):
        each.hidden = hidden
    return values


@torch.no_grad()
def _change_of_outputs(
    block: nn.Module,
    recipe: Recipe,
    given: list[dict[str, Any]],
    generator: torch.Generator | None,
) -> float:
    """‖f(x) − f̂(x)‖ / ‖f(x)‖ over the batches, where only this block is pruned."""
    pruned = copy.deepcopy(block)
    _prune_block_(
        pruned, recipe, given, [partial(pruned, **each) for each in given], False, generator
    )
    off = size = 0.0
    for each in given:
        whole = first_of(block(**each)).double()
        off += float((first_of(pruned(**each)).double() - whole).square().sum())
        size += float(whole.square().sum())
    return math.sqrt(off / size) if size else 0.0


def _refuse_unfit(recipe: Recipe) -> None:
    if recipe.score == SPARSEGPT:
        refuse_unswept(recipe)
    elif isinstance(recipe.score, str) and "loss" in SCORES[recipe.score].needs:
        raise ArgumentError(
            f"the score {recipe.score!r} needs the loss of the whole model, and a block has none:"
            " use prune_, or a score of weights and inputs (wanda, magnitude, synflow, path, ...)."
        )


def _calls(model: nn.Module, found: Blocks, batch: Any) -> list[BlockCall]:
    """What the blocks are called with, for every batch; equal masks and positions once."""
    device = next(model.parameters()).device
    calls: list[BlockCall] = []
    for item in batches(batch, device=device):
        call = catch_call(model, found, with_decoder_inputs(model, item).inputs)
        if calls:
            pairs = zip(call.others, calls[0].others, strict=True)
            call.others = [share_tensors(own, first) for own, first in pairs]
        calls.append(call)
    if not calls:
        raise ArgumentError("batch is empty: give calibration data.")
    return calls


@torch.no_grad()
def _advance_(block: nn.Module, calls: list[BlockCall], number: int) -> None:
    """The outputs of the pruned block take the place of its inputs."""
    for each in calls:
        each.hidden = first_of(_run(block, each, number))


def _run(block: nn.Module, call: BlockCall, number: int) -> Any:
    return block(**call.arguments(number))
