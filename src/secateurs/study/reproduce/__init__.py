"""Published experiments, one module per paper."""
