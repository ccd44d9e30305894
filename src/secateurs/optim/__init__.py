"""Sparse training through the optimizer: holding zeros, and optimizers that make them."""

from secateurs.optim.hold import Held, hold

__all__ = ["Held", "hold"]
