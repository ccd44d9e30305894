"""One label per channel of every value, united where the network ties channels to each other."""

from secateurs.ship.compaction.labels.flow import labelled
from secateurs.ship.compaction.labels.labelled import Labelled, Use, told

__all__ = ["Labelled", "Use", "labelled", "told"]
