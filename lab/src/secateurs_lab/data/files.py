"""Where data files lie, and how they get there: the folders that are searched, and downloads, which
never leave half a file.
"""

import gzip
import hashlib
import math
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO, cast
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch
from torch import Tensor

from secateurs.errors import DataError

LIMIT = 2**30
"""No file of these data sets has more bytes; a longer download or archive member is refused."""


def home() -> Path:
    """The folder that holds the data sets: `$SECATEURS_DATA`, else `~/.cache/secateurs`."""
    return Path(
        os.environ.get("SECATEURS_DATA") or Path.home() / ".cache" / "secateurs"
    ).expanduser()


def places(root: Path | None, below: Sequence[str], installed: Iterable[str] = ()) -> list[Path]:
    """The folders to look in: the root and its usual sub-folders; without a root, the default and
    system ones.
    """
    top = home() if root is None else root
    system = [Path(folder) for folder in installed] if root is None else []
    return [top, *(top / name for name in below), *system]


def fetch(url: str, target: Path, *, md5: str = "", sha256: str = "") -> Path:
    """Download `url` to `target` and check it. The file appears under its name only when it is
    whole and right.
    """
    kind, published = ("SHA-256", sha256) if sha256 else ("MD5", md5)
    # urlopen also opens file: and ftp: addresses.
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} is not a web address; put the file at {target} yourself.")
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the folder of the target: a rename is atomic within one file system only.
    handle, part = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            found = _copy(url, file.write, kind)
        if found != published:
            raise DataError(
                f"{url} arrived with {kind} {found} instead of the published {published}; it was"
                f" discarded. Try again, or put the right file at {target}."
            )
        os.replace(part, target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return target


def _copy(url: str, write: Callable[[bytes], object], kind: str) -> str:
    """Stream the address into `write`; returns the MD5 or SHA-256 of what came."""
    digest, size = (
        # MD5 is what the canonical places publish; it guards against damage, and
        # machines in FIPS mode refuse it unless told so.
        hashlib.new(kind.replace("-", "").lower(), usedforsecurity=False),
        0,
    )
    try:
        with urlopen(url, timeout=60) as answer:
            while block := answer.read(1 << 20):
                size += len(block)
                # Counted while it arrives, since a server may send no length, or a wrong
                # one.
                if size > LIMIT:
                    raise DataError(
                        f"{url} sends more than {LIMIT} bytes; this is not the data set."
                    )
                digest.update(block)
                write(block)
    except (URLError, HTTPException, OSError) as error:
        raise DataError(
            f"cannot download {url}: {error}. Fetch it elsewhere and pass its folder as root=."
        ) from error
    return digest.hexdigest()


def missing(name: str, looked: Iterable[Path], ways: Sequence[str]) -> DataError:
    """The error for a missing data set: the folders that were searched, and each way to get the
    files.
    """
    folders = ", ".join(map(str, looked))
    return DataError(f"{name} was not found in {folders}. To get it: {'; or '.join(ways)}.")


# The IDX format of the MNIST family: a magic number, the dimensions, then bytes. Raw or gzip-
# compressed.

MOST = 2**27
"""Bytes of the largest file accepted: the real ones have 47 million."""


def read_idx(path: Path, *, ndim: int) -> Tensor:
    """The bytes of an IDX file as a uint8 tensor of `ndim` dimensions; anything but an exact fit is
    refused.
    """
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            return _read(file, path, ndim)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}. Delete it and get it again.") from error


def _read(file: BinaryIO, path: Path, ndim: int) -> Tensor:
    head = file.read(4 + 4 * ndim)
    if len(head) < 4 + 4 * ndim or head[:4] != bytes((0, 0, 8, ndim)):
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes in {ndim} dimension(s): it starts with"
            f" {head[:4].hex() or 'nothing'} instead of 000008{ndim:02x}. Delete it and get it"
            " again."
        )
    # IDX is big-endian on every machine.
    shape = struct.unpack(f">{ndim}I", head[4:])
    total = math.prod(shape)
    # Before reading: a made-up header must not make us allocate what it claims.
    if not 0 < total <= MOST:
        raise DataError(f"{path} claims the shape {shape}, which no data set of this family has.")
    # One byte more than there should be, to notice a longer file.
    body = file.read(total + 1)
    if len(body) != total:
        held = "more bytes" if len(body) > total else f"{len(body)} bytes"
        raise DataError(
            f"{path} claims {total} bytes and holds {held}. Delete it and get it again."
        )
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).view(shape)
