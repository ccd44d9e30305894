"""Pruning a model at initialisation, after or during training: recipes, rounds, rewinding."""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.prune.block_by_block.prune_blocks import (
        PrunedBlocks,
        prune_blocks_,
    )
    from secateurs.prune.channels.cut import cut_channels, prune_channels_
    from secateurs.prune.channels.pruned import PrunedChannels
    from secateurs.prune.checked.invariance import Invariance, check_invariance
    from secateurs.prune.checked.to_bound import PrunedToBound, prune_to_bound_
    from secateurs.prune.during_training.found import Imp, ImpRound
    from secateurs.prune.during_training.gradual import Gradual
    from secateurs.prune.during_training.imp import imp, imp_
    from secateurs.prune.during_training.rewind import Run
    from secateurs.prune.during_training.snapshot import Snapshot
    from secateurs.prune.on_disk.prune_file import PrunedFile, prune_file
    from secateurs.prune.plan import Plan, PlannedParameter
    from secateurs.prune.pruned import Pruned
    from secateurs.prune.pruning import cut, prune_
    from secateurs.prune.recipe import Recipe
    from secateurs.prune.rounds import Round
    from secateurs.prune.schedule import SCHEDULES, counts
    from secateurs.step import Step

__all__ = [
    "SCHEDULES",
    "Gradual",
    "Imp",
    "ImpRound",
    "Invariance",
    "Plan",
    "PlannedParameter",
    "Pruned",
    "PrunedBlocks",
    "PrunedChannels",
    "PrunedFile",
    "PrunedToBound",
    "Recipe",
    "Round",
    "Run",
    "Snapshot",
    "Step",
    "check_invariance",
    "counts",
    "cut",
    "cut_channels",
    "imp",
    "imp_",
    "prune_",
    "prune_blocks_",
    "prune_channels_",
    "prune_file",
    "prune_to_bound_",
]

open_on_first_use(__name__)
