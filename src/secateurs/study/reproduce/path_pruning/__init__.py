"""Magnitude against Φ-pruning (Gonon et al. 2024): overlap of masks, prune, rewind, retrain, with
random rescaling.
"""
