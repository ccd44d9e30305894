"""A model of blocks pruned with calibration batches, one block in work at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Group
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.masks.apply import apply_
from secateurs.masks.sparsity_report import SparsityReport
from secateurs.masks.tensor_sparsity import TensorSparsity
from secateurs.parameters import check_model, choose, prunable, refuse_wrapped
from secateurs.printing import Printed
from secateurs.prune.block_by_block.blocks import Blocks, blocks_of
from secateurs.prune.block_by_block.cut_block import cut_block
from secateurs.prune.block_by_block.inputs import Call, caught, first_of, shared
from secateurs.prune.block_by_block.packed import PackedMasks
from secateurs.prune.recipe import Recipe
from secateurs.scores import SCORES, Rule
from secateurs.scores.batches import batches
from secateurs.scores.calling import with_decoder_inputs


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
    """

    recipe: Recipe
    blocks: tuple[str, ...]
    masks: Mapping[str, Tensor]
    report: SparsityReport
    notes: tuple[str, ...]

    def __rich__(self) -> Group:
        return Group(
            self.report, *(f"[yellow]note:[/] {note}" for note in self.notes)
        )


def prune_blocks_(
    model: nn.Module,
    recipe: Recipe | str | Rule,
    *,
    batch: Any,
    blocks: str | Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[str], None] | None = None,
    **amounts: Any,
) -> PrunedBlocks:
    """Prune every block by a recipe, each on what the pruned blocks before it give.

    That is how Wanda and SparseGPT prune language models. The model's own forward pass says what
    the blocks are called with; then each block is pruned as `prune_` would, run, and its outputs
    are the inputs of the next. Beside the model, memory holds the hidden states of the batches and,
    for Wanda and magnitude by rows or layers, the scores of one tensor; for other recipes a copy
    and the scores of one block. What is outside of the blocks (embeddings, head) stays.

    Args:
        model: unmodified; evaluation mode while this runs. Its pruned weights are set to zero in
            place, block after block: after an error in a later block the earlier ones are pruned.
        recipe: A `Recipe`, or the name of a score followed by the other fields. The amount holds
            in each block, `where` goes by the names inside a block (`"mlp.*"`). The published
            Wanda is `Recipe(score="wanda", scope="row", sparsity=0.5)`. Scores that need the loss
            of the whole model are refused.
        batch: calibration batches, as for `score`: a dict of inputs, a tensor, or a list or loader
            of these. `labels` are not needed.
        blocks: the name of the list that holds the blocks (`"model.layers"`), or their names in the
            order in which they run. By default the list of modules that holds most of the model.
        generator: where scores and random selections draw from.
        progress: called with the name of each block.

    Reference: Sun et al. 2024, "A Simple and Effective Pruning Approach for Large Language Models".

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
    check_model(model)
    refuse_wrapped(model)
    recipe = _recipe(recipe, amounts)
    found = blocks_of(model, blocks)
    say = progress or (lambda name: None)
    masks, rows, notes = PackedMasks(), list[TensorSparsity](), list[str]()
    with _evaluating(model):
        calls = _calls(model, found, batch)
        for number, (name, block) in enumerate(found.items()):
            say(name)
            given = [call.arguments(number) for call in calls]
            for inner, mask in cut_block(block, recipe, given, generator):
                masks.add(f"{name}.{inner}", mask)
                rows.append(_row(name, inner, mask))
            # Frees this block's arguments before the next ones are made.
            del given
            # Applied only when all masks of the block are there: an error among them
            # leaves it whole.
            for inner in prunable(block, recipe.where):
                apply_(block, {inner: masks[f"{name}.{inner}"]})
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
    )


def _recipe(recipe: Recipe | str | Rule, amounts: Mapping[str, Any]) -> Recipe:
    if isinstance(recipe, Recipe) and amounts:
        raise ArgumentError(
            f"{', '.join(amounts)} given beside a recipe: put it into the recipe."
        )
    made = recipe if isinstance(recipe, Recipe) else Recipe(score=recipe, **amounts)
    if isinstance(made.score, str) and "loss" in SCORES[made.score].needs:
        raise ArgumentError(
            f"the score {made.score!r} needs the loss of the whole model, and a block has none: use"
            " prune_, or a score of weights and inputs (wanda, magnitude, synflow, path, ...)."
        )
    return made


def _calls(model: nn.Module, found: Blocks, batch: Any) -> list[Call]:
    """What the blocks are called with, for every batch; equal masks and positions once."""
    device = next(model.parameters()).device
    calls: list[Call] = []
    for item in batches(batch, device=device):
        call = caught(model, found, with_decoder_inputs(model, item).inputs)
        if calls:
            pairs = zip(call.others, calls[0].others, strict=True)
            call.others = [shared(own, first) for own, first in pairs]
        calls.append(call)
    if not calls:
        raise ArgumentError("batch holds no batch: give calibration data.")
    return calls


@torch.no_grad()
def _advance_(block: nn.Module, calls: list[Call], number: int) -> None:
    """The outputs of the pruned block take the place of its inputs."""
    for call in calls:
        call.hidden = first_of(block(**call.arguments(number)))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout while calibration runs; every module is in its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _row(block: str, inner: str, mask: Tensor) -> TensorSparsity:
    return TensorSparsity(
        name=f"{block}.{inner}",
        shape=tuple(mask.shape),
        total=mask.numel(),
        kept=int(mask.count_nonzero()),
    )
