"""Mask files: one bit per entry, checked before any of it is used; the import of torch's masks."""
