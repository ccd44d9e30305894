"""One file a score: what a weight is worth.

A file is opened when its score is asked for. To add one, copy `magnitude.py`, give its name and
place to `SCORES` in `secateurs/scores/task.py`, and add its row to the table of docs/scores.md (a
test compares the table with the registry).
"""
