"""Who computes a factorized step: the compiled kernel, torch one by one, or foreach."""
