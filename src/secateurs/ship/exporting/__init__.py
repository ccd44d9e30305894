"""Models in the formats of other runtimes, compared with the model before anything is kept."""

from secateurs.ship.exporting.export import export
from secateurs.ship.exporting.result import Exported

__all__ = ["Exported", "export"]
