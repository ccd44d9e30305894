"""What a smaller or faster form of a model is worth on this machine, measured side by side."""

from secateurs.ship.measuring.figures import FormFigures, Latency
from secateurs.ship.measuring.measure import measure
from secateurs.ship.measuring.result import Measured

__all__ = ["FormFigures", "Latency", "Measured", "measure"]
