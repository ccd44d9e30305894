"""Masks: how much is kept (budgets, scopes), in which shapes (patterns), chosen how (selections)."""

from secateurs.masks.apply import apply_, check
from secateurs.masks.budget import SCOPES, Demand, share
from secateurs.masks.pattern import NM, PATTERNS, Block, Channel, Filter, Kernel, Unstructured, pattern_of
from secateurs.masks.report import SparsityReport, TensorSparsity, sparsity
from secateurs.masks.select import select

__all__ = [
    "NM",
    "PATTERNS",
    "SCOPES",
    "Block",
    "Channel",
    "Demand",
    "Filter",
    "Kernel",
    "SparsityReport",
    "TensorSparsity",
    "Unstructured",
    "apply_",
    "check",
    "pattern_of",
    "select",
    "share",
    "sparsity",
]
