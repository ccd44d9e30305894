"""How factors begin: drawn for an initial law, or from pretrained weights.

`init` has the table of starts; importing this package files them all.
"""

from secateurs.optim.factorized.start import factors, truncated  # noqa: F401
