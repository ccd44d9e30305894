"""CIFAR-10 and CIFAR-100 in their binary version (never the pickled one): records of label bytes
and 3072 pixels.
"""

import tarfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from secateurs.data.base import DATA, Source
from secateurs.data.dataset import Dataset
from secateurs.data.files import fetch, home, missing, places
from secateurs.data.making import from_pixels
from secateurs.errors import DataError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One of the two sets: its archive, the folder and files inside, and how many label bytes lead
    a record.
    """

    name: str
    address: str
    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    classes: int
    records: int
    """Records of each file, at most."""


CIFAR10 = Layout(
    name="cifar-10",
    address="https://www.cs.toronto.edu/~kriz/",
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)),
    test="test_batch.bin",
    label_bytes=1,
    classes=10,
    records=10_000,
)
CIFAR100 = Layout(
    name="cifar-100",
    address="https://www.cs.toronto.edu/~kriz/",
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    label_bytes=2,  # the coarse label, then the fine one, which is the class
    classes=100,
    records=50_000,
)


def read_cifar(layout: Layout, root: Path | None, download: bool) -> Dataset:
    """The set from its unpacked folder or its archive, whichever is found first; normalised per
    channel.
    """
    looked = places(root, (layout.folder, layout.name))
    found = next(
        (place for folder in looked if (place := _holder(layout, folder))), None
    )
    if found is None and download:
        archive = (root or home()) / layout.archive
        found = fetch(f"{layout.address}{layout.archive}", archive, md5=layout.md5)
    if found is None:
        raise missing(layout.name, looked, _ways(layout, root or home()))
    bodies = _unpacked(layout, found) if found.is_dir() else _archived(layout, found)
    parts = [_records(layout, found / name, body) for name, body in bodies.items()]
    train = (
        torch.cat([x for x, _ in parts[:-1]]),
        torch.cat([y for _, y in parts[:-1]]),
    )
    return from_pixels(
        layout.name, train, parts[-1], classes=layout.classes, normalise=True
    )


def _holder(layout: Layout, folder: Path) -> Path | None:
    """The folder itself if all files lie in it, else the archive if that lies in it."""
    if all((folder / name).is_file() for name in (*layout.train, layout.test)):
        return folder
    archive = folder / layout.archive
    return archive if archive.is_file() else None


def _unpacked(layout: Layout, folder: Path) -> dict[str, bytes]:
    return {
        name: _bounded(layout, folder / name) for name in (*layout.train, layout.test)
    }


def _bounded(layout: Layout, path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_most(layout) + 1)


def _archived(layout: Layout, archive: Path) -> dict[str, bytes]:
    """The wanted members, read without unpacking anything to disk."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            return {
                name: _member(layout, tar, name)
                for name in (*layout.train, layout.test)
            }
    # What a damaged archive raises depends on where it is damaged.
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:
        raise DataError(
            f"{archive} cannot be read: {error}. Delete it and get it again."
        ) from error


def _member(layout: Layout, tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(f"{layout.folder}/{name}")
    if file is None:
        raise tarfile.TarError(f"its member {name} is no file")
    return file.read(_most(layout) + 1)


def _records(layout: Layout, path: Path, body: bytes) -> tuple[Tensor, Tensor]:
    width = layout.label_bytes + PIXELS
    if not body or len(body) % width or len(body) > _most(layout):
        raise DataError(
            f"{path} has {len(body)} bytes or more, which is not 1 to {layout.records} records of"
            f" {width} bytes. Delete it and get it again."
        )
    # A bytearray, since torch warns of memory that it may not write to.
    table = torch.frombuffer(bytearray(body), dtype=torch.uint8).view(-1, width)
    return (
        table[:, layout.label_bytes :].reshape(-1, 3, 32, 32),
        # The last label byte is the class, in both sets.
        table[:, layout.label_bytes - 1].long(),
    )


def _most(layout: Layout) -> int:
    return layout.records * (layout.label_bytes + PIXELS)


def _ways(layout: Layout, folder: Path) -> list[str]:
    return [
        f"load({layout.name!r}, download=True)",
        f"put {layout.archive} (the binary version) from {layout.address} into {folder}",
    ]


def _register(layout: Layout, summary: str) -> None:
    DATA.register(layout.name)(
        Source(read=partial(read_cifar, layout), summary=summary)
    )


_register(CIFAR10, "50,000 + 10,000 colour 32×32 images of 10 classes, normalised")
_register(CIFAR100, "50,000 + 10,000 colour 32×32 images of 100 classes, normalised")
