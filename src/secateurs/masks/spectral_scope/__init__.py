"""Budgets that spend a total where it costs least: the error curves of the layers."""
