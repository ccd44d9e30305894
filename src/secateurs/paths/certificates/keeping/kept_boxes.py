"""The boxes of a record: from its text, or from the file beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from secateurs.errors import DomainError
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.keeping.record import read_domain


def kept_boxes(record: Mapping[str, Any], beside: Path | None) -> Domain:
    """The boxes that a record holds itself, or in the file beside it."""
    name = record.get("file")
    if name is None or beside is None:
        return read_domain(record, {})
    # Only a plain name beside the record: a text from elsewhere must not point anywhere else.
    if Path(name).name != name or not (beside / name).is_file():
        raise DomainError(
            f"the boxes lie in {name!r}, which is not beside the record."
        )
    return read_domain(record, _tensors(beside / name))


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise DomainError(f"{path} is damaged: {error}.") from None
