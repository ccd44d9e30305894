"""Models in the formats of other runtimes, compared with the model before anything is kept."""

from secateurs.ship.exporting.export import export
from secateurs.ship.exporting.result import Exported
from secateurs.ship.exporting.session import OnnxModule, in_onnxruntime

__all__ = ["Exported", "OnnxModule", "export", "in_onnxruntime"]
