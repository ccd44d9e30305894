"""Tensors inside nested tuples, lists, mappings and dataclasses."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
        return
    for part in _parts(value):
        yield from tensors(part)


def map_tensors(value: Any, change: Any) -> Any:
    """The same nesting of tuples, lists and mappings with every tensor changed; other values
    stay.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(part, change) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [map_tensors(part, change) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, entry.name) for entry in fields(value)]
    return ()
