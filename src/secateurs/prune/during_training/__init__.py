"""Pruning while training: gradual schedules and iterative magnitude pruning."""
