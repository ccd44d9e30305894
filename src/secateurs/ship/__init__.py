"""Turns a sparse model into something smaller and faster; each step is checked against the model it
came from.
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.ship.density_for import density_for
    from secateurs.ship.export import Exported, export
    from secateurs.ship.fast.accelerated import accelerate
    from secateurs.ship.fast.module import FastModule, FastReport
    from secateurs.ship.latency import LatencyTable, LayerTimes, latency_table
    from secateurs.ship.measure import FormFigures, Latency, Measured, measure
    from secateurs.ship.onnx import OnnxModule, in_onnxruntime

__all__ = [
    "Exported",
    "FastModule",
    "FastReport",
    "FormFigures",
    "Latency",
    "LatencyTable",
    "LayerTimes",
    "Measured",
    "OnnxModule",
    "accelerate",
    "density_for",
    "export",
    "in_onnxruntime",
    "latency_table",
    "measure",
]

open_on_first_use(__name__)
