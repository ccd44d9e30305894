"""Small data files in the real formats, made by the tests."""

import gzip
import io
import struct
import tarfile

import numpy as np

from secateurs_lab.data.images import PARTS


def idx(array: np.ndarray) -> bytes:
    """The bytes of an IDX file of unsigned bytes."""
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def family(train: int = 6, test: int = 4) -> dict[str, bytes]:
    """The four files of an MNIST-like set: image i is filled with the byte i."""
    files = {}
    for count, images, labels in (
        (train, PARTS[0], PARTS[1]),
        (test, PARTS[2], PARTS[3]),
    ):
        files[images] = idx(
            np.arange(count, dtype=np.uint8)[:, None, None].repeat(28, 1).repeat(28, 2)
        )
        files[labels] = idx(np.arange(count, dtype=np.uint8) % 10)
    return files


def write_family(folder, *, compressed: bool = False, **counts: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in family(**counts).items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(body, mtime=0))
        else:
            (folder / name).write_bytes(body)


def record(label: bytes, red: int, green: int, blue: int) -> bytes:
    """One CIFAR record: label bytes, then three planes of one value each."""
    return label + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def cifar(layout, count: int = 3) -> dict[str, bytes]:
    """The files of a CIFAR set; the fine label of record i is i, which no pixel is."""
    lead = b"\x07" * (layout.label_bytes - 1)
    body = b"".join(record(lead + bytes([i]), 50 + i, 100 + i, 255 - i) for i in range(count))
    return dict.fromkeys((*layout.train, layout.test), body)


def archive(folder: str, files: dict[str, bytes]) -> bytes:
    """A gzip-compressed tar of files in one folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return buffer.getvalue()
