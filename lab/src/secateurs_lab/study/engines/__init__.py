"""Engines: what does the runs of a study, and where."""
