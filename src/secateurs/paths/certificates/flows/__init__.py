"""What travels through the graph of a pair: intervals, affine forms, relaxations, rounding."""
