"""Hashes of a model's weights, equal wherever and in whatever precision they are kept.

A certificate says by them which networks it is about, and a file keeps only a certificate of its
own weights.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from secateurs.base.parameters import unwrap

CERTIFICATE_FORMAT = "secateurs certificate 1"
"""What a kept certificate of ours says of itself; its `states` are hashes of this file."""


def state_hash(model: nn.Module | Mapping[str, Tensor]) -> str:
    """SHA-256 of parameters and persistent buffers by name, tied ones once.

    Equal for a model, its state dict, and what is loaded from a file of it.
    """
    return hash_tensors(tensors_that_count(model))


def tensors_that_count(model: nn.Module | Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors that matter, tied ones once."""
    state = unwrap(model).state_dict(keep_vars=True) if isinstance(model, nn.Module) else model
    known = set[object]()
    for name, value in state.items():
        # Updated in training, but not read in evaluation mode.
        if not isinstance(value, Tensor) or name.endswith("num_batches_tracked"):
            continue
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if not value.numel() or place not in known:
            known.add(place)
            yield name, value


def hash_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of tensors by name, in any order, whatever their precision."""
    lines = [f"{name} {tuple(value.shape)} {_content_hash(value)}" for name, value in tensors]
    # Sorted, since files keep their tensors in their own order.
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _content_hash(value: Tensor) -> str:
    value = value.detach()
    if value.is_quantized:
        value = value.dequantize()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if not value.is_floating_point():
        value = value.to(torch.int64)
    elif value.dtype == torch.float64:
        # In one format, so that the same values hash alike in every precision.
        short = value.float()
        value = short if torch.equal(short.double(), value) else value
    else:
        value = value.float()
    whole = _little_endian(value, value.dtype).reshape(-1)
    return hashlib.sha256(whole.view(numpy.uint8).data).hexdigest()


def bytes_of(value: Tensor, dtype: torch.dtype) -> bytes:
    """Little-endian bytes, the same on every machine."""
    return _little_endian(value, dtype).tobytes()


def _little_endian(value: Tensor, dtype: torch.dtype) -> numpy.ndarray[Any, Any]:
    """A contiguous little-endian tensor, the same memory if it already is one."""
    array = numpy.ascontiguousarray(value.detach().cpu().to(dtype).numpy())
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
