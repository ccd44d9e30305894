"""Which channels an input reaches, which an output uses, and what the others emit."""

from secateurs.ship.compaction.reach.forward import reach
from secateurs.ship.compaction.reach.known import Reach

__all__ = ["Reach", "reach"]
