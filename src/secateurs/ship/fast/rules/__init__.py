"""One rule per operator the kernels run: each writes its operation, or says why this use stays in
torch.

A rule registers itself when its file is imported, so importing this package registers them all.
"""

from secateurs.ship.fast.rules import activations, arithmetic, layers, moves, pools

__all__ = ["activations", "arithmetic", "layers", "moves", "pools"]
