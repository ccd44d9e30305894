"""How much of a network may be pruned: a model read as a chain, and widths that suffice."""
