"""Sparse files: what is not zero, exact to the bit, in one safetensors file. The layout is in
docs/format.md."""

from secateurs.ship.files.load import load_sparse, unpack_sparse
from secateurs.ship.files.read import SparseFile, read_sparse
from secateurs.ship.files.sizes import FileSizes
from secateurs.ship.files.write import save_sparse

__all__ = ["FileSizes", "SparseFile", "load_sparse", "read_sparse", "save_sparse", "unpack_sparse"]
