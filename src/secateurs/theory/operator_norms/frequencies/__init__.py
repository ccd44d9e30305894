"""Parts of the search over the frequencies of a circular convolution."""
