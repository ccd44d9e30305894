"""Path norms, Φ-costs and path metrics, exact in any range by exponents."""
