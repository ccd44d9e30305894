"""Figures 5a, 10 and 13: what is left of every layer, how large it is, and weights that never
move.
"""
