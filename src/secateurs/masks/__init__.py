"""Masks: how much is kept (budgets, scopes), in which shapes (patterns), chosen how
(selections).
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.masks.apply import apply_, check
    from secateurs.masks.budget import Demand, share
    from secateurs.masks.draw import SELECTIONS
    from secateurs.masks.files import load_masks, save_masks
    from secateurs.masks.patterns import (
        NM,
        PATTERNS,
        Block,
        Channel,
        Filter,
        Kernel,
        Unstructured,
        pattern_of,
    )
    from secateurs.masks.report import SparsityReport, TensorSparsity, sparsity_report
    from secateurs.masks.select import SCOPES, select
    from secateurs.masks.sketch import Sketch, sketch
    from secateurs.masks.spectral import spectral
    from secateurs.masks.torch_prune import Imported, from_torch_prune

__all__ = [
    "NM",
    "PATTERNS",
    "SCOPES",
    "SELECTIONS",
    "Block",
    "Channel",
    "Demand",
    "Filter",
    "Imported",
    "Kernel",
    "Sketch",
    "SparsityReport",
    "TensorSparsity",
    "Unstructured",
    "apply_",
    "check",
    "from_torch_prune",
    "load_masks",
    "pattern_of",
    "save_masks",
    "select",
    "share",
    "sketch",
    "sparsity_report",
    "spectral",
]

open_on_first_use(__name__)
