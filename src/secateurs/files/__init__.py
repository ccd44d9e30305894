"""Sparse files: what is not zero, exact to the bit."""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.files.read import (
        SparseFile,
        check_file,
        is_sparse_file,
        load_sparse,
        notes_of,
        read_sparse,
        unpack_sparse,
    )
    from secateurs.files.write import FileSizes, save_sparse

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

open_on_first_use(__name__)
