"""JSON of others, read with suspicion: one object, without names given twice."""

import json
from typing import Any

from secateurs.errors import SecateursError


def json_object(
    text: bytes, where: str, error: type[SecateursError], *, most: int | None = None
) -> dict[str, Any]:
    """A JSON object in which no key is repeated. `most`: how many objects it may hold."""
    # Every one of them would cost a hundred bytes or more.
    if most is not None and text.count(b"{") > most + 2:
        raise error(f"{where} describes more than {most} tensors.")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    # Brackets nested thousands deep end in a RecursionError.
    except (ValueError, RecursionError) as problem:
        raise error(f"{where} is not valid JSON ({str(problem)[:120]}).") from None
    if not isinstance(value, dict):
        raise error(f"{where} is not a JSON object.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        key.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
        if key in fields:
            raise ValueError(f"{quote(key)} is given twice")
        fields[key] = value
    return fields


def quote(value: object) -> str:
    """A name, or any value in its place, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
