"""Deep weight factorization as an optimizer: factors are its state, the model stays plain."""
