"""Masks: how much is kept (budgets, scopes), in which shapes (patterns), chosen how
(selections).
"""

from secateurs.masks import scopes  # noqa: F401  (the file registers its scopes)
from secateurs.masks.apply import apply_, check
from secateurs.masks.budget import SCOPES, Demand, share
from secateurs.masks.drawing.draw import SELECTIONS
from secateurs.masks.files.files import load_masks, save_masks
from secateurs.masks.files.torch_prune import Imported, from_torch_prune
from secateurs.masks.pattern import PATTERNS, Unstructured, pattern_of
from secateurs.masks.report import sparsity
from secateurs.masks.select import select
from secateurs.masks.shapes.nm import NM
from secateurs.masks.shapes.slices import Channel, Filter, Kernel
from secateurs.masks.shapes.tiles import Block
from secateurs.masks.sketch import Sketch, sketch
from secateurs.masks.sparsity_report import SparsityReport
from secateurs.masks.spectral_scope.scope import spectral
from secateurs.masks.tensor_sparsity import TensorSparsity

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
    "sparsity",
    "spectral",
]
