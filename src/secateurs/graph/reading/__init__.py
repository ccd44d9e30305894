"""Parts of reading a model: what it returns, regions and aliases in its program, refusals."""
