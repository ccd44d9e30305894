"""Engines: who does the runs of a study, and where."""
