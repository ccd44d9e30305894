"""The published experiments, each a list of jobs with a table and figures to compare with the
paper.
"""
