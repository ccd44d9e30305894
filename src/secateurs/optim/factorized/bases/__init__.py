"""Torch optimizers as the base of `Factorized`: which can move factors, their state, their step."""
