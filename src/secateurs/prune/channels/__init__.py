"""Pruning whole channels: weights, biases, norms and every layer that reads them."""
