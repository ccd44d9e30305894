"""Thresholds of magnitude pruning, and what lies below them."""
