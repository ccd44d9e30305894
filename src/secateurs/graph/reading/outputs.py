"""All tensors of what a model returns, by their dotted paths."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def outputs_of(result: Any) -> dict[str, Tensor]:
    """The tensors a model returned, by their dotted paths."""
    return dict(flatten(result, ""))


def flatten(out: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output with their dotted paths."""
    if isinstance(out, Tensor):
        yield path, out
        return
    items: list[tuple[Any, Any]] = []
    if isinstance(out, Mapping):
        items = list(out.items())
    elif is_dataclass(out) and not isinstance(out, type):
        items = [(field.name, getattr(out, field.name)) for field in fields(out)]
    elif isinstance(out, tuple) and hasattr(out, "_fields"):
        items = list(zip(out._fields, out, strict=True))
    elif isinstance(out, list | tuple):
        items = list(enumerate(out))
    for key, value in items:
        yield from flatten(value, f"{path}.{key}" if path else str(key))
