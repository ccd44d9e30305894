"""Many short runs at once: grids of strengths and seeds, the largest stable learning rate."""
