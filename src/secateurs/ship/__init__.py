"""From a sparse model to something smaller and faster, each step checked against the model it
came from.
"""

from secateurs.ship.macs import LayerMacs, Macs, macs

__all__ = ["LayerMacs", "Macs", "macs"]
