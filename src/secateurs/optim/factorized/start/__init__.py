"""How factors begin: drawn for an initial law, or from pretrained weights."""
