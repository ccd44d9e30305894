"""`score`, and `Scorer` for rounds: check everything, run a rule on a private copy, check what it
gave.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.parameters import Params, Where, check_model, prunable, refuse_wrapped
from secateurs.random import check_generator
from secateurs.scores.batches import Inputs
from secateurs.scores.completing import complete, reusable, unregistered
from secateurs.scores.copies import Copy, seeded
from secateurs.scores.refusals import (
    check_loss,
    check_scores,
    check_weights,
    checked_options,
    fitting_masks,
    ordered,
)
from secateurs.scores.task import SCORES, Convention, Finite, Loss, Rule, Task


def score(
    model: nn.Module,
    rule: str | Rule,
    *,
    where: Where = None,
    batch: Any = None,
    loss: Loss | None = None,
    example: Inputs | None = None,
    generator: torch.Generator | None = None,
    convention: Convention = "paper",
    **options: Any,
) -> dict[str, Tensor]:
    """How important is each weight: `{parameter name: tensor of its shape}`, large = keep.

    `rule` is a registered name (`SCORES.names()`) or your own `rule(task, **options) -> {name:
    tensor}`. `batch` is `(x, y)`, inputs alone, a list of batches or a loader; `loss(output, y)`
    must average over its batch. `example` is one input of the model: a tensor, a tuple of
    positional or a dict of keyword arguments. What a rule does not need is ignored. `convention`
    picks the paper's formula or the reference code's where they differ (docs/scores.md). Without a
    `generator`, draws follow torch's global state and, like everything else, leave it as it was:
    two calls then draw the same numbers. Frozen parameters are scored like any other, tied ones
    once. The model is bit-equal afterwards; the scores carry no graph.

    >>> net = nn.Linear(2, 2)
    >>> bool((score(net, "magnitude")["weight"] == net.weight.abs()).all())
    True
    """
    return Scorer(
        model,
        rule,
        where=where,
        batch=batch,
        loss=loss,
        example=example,
        generator=generator,
        convention=convention,
        **options,
    ).scores()


class Scorer:
    """A score prepared once and asked in every round of pruning: `scorer.scores(masks)`; arguments
    as for `score`.

    The model must stay as it is from round to round: what has been cut is told by the masks. Draws
    continue the generator's stream from round to round.

    >>> scorer = Scorer(nn.Linear(4, 3), "synflow", example=torch.zeros(1, 4))
    >>> mask = torch.rand(3, 4) > 0.5
    >>> bool((scorer.scores({"weight": mask})["weight"][~mask] == 0).all())
    True
    """

    def __init__(
        self,
        model: nn.Module,
        rule: str | Rule,
        *,
        where: Where = None,
        batch: Any = None,
        loss: Loss | None = None,
        example: Inputs | None = None,
        generator: torch.Generator | None = None,
        convention: Convention = "paper",
        **options: Any,
    ) -> None:
        if convention not in ("paper", "reference"):
            raise ArgumentError(
                f"convention is {convention!r}; it is 'paper' or 'reference'."
            )
        check_generator(generator)
        check_loss(loss)
        check_model(model)
        refuse_wrapped(model)
        # Everything that can be wrong is found here, once, so that rounds only compute.
        self._entry = SCORES[rule] if isinstance(rule, str) else unregistered(rule)
        self._options = checked_options(self._entry, options)
        self._model, self._generator = model, generator
        self._sources = prunable(model, where)
        check_weights(self._sources)
        given = Task(
            model=model,
            parameters=dict(self._sources),
            convention=convention,
            data=reusable(batch),
            loss=loss,
            example=example,
            generator=generator,
        )
        self._task = complete(self._entry, given)
        self._copy: Copy | None = None

    def scores(self, masks: Params | None = None) -> dict[str, Tensor]:
        """The scores of the model, or of the model with the masks applied: what they cut counts as
        zero.
        """
        # Before the model runs: a misfit found later would have cost a pass over the
        # data.
        masks = fitting_masks(masks or {}, self._sources)
        with (
            # Users often score inside no_grad or inference_mode; gradients are needed
            # all the same.
            torch.inference_mode(False),
            torch.enable_grad(),
            seeded(self._model, self._generator),
        ):
            result = self._entry.rule(self._masked(masks), **self._options)
            scores = ordered(result, self._sources, self._entry.name)
        if not isinstance(result, Finite):
            check_scores(scores, self._entry.name)
        return scores

    def _masked(self, masks: Params) -> Task:
        if not self._entry.runs:
            masked = {
                # A rule that only reads needs no copy of the model, just of what was
                # cut.
                n: nn.Parameter(p.detach() * masks[n]) if n in masks else p
                for n, p in self._sources.items()
            }
            return replace(self._task, parameters=masked)
        # A rule that prepares its copy (weights by their magnitude, say) does so once
        # for all rounds.
        copy = self._copy or self._fresh()
        # Without preparation each round starts from a fresh copy: its rule may write
        # into it.
        self._copy = copy if self._entry.prepare else None
        copy.cut(masks)
        return replace(self._task, model=copy.model, parameters=copy.parameters)

    def _fresh(self) -> Copy:
        copy = Copy(self._model, self._sources)
        if self._entry.prepare:
            self._entry.prepare(
                replace(self._task, model=copy.model, parameters=copy.parameters)
            )
            copy.keep()
        return copy
