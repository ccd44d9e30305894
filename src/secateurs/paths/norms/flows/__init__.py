"""What travels through a graph, one small class per analysis."""
