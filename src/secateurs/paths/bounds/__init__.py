"""Bounds that need no second network: Lipschitz constants and generalization."""
