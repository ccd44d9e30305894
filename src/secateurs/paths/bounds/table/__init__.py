"""The comparison of generalisation bounds: its rows, what they are made of, when they apply."""
