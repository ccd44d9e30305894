"""Tails of norms of random matrices, one file for each way to bound them."""
