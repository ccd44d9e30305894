"""Pruning a model at initialisation, after or during training: recipes, rounds, rewinding."""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.prune.blocks import PrunedBlocks, prune_blocks_
    from secateurs.prune.channels import PrunedChannels, cut_channels, prune_channels_
    from secateurs.prune.drop import DroppedBlocks, drop_blocks_
    from secateurs.prune.gradual import GradualPruning
    from secateurs.prune.imp import ImpResult, ImpRound, imp_
    from secateurs.prune.invariance import Invariance, check_invariance
    from secateurs.prune.on_disk import PrunedFile, prune_file
    from secateurs.prune.perplexity import Perplexity, perplexity
    from secateurs.prune.pruning import Pruned, cut, prune_
    from secateurs.prune.recipe import PlannedParameter, PruningPlan, Recipe
    from secateurs.prune.rewind import ImpRun, Snapshot
    from secateurs.prune.rounds import SCHEDULES, Round, counts
    from secateurs.prune.to_bound import PrunedToBound, prune_to_bound_
    from secateurs.step import Step

__all__ = [
    "SCHEDULES",
    "DroppedBlocks",
    "GradualPruning",
    "ImpResult",
    "ImpRound",
    "ImpRun",
    "Invariance",
    "Perplexity",
    "PlannedParameter",
    "Pruned",
    "PrunedBlocks",
    "PrunedChannels",
    "PrunedFile",
    "PrunedToBound",
    "PruningPlan",
    "Recipe",
    "Round",
    "Snapshot",
    "Step",
    "check_invariance",
    "counts",
    "cut",
    "cut_channels",
    "drop_blocks_",
    "imp_",
    "perplexity",
    "prune_",
    "prune_blocks_",
    "prune_channels_",
    "prune_file",
    "prune_to_bound_",
]

open_on_first_use(__name__)
