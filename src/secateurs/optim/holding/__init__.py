"""Keeping zeros at zero through any optimizer."""
