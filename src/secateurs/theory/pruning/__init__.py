"""The theorems on random and magnitude pruning, as printed and with explicit constants."""
