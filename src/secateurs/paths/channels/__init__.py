"""Channels of a graph: which live, which go together, and how they may be rescaled."""
