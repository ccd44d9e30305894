"""One file a score: what a weight is worth.

To add one, copy `magnitude.py`, import the new file in `secateurs/scores/__init__.py`, and add its
row to the table of docs/scores.md (a test compares the table with the registry).
"""
