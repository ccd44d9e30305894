"""Turns a sparse model into something smaller and faster; each step is checked against the model it
came from.
"""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.ship.density_for import density_for
    from secateurs.ship.export import OnnxModule, export, in_onnxruntime
    from secateurs.ship.fast import FastModule, FastReport, accelerate
    from secateurs.ship.files import (
        FileSizes,
        SparseFile,
        load_sparse,
        read_sparse,
        save_sparse,
        unpack_sparse,
    )
    from secateurs.ship.latency import LatencyTable, LayerTimes, latency_table
    from secateurs.ship.measure import FormFigures, Latency, Measured, measure
    from secateurs.ship.programs import Exported

__all__ = [
    "Exported",
    "FastModule",
    "FastReport",
    "FileSizes",
    "FormFigures",
    "Latency",
    "LatencyTable",
    "LayerTimes",
    "Measured",
    "OnnxModule",
    "SparseFile",
    "accelerate",
    "density_for",
    "export",
    "in_onnxruntime",
    "latency_table",
    "load_sparse",
    "measure",
    "read_sparse",
    "save_sparse",
    "unpack_sparse",
]

open_on_first_use(__name__)
