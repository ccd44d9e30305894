"""Parts of a problem: the time it may take, and the signs of its parameters."""
