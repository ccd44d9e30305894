"""Iterative magnitude pruning with rewinding: train, cut, go back, train again."""

from typing import Any

import torch
from torch import nn

from secateurs.naming import former
from secateurs.prune.during_training.found import Imp
from secateurs.prune.during_training.imp_rounds import Rounds, Train
from secateurs.prune.during_training.imp_targets import targets_of
from secateurs.prune.during_training.rewind import Memory, Rewind
from secateurs.prune.during_training.snapshot import Snapshot
from secateurs.prune.recipe import Recipe
from secateurs.scores import Inputs, Loss
from secateurs.step import Step


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
    **fields: Any,
) -> Imp:
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
        train: Called with the model and a `Run`. One optimizer step is one iteration.
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
    recipe = Recipe(**{"score": "magnitude", **fields})
    given = {"example": example, "batch": batch, "loss": loss}
    targets = targets_of(model, recipe, given, per_round)
    memory = Memory(
        model,
        Step.parse(rewind_to).iterations(batches_per_epoch),
        rewind,
        rewind_optimizer,
    )
    # Rounds of training take hours: an error in the last one must not leave half a
    # model behind.
    before = Snapshot.of(model)
    try:
        return Rounds(model, train, recipe, given, memory, targets, generator).run(
            train_last
        )
    # Ctrl-C, too: it is the usual end of a run that takes hours.
    except BaseException:
        before.undo_(model)
        raise


imp = former("imp", imp_)
"""`imp_` under its name of before."""
