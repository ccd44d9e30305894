"""Convolutions for the kernels: the ways one can run, and what each way copies and lists."""

from secateurs.ship.fast.convolve.candidates import candidates
from secateurs.ship.fast.convolve.choice import LINE, Choice, stride
from secateurs.ship.fast.convolve.copies import (
    Copies,
    copies,
    edges,
    local,
    needed,
    spans,
)
from secateurs.ship.fast.convolve.entries import entries, turns

__all__ = [
    "LINE",
    "Choice",
    "Copies",
    "candidates",
    "copies",
    "edges",
    "entries",
    "local",
    "needed",
    "spans",
    "stride",
    "turns",
]
