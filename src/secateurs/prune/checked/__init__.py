"""Pruning that keeps a promise: up to a certified bound, and scores checked for invariance."""
