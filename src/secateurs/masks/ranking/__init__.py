"""The best entries of many tensors at once: exact thresholds, top-k, whole units, compiled."""
