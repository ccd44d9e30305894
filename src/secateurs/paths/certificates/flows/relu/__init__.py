"""Planes around a ReLU, and around the difference of two."""
