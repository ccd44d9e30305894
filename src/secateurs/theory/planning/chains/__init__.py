"""Reading a model as the chain of layers that the theorems speak of."""
