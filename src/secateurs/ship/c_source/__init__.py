"""A network as one C file."""

from secateurs.ship.c_source.source import c_source

__all__ = ["c_source"]
