"""The header of a safetensors file: names given twice are refused, notes keep their order."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from secateurs.errors import DataError
from secateurs.pickles import conversion_of

HEADER_LIMIT = 100_000_000
"""safetensors' own limit on the header, in bytes."""


def written(tensors: dict[str, Tensor], notes: Mapping[str, str]) -> bytes:
    """What safetensors would write, with the notes in a fixed order: it shuffles them from call to
    call.
    """
    blob = save(tensors)
    end = 8 + int.from_bytes(blob[:8], "little")
    header = {"__metadata__": dict(sorted(notes.items())), **json.loads(blob[8:end])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors stay aligned to eight bytes
    return len(text).to_bytes(8, "little") + text + blob[end:]


def check_header(path: Path) -> None:
    """What safetensors lets pass: a name given twice, of which it would take the last."""
    try:
        with path.open("rb") as file:
            begin = file.read(8)
            length = int.from_bytes(begin, "little")
            if not 2 <= length <= min(HEADER_LIMIT, path.stat().st_size):
                raise DataError(
                    conversion_of(path, begin)
                    or f"{path} is no safetensors file: it does not begin with the length of a"
                    " header."
                )
            json.loads(file.read(length), object_pairs_hook=_unique)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is no readable safetensors file: {error}. Save it again."
        ) from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    twice = (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )
    if twice is not None:
        raise ValueError(f"the name {twice!r} is given twice")
    return dict(pairs)
