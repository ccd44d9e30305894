"""Tensors as text and back, the same bytes on every machine; files written whole."""

import base64
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from secateurs.errors import DomainError
from secateurs.writing import replacing

_KINDS = {"float32": "<f4", "float64": "<f8"}


def packed(value: Tensor) -> dict[str, Any]:
    """A tensor as text, in float32 where that keeps every value (inputs are float32 mostly)."""
    # Half the text where nothing is lost by it.
    exact = bool((value.float().double() == value.double()).all())
    dtype = torch.float32 if exact else torch.float64
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "data": base64.b64encode(bytes_of(value, dtype)).decode(),
    }


def unpacked(record: Any) -> Tensor:
    """The tensor of such a text, in float64."""
    try:
        kind = _KINDS[record["dtype"]]
        shape = [int(n) for n in record["shape"]]
        # validate: else characters that are no base64 would be skipped in silence.
        raw = base64.b64decode(record["data"], validate=True)
        array = numpy.frombuffer(raw, dtype=kind).astype("float64").reshape(shape)
    except (KeyError, TypeError, ValueError):
        raise DomainError("a tensor of the record is damaged.") from None
    return torch.from_numpy(array)


def write_whole(path: Path, content: bytes) -> None:
    """The file whole or not at all: written beside it first, then renamed."""
    with replacing(path, folders=False) as part:
        part.write_bytes(content)


def bytes_of(value: Tensor, dtype: torch.dtype) -> bytes:
    """Little-endian bytes, the same on every machine."""
    array = numpy.ascontiguousarray(value.detach().cpu().to(dtype).numpy())
    return array.astype(array.dtype.newbyteorder("<")).tobytes()
