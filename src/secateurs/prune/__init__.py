"""Pruning a model at initialisation, after or during training: recipes, rounds, rewinding."""

from secateurs.prune.step import Step
from secateurs.prune.to_bound import PrunedToBound, prune_to_bound_

__all__ = ["PrunedToBound", "Step", "prune_to_bound_"]
