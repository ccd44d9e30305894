"""A data set is five tensors and a name; `load` finds one by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from secateurs.data.dataset import Dataset
from secateurs.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a data set comes from: `read(folder or None, download)` returns it or raises
    `DataError`.
    """

    read: Callable[[Path | None, bool], Dataset]
    summary: str


DATA: Registry[Source] = Registry("data set")


def load(
    name: str, *, root: str | Path | None = None, download: bool = False
) -> Dataset:
    """A data set by name, from a folder on this machine.

    Args:
        name: one of `DATA`.
        root: the folder with its files, or the folder above. By default `$SECATEURS_DATA` or
            `~/.cache/secateurs`, and the places where Linux distributions install it.
        download: fetch missing files from the canonical place, checked against their published
            checksums. Nothing is ever fetched without it.

    Raises:
        DataError: files are missing (the message says how to get them), damaged or foreign.
        MissingExtra: an optional package is needed to read it.
    """
    return DATA[name].read(
        None if root is None else Path(root).expanduser(), download
    )
