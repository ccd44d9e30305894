"""Pruning a model at initialisation, after or during training: recipes, rounds, rewinding."""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.prune.channels import PrunedChannels, cut_channels, prune_channels_
    from secateurs.prune.gradual import GradualPruning
    from secateurs.prune.imp import ImpResult, ImpRound, imp_
    from secateurs.prune.pruning import Pruned, cut, prune_
    from secateurs.prune.recipe import PlannedParameter, PruningPlan, Recipe
    from secateurs.prune.rewind import ImpRun, Snapshot
    from secateurs.prune.rounds import SCHEDULES, Round, counts

__all__ = [
    "SCHEDULES",
    "GradualPruning",
    "ImpResult",
    "ImpRound",
    "ImpRun",
    "PlannedParameter",
    "Pruned",
    "PrunedChannels",
    "PruningPlan",
    "Recipe",
    "Round",
    "Snapshot",
    "counts",
    "cut",
    "cut_channels",
    "imp_",
    "prune_",
    "prune_channels_",
]

open_on_first_use(__name__)
