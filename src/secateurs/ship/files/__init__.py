"""Sparse files: the non-zeros, exact to the bit, in one safetensors file. The layout is in
docs/format.md.
"""

from secateurs.ship.files.read import (
    SparseFile,
    check_file,
    is_sparse_file,
    load_sparse,
    notes_of,
    read_sparse,
    unpack_sparse,
)
from secateurs.ship.files.write import FileSizes, save_sparse

__all__ = [
    "FileSizes",
    "SparseFile",
    "check_file",
    "is_sparse_file",
    "load_sparse",
    "notes_of",
    "read_sparse",
    "save_sparse",
    "unpack_sparse",
]
