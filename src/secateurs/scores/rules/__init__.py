"""One file a score: what a weight is worth."""
