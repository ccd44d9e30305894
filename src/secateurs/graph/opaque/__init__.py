"""Rules for operators that paths do not cover: what they carry through, channel by channel.

A rule receives what a lowering rule receives and writes one `Opaque` node, or a few nodes. An
operator without any rule becomes a node that mixes everything, so whatever passes through it stays.
"""

from secateurs.graph.opaque import elementwise, mixing, products
from secateurs.graph.opaque.reading import read_opaquely

__all__ = ["elementwise", "mixing", "products", "read_opaquely"]
