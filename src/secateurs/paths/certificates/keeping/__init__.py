"""A certificate as text: what it is worth, what is written, how it is proved again."""
