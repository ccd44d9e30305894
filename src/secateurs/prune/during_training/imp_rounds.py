"""The rounds of iterative pruning: train and cut by turns."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.masks import sparsity
from secateurs.parameters import prunable
from secateurs.prune.during_training.found import Imp, ImpRound
from secateurs.prune.during_training.imp_targets import check_zeros
from secateurs.prune.during_training.rewind import Memory, Run
from secateurs.prune.prepare import scorer
from secateurs.prune.recipe import Recipe
from secateurs.prune.rounds import Masks, cut
from secateurs.prune.targets import Target, asked

Train: TypeAlias = "Callable[[nn.Module, Run], Any]"
"""`train(model, run) -> anything`; what it returns is kept in the result."""


class Rounds:
    """Train and cut by turns."""

    def __init__(
        self,
        model: nn.Module,
        train: Train,
        recipe: Recipe,
        given: Mapping[str, Any],
        memory: Memory,
        targets: list[Target],
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.train, self.recipe, self.given = model, train, recipe, given
        self.memory, self.targets, self.generator = memory, targets, generator

    def run(self, train_last: bool) -> Imp:
        ones = {
            n: torch.ones_like(p, dtype=torch.bool)
            for n, p in prunable(self.model, self.recipe.where).items()
        }
        done, masks = (
            [self._train(0, ones, sum(mask.numel() for mask in ones.values()))],
            ones,
        )
        for number, target in enumerate(self.targets, start=1):
            masks = self._cut(target, masks)
            self.memory.rewind_(masks)
            if train_last or number < len(self.targets):
                done.append(self._train(number, masks, asked(target)))
        report = sparsity(self.model, masks=masks)
        found, start = self.memory.found(), self.memory.iteration
        return Imp(
            masks=masks, rounds=tuple(done), report=report, rewound=found, start=start
        )

    def _train(self, number: int, masks: Masks, wanted: int) -> ImpRound:
        start = self.memory.iteration if number else 0
        run = Run(
            self.model,
            round=number,
            rounds=len(self.targets),
            start=start,
            masks=masks,
            memory=self.memory,
        )
        try:
            returned = self.train(self.model, run)
        finally:
            # Released even after an error, or the next round would be held twice.
            if run.held is not None:
                run.held.release()
        check_zeros(self.model, masks, number)
        kept, total = (
            sum(int(mask.sum()) for mask in masks.values()),
            sum(mask.numel() for mask in masks.values()),
        )
        return ImpRound(
            number=number, asked=wanted, kept=kept, total=total, returned=returned
        )

    def _cut(self, target: Target, masks: Masks) -> Masks:
        # Before hours of further training: without a snapshot there is nothing to
        # rewind to.
        self.memory.found()
        scores = scorer(self.recipe, self.model, self.given, self.generator).scores(
            masks
        )
        parameters: dict[str, Tensor] = dict(prunable(self.model, self.recipe.where))
        return cut(
            self.recipe,
            scores,
            target,
            parameters=parameters,
            within=masks,
            generator=self.generator,
        )
