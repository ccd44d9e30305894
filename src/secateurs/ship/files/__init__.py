"""Sparse files: what is not zero, exact to the bit, in one safetensors file. The layout is in
docs/format.md."""

from secateurs.ship.files.load import (
    check_file,
    is_sparse_file,
    load_sparse,
    notes_of,
    unpack_sparse,
)
from secateurs.ship.files.read import SparseFile, read_sparse
from secateurs.ship.files.sizes import FileSizes
from secateurs.ship.files.write import save_sparse

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
