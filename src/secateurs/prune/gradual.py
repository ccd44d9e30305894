"""Pruning during training: a little at a time, at regular steps, held in between."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.parameters import Params
from secateurs.base.step import Step
from secateurs.errors import ArgumentError, MaskError, TrainingError
from secateurs.masks.budget import Keep, total_of
from secateurs.optim import Held, hold
from secateurs.prune.recipe import Recipe, ScoreInputs, cut_in_training, ready_in_training
from secateurs.prune.rounds import (
    Round,
    counts_at,
    kept_and_total,
    targets_of,
)
from secateurs.scores import Inputs, Loss


class GradualPruning:
    """Prune while a model trains: call `step()` after every optimizer step, in any loop.

    Nothing is cut until `start` steps are done; from there the model is cut every `every` steps
    along the recipe's schedule (None is "cubic", Zhu & Gupta 2017) until, at `end`, exactly the
    recipe's amount is kept. The masks only shrink and are held from the beginning; `held` follows
    averages of the weights and releases.

    Args:
        model: Scored as it is at each cut. On an error in `step` nothing is changed.
        recipe: A recipe of one round: the rounds follow from start, end and every.
        optimizer: Trains the model and holds the zeros.
        start, end, every: Steps such as "2000it", "5ep" or a number of iterations; epochs need
            `batches_per_epoch`.
        example, batch, loss: What the score needs; a loader as `batch` is read anew at each cut.
        generator: Where scores and random selections draw from.
        within: Masks of an earlier pruning, held from the beginning.

    >>> model = nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> gradual = GradualPruning(model, Recipe(sparsity=0.9), optimizer, start=0, end=4, every=2)
    >>> for _ in range(4):
    ...     _ = model(torch.ones(1, 10)).sum().backward()
    ...     optimizer.step()
    ...     done = gradual.step()
    >>> [entry.kept for entry in gradual.rounds], int(model.weight.count_nonzero())
    ([21, 10], 10)
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        optimizer: Optimizer,
        *,
        start: Step | str | int,
        end: Step | str | int,
        every: Step | str | int,
        batches_per_epoch: int | None = None,
        example: Inputs | None = None,
        batch: Any = None,
        loss: Loss | None = None,
        generator: torch.Generator | None = None,
        within: Params | None = None,
    ) -> None:
        first, last, period = (
            Step.parse(point).iterations(batches_per_epoch) for point in (start, end, every)
        )
        # The cuts are counted from `start`, so that two runs with other ends agree at
        # first.
        due = _due(recipe, first, last, period)
        self.recipe, self.iteration = recipe, 0
        self.rounds: tuple[Round, ...] = ()
        self._model, self._generator = model, generator
        self._score_inputs: ScoreInputs = {"example": example, "batch": batch, "loss": loss}
        earlier = dict(within or {})
        ready = ready_in_training(recipe, model, self._score_inputs, earlier)
        fractions = [(iteration - first) / (last - first) for iteration in due]
        schedule = recipe.schedule or "cubic"
        targets = targets_of(
            ready.final,
            recipe.scope,
            earlier,
            lambda start, end: counts_at(schedule, fractions, start=start, end=end),
        )
        self._targets: dict[int, Keep] = dict(zip(due, targets, strict=True))
        masks = {
            name: earlier.get(name, torch.ones_like(p, dtype=torch.bool))
            for name, p in ready.parameters.items()
        }
        # Held from the beginning with full masks: `shrink` then only ever removes.
        self.held: Held = hold(model, masks, optimizer)

    @property
    def masks(self) -> dict[str, Tensor]:
        """The masks held now, True = kept."""
        return self.held.masks

    @property
    def finished(self) -> bool:
        """Whether the last cut is done."""
        return self.iteration >= max(self._targets)

    @property
    def model(self) -> nn.Module:
        """The model that is pruned."""
        return self._model

    def kept_after(self, iteration: int) -> Keep | None:
        """What the last cut until this iteration is to keep; None before the first cut."""
        past = [due for due in self._targets if due <= iteration]
        return self._targets[max(past)] if past else None

    def step(self) -> Round | None:
        """Count one optimizer step, and cut if a cut is due; returns what was cut, or None."""
        # The step is counted only at the end, so that an error leaves the count as it
        # was.
        target = self._targets.get(self.iteration + 1)
        done = None
        if target is not None:
            masks = cut_in_training(
                self.recipe,
                self._model,
                target,
                score_inputs=self._score_inputs,
                within=self.masks,
                generator=self._generator,
            )
            # The scores are of the model as it is now; the optimizer forgets what is
            # cut at once.
            self.held.shrink(masks)
            kept, total = kept_and_total(masks)
            number = len(self.rounds) + 1
            done = Round(number=number, asked=total_of(target), kept=kept, total=total)
            self.rounds = (*self.rounds, done)
        self.iteration += 1
        return done

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on: the steps counted, the masks, the cuts done and
        planned, and the state of the generator.
        """
        generator = self._generator
        return {
            "iteration": self.iteration,
            "masks": self.masks,
            "rounds": [[done.number, done.asked, done.kept, done.total] for done in self.rounds],
            "due": list(self._targets),
            "keep": [t if isinstance(t, int) else dict(t) for t in self._targets.values()],
            "generator": None if generator is None else generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the masks held until now must contain those of the
        state, and the cuts to come must be those of this run. On an error nothing is changed.
        """
        # Read first: an invalid state is refused before masks change.
        iteration = Step(state["iteration"]).count
        rounds = tuple(
            Round(number=number, asked=wanted, kept=kept, total=total)
            for number, wanted, kept, total in state["rounds"]
        )
        targets = self._planned(state, iteration)
        if lacking := sorted(self.masks.keys() - state["masks"].keys()):
            raise MaskError(
                f"the saved state has no mask of {', '.join(map(repr, lacking))}: it belongs to "
                "another model or to another where=. Nothing was changed."
            )
        numbers = state["generator"]
        if (numbers is not None) and self._generator is None:
            raise TrainingError(
                "the saved state includes that of a generator: give generator= as in that run, or "
                "different numbers would be drawn. Nothing was changed."
            )
        self.held.shrink(state["masks"])
        self.iteration, self.rounds, self._targets = iteration, rounds, targets
        if numbers is not None and self._generator is not None:
            self._generator.set_state(numbers.cpu())

    def _planned(self, state: Mapping[str, Any], iteration: int) -> dict[int, Keep]:
        """The targets of a saved state, if the cuts to come and the end are those of this run."""
        saved: dict[int, Keep] = dict(zip(state["due"], state["keep"], strict=True))

        def to_come(targets: Mapping[int, Keep]) -> list[tuple[int, int]]:
            last = max(targets)
            return [
                (due if due > iteration else 0, total_of(target))
                for due, target in targets.items()
                if due > iteration or due == last
            ]

        if to_come(saved) != to_come(self._targets):
            ends = [
                f"{total_of(cuts[max(cuts)])} entries at step {max(cuts)} in {len(cuts)} cuts"
                for cuts in (saved, self._targets)
            ]
            raise TrainingError(
                f"the saved state, after step {iteration}, continues to {ends[0]}; this run goes "
                f"to {ends[1]}: make GradualPruning with the recipe, start, end and every of the "
                "run that was saved. Nothing was changed."
            )
        # Adopted, not only compared: budgets that depend on the weights were computed at the start.
        return saved


def _due(recipe: Recipe, first: int, last: int, period: int) -> list[int]:
    """The iterations after which the model is cut; the last cut is at the end even if the period
    does not divide.
    """
    if recipe.rounds != 1:
        raise ArgumentError(
            f"the recipe has rounds={recipe.rounds}, but during training the rounds follow from"
            " start, end and every: leave rounds= out."
        )
    if not first < last or period < 1:
        raise ArgumentError(
            f"cannot prune every {period} steps from {first} to {last}: end must come after start, "
            "and every must be at least 1."
        )
    return [*range(first + period, last, period), last]
