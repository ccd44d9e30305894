"""The IDX format of the MNIST family: a magic number, the dimensions, then bytes. Raw or
gzip-compressed.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch import Tensor

from secateurs.errors import DataError

MOST = 2**27
"""Bytes of the largest file accepted: the real ones have 47 million."""


def read_idx(path: Path, *, ndim: int) -> Tensor:
    """The bytes of an IDX file as a uint8 tensor of `ndim` dimensions; anything but an exact fit is
    refused.
    """
    try:
        with cast(
            BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")
        ) as file:
            return _read(file, path, ndim)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read: {error}. Delete it and get it again."
        ) from error


def _read(file: BinaryIO, path: Path, ndim: int) -> Tensor:
    head = file.read(4 + 4 * ndim)
    if len(head) < 4 + 4 * ndim or head[:4] != bytes((0, 0, 8, ndim)):
        raise DataError(
            f"{path} is no IDX file of unsigned bytes in {ndim} dimension(s): it starts with"
            f" {head[:4].hex() or 'nothing'} instead of 000008{ndim:02x}. Delete it and get it"
            " again."
        )
    # IDX is big-endian on every machine.
    shape = struct.unpack(f">{ndim}I", head[4:])
    total = math.prod(shape)
    # Before reading: a made-up header must not make us allocate what it claims.
    if not 0 < total <= MOST:
        raise DataError(
            f"{path} claims the shape {shape}, which no data set of this family has."
        )
    # One byte more than there should be, to notice a longer file.
    body = file.read(total + 1)
    if len(body) != total:
        held = "more bytes" if len(body) > total else f"{len(body)} bytes"
        raise DataError(
            f"{path} claims {total} bytes and holds {held}. Delete it and get it again."
        )
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).view(shape)
