"""`secateurs train`: the command, its methods, and the work."""
