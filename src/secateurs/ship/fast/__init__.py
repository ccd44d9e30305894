"""The fast path: a sparse network as a program of compiled kernels."""

from secateurs.ship.fast.accelerated import accelerate
from secateurs.ship.fast.module import FastModule, FastReport, Layer

__all__ = [
    "FastModule",
    "FastReport",
    "Layer",
    "accelerate",
]
