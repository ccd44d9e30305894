"""Iterative magnitude pruning with rewinding: train, cut, go back, train again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack

import torch
from rich.console import ConsoleRenderable, Group, RichCast
from rich.table import Table
from torch import nn

from secateurs.base.printing import Printed
from secateurs.base.prunable import prunable
from secateurs.base.step import Step
from secateurs.errors import ArgumentError, TrainingError
from secateurs.masks import SparsityReport, apply_, sparsity_report
from secateurs.masks.budget import Keep, total_of
from secateurs.prune.recipe import (
    Recipe,
    RecipeFields,
    ScoreInputs,
    cut_in_training,
    ready_in_training,
)
from secateurs.prune.rewind import ImpRun, Rewind, RewindPoint, Snapshot
from secateurs.prune.rounds import (
    Masks,
    Round,
    counts_by_share,
    kept_and_total,
    targets_of,
)
from secateurs.scores import Inputs, Loss, Rule

# What iterative pruning found: its rounds, and the ticket.


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpRound(Round):
    """One round: how much was kept while `train` ran, and what it returned. Round 0 is the dense
    training.
    """

    returned: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpResult(Printed):
    """A ticket of iterative pruning, with the trainings that led to it.

    Attributes:
        masks: The masks of the last round, True = kept.
        rounds: Every training, the dense one first.
        report: Density, sparsity and compression per parameter and in total.
        rewound: The dense state at the rewinding point; `rewind_` goes back to it.
        start: The rewinding point in iterations.
    """

    masks: Masks
    rounds: tuple[ImpRound, ...]
    report: SparsityReport
    rewound: Snapshot
    start: int

    def rewind_(self, model: nn.Module) -> None:
        """Make the model the ticket: the state at the rewinding point, pruned by the last masks."""
        self.rewound.restore_(model)
        apply_(model, self.masks)

    def __rich__(self) -> Group:
        title = f"rewinding to iteration {self.start}"
        table = Table("round", "kept", "density", "returned", title=title)
        for r in self.rounds:
            table.add_row(str(r.number), f"{r.kept:,}", f"{r.density:.3%}", str(r.returned))
        parts: list[ConsoleRenderable | RichCast | str] = [table, self.report]
        return Group(*parts)


Train: TypeAlias = "Callable[[nn.Module, ImpRun], Any]"
"""`train(model, run) -> anything`; what it returns is kept in the result."""


class _ImpFields(RecipeFields, total=False):
    """The fields of the recipe of `imp_`, whose score is "magnitude" unless given."""

    score: str | Rule


def imp_(
    model: nn.Module,
    train: Train,
    *,
    per_round: float = 0.2,
    rewind_to: Step | str | int = 0,
    rewind: Rewind = "weights",
    rewind_optimizer: bool = False,
    train_last: bool = True,
    batches_per_epoch: int | None = None,
    example: Inputs | None = None,
    batch: Any = None,
    loss: Loss | None = None,
    generator: torch.Generator | None = None,
    **fields: Unpack[_ImpFields],
) -> ImpResult:
    """Train, cut the share `per_round` of what is left, go back to an early iteration, train again,
    until sparse.

    The user's own training stays the user's own; it only has to hold the optimizer and to begin
    at `run.start`::

        def train(model, run):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            run.hold(optimizer)                       # once, before the first step
            for iteration in range(run.start, 8000):  # 0 at first, then the rewinding point
                set_learning_rate(optimizer, iteration)
                ...
                optimizer.step()
            return accuracy(model)                    # kept in the result

    Args:
        model: Trained in place. In the end it is the trained network of the last round, or with
            `train_last=False` the ticket (rewound and pruned). On any error it is bit-equal to
            before.
        train: Called with the model and a `ImpRun`. One optimizer step is one iteration.
        per_round: The share of the kept entries cut per round; the last round cuts what is left to
            cut.
        rewind_to: "2000it", a number of iterations, "5ep" (needs `batches_per_epoch`), or 0 for the
            initial weights.
        example, batch, loss: What the score needs that judges the trained weights.
        rewind: "weights" puts parameters, buffers (batch-norm statistics) and modes back to the
            state of the dense run at that iteration; "learning-rate" keeps the trained weights and
            only `run.start` goes back (Renda et al. 2020).
        rewind_optimizer: Also give the optimizer the state (momentum, rates) it had there.
            Otherwise the optimizer is as `train` makes it: with fresh momentum, as in the published
            experiments.
        fields: Fields of a `Recipe`: exactly one of sparsity, density and compression, of all
            chosen parameters; score ("magnitude" by default), scope, pattern, how, where, floor,
            convention, options.

    Reference: Frankle & Carbin 2019; Frankle et al. 2020; Bar & Giryes 2023, section 8.
    """
    recipe = Recipe(**fields)
    score_inputs: ScoreInputs = {"example": example, "batch": batch, "loss": loss}
    targets = _targets(recipe, model, score_inputs, per_round)
    iteration = Step.parse(rewind_to).iterations(batches_per_epoch)
    memory = RewindPoint(model, iteration, rewind, rewind_optimizer)
    # Rounds of training take hours: an error in the last one must not leave half a
    # model behind.
    before = Snapshot.of(model)
    try:
        chosen = prunable(model, recipe.where)
        masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in chosen.items()}
        kept = sum(mask.numel() for mask in masks.values())
        trained = [_train_round(model, train, ImpRun(model, masks, memory, 0, len(targets)), kept)]
        for number, target in enumerate(targets, start=1):
            # Before hours of further training: without a snapshot there is nothing to
            # rewind to.
            memory.found()
            masks = cut_in_training(
                recipe,
                model,
                target,
                score_inputs=score_inputs,
                within=masks,
                generator=generator,
            )
            memory.rewind_(masks)
            if train_last or number < len(targets):
                run = ImpRun(model, masks, memory, number, len(targets))
                trained.append(_train_round(model, train, run, total_of(target)))
        return ImpResult(
            masks=masks,
            rounds=tuple(trained),
            report=sparsity_report(model, masks=masks),
            rewound=memory.found(),
            start=memory.iteration,
        )
    # Ctrl-C, too: it is the usual end of a run that takes hours.
    except BaseException:
        before.undo_(model)
        raise


def _targets(
    recipe: Recipe, model: nn.Module, score_inputs: ScoreInputs, per_round: float
) -> list[Keep]:
    """What each round keeps; every problem is reported before hours of training."""
    if recipe.rounds != 1 or recipe.schedule is not None:
        raise ArgumentError(
            "the rounds of imp follow from per_round and the amount: leave rounds= and schedule="
            " out."
        )
    final = ready_in_training(recipe, model, score_inputs, {}).final
    start, end = sum(final.demand.sizes.values()), final.demand.keep
    rounds = len(counts_by_share(start=start, end=end, per_round=per_round))

    return targets_of(
        final,
        recipe.scope,
        {},
        lambda start, end: counts_by_share(
            start=start, end=end, per_round=per_round, rounds=rounds
        ),
    )


def _train_round(model: nn.Module, train: Train, run: ImpRun, wanted: int) -> ImpRound:
    """One training with the masks held; entries that came back are an error."""
    try:
        returned = train(model, run)
    finally:
        # Released even after an error, or the next round would be held twice.
        if run.held is not None:
            run.held.release()
    parameters = dict(model.named_parameters())
    # A `train` without run.hold goes unnoticed until here: its zeros have come back.
    moved = {
        name: int((parameters[name].detach()[~mask] != 0).sum()) for name, mask in run.masks.items()
    }
    back = [f"{name!r} has {count}" for name, count in moved.items() if count]
    if back:
        raise TrainingError(
            f"pruned entries came back in the training of round {run.round}: {', '.join(back)}. "
            "Call run.hold(optimizer) in train before the first step."
        )
    kept, total = kept_and_total(run.masks)
    return ImpRound(number=run.round, asked=wanted, kept=kept, total=total, returned=returned)
