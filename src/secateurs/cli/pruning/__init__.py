"""`secateurs prune`: what was asked for, and the work."""
