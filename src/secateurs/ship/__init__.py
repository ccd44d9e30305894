"""From a sparse model to something smaller and faster, each step checked against the model it
came from.
"""

from secateurs.ship.compaction import Compaction, Kept, Narrowed, compact
from secateurs.ship.exporting import Exported, OnnxModule, export, in_onnxruntime
from secateurs.ship.fast import FastModule, FastReport, accelerate
from secateurs.ship.files import (
    FileSizes,
    SparseFile,
    load_sparse,
    read_sparse,
    save_sparse,
    unpack_sparse,
)
from secateurs.ship.macs import macs
from secateurs.ship.measuring import FormFigures, Latency, Measured, measure
from secateurs.ship.timing import LatencyTable, LayerTimes, latency_table
from secateurs.ship.work import LayerMacs, Macs

__all__ = [
    "Compaction",
    "Exported",
    "FastModule",
    "FastReport",
    "FileSizes",
    "FormFigures",
    "Kept",
    "Latency",
    "LatencyTable",
    "LayerMacs",
    "LayerTimes",
    "Macs",
    "Measured",
    "Narrowed",
    "OnnxModule",
    "SparseFile",
    "accelerate",
    "compact",
    "export",
    "in_onnxruntime",
    "latency_table",
    "load_sparse",
    "macs",
    "measure",
    "read_sparse",
    "save_sparse",
    "unpack_sparse",
]
