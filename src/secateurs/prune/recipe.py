"""A recipe: how important, how much where, in which shapes, chosen how, in how many rounds."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from secateurs.parameters import Params
from secateurs.prune.check import check
from secateurs.prune.fields import Fields
from secateurs.prune.plan import Plan
from secateurs.scores import Inputs, Loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe(Fields):
    """Any score with any budget, pattern, selection and schedule. Checked when it is made, all
    problems in one error.

    Attributes:
        score: A registered score or your own rule (see `secateurs.score`).
        sparsity, density, compression: Exactly one of them, of all chosen parameters together; none
            where the pattern (N:M) or the scope (a density per parameter) says how much is kept.
        macs: Instead, the share of multiplications that is left, for `prune_` and `cut`: the
            density is found by halving, and each of 14 tries scores and cuts anew.
        latency: Instead, the share of the dense network's time on this machine, estimated from a
            `secateurs.latency_table` of its layers; found in the same way.
        rounds: How often to score and cut; the score of each round sees what the rounds before
            left.
        schedule: How the entries kept fall over the rounds; None is "exponential", and "cubic" in
            `Gradual`.
        scope, pattern, how, floor: See `secateurs.select`.
        where: Which parameters; None is the default rule of `secateurs.parameters.choose`.
        convention, options: Passed to the score.

    >>> recipe = Recipe(score="synflow", sparsity=0.98, rounds=100)
    >>> Recipe(score="synflow", sparsty=0.98)
    Traceback (most recent call last):
        ...
    secateurs.errors.UnknownNameError: this recipe cannot be read: there is no field ...
    """

    def check(
        self,
        model: nn.Module,
        *,
        example: Inputs | None = None,
        batch: Any = None,
        loss: Loss | None = None,
        within: Params | None = None,
        dry_run: bool = False,
        generator: torch.Generator | None = None,
    ) -> Plan:
        """Everything that stands in the way, what would be pruned or skipped and how much; nothing
        is changed.

        Where parameters compete for one budget, how much each keeps is decided by its scores;
        `dry_run=True` computes them, without touching the model or the generator.
        """
        given = {"example": example, "batch": batch, "loss": loss}
        return check(
            self,
            model,
            given=given,
            within=within or {},
            dry_run=dry_run,
            generator=generator,
        )
