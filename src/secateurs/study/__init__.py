"""Studies: published experiments as functions that return tables."""
