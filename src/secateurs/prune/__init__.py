"""Pruning a model at initialisation, after or during training: recipes, rounds, rewinding."""

from secateurs.prune.step import Step

__all__ = ["Step"]
