"""Masks drawn at random from scores: with and without replacement, systematic."""
