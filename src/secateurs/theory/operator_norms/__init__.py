"""Exact and certified norms of linear layers: matrices, convolutions, every padding."""
