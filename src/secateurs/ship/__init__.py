"""From a sparse model to something smaller and faster, each step checked against the model it
came from.
"""

from secateurs.ship.compaction import Compaction, Kept, Narrowed, compact
from secateurs.ship.exporting import Exported, export
from secateurs.ship.fast import FastModule, FastReport, accelerate
from secateurs.ship.files import (
    FileSizes,
    SparseFile,
    load_sparse,
    read_sparse,
    save_sparse,
    unpack_sparse,
)
from secateurs.ship.macs import LayerMacs, Macs, macs

__all__ = [
    "Compaction",
    "Exported",
    "FastModule",
    "FastReport",
    "FileSizes",
    "Kept",
    "LayerMacs",
    "Macs",
    "Narrowed",
    "SparseFile",
    "accelerate",
    "compact",
    "export",
    "load_sparse",
    "macs",
    "read_sparse",
    "save_sparse",
    "unpack_sparse",
]
