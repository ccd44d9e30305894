"""The whole tool on a small network in under two minutes: train, prune, fine-tune with zeros held,
compare.

To extend it, append to `METHODS` (a row of the table) or to `SECTIONS` (something shown below it),
in `methods.py`.
"""

from secateurs.demo.bench import (
    Bench,
    Candidate,
    Method,
    Outcome,
    Row,
    Section,
    Settings,
)
from secateurs.demo.compare import run
from secateurs.demo.methods import METHODS, SECTIONS, by_recipe
from secateurs.demo.results import table, write

__all__ = [
    "METHODS",
    "SECTIONS",
    "Bench",
    "Candidate",
    "Method",
    "Outcome",
    "Row",
    "Section",
    "Settings",
    "by_recipe",
    "run",
    "table",
    "write",
]
