"""Which dimension of a weight is output and which is input, from whoever uses it."""
