"""The header of a sparse file and the SHA-256 sums in it: of all data, and of every tensor."""

import hashlib
import json
from collections.abc import Iterable

from torch import Tensor

from secateurs.ship.files.coding.words import KINDS, NAMES, to_words
from secateurs.ship.files.container import header_of

FORMAT = "secateurs.sparse/1"
"""What the metadata of a sparse file say it is."""


def digest_of(name: str, tensor: Tensor) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of name, dtype, shape and dense bytes.

    The seal over all data finds every damage; the digest says which tensor has it.
    """
    dtype = NAMES[tensor.dtype]
    head = json.dumps(
        [name, dtype, list(tensor.shape)], separators=(",", ":"), ensure_ascii=False
    )
    # Name and shape are sealed with the values: tensors cannot change places unseen.
    digest = hashlib.sha256(head.encode())
    digest.update(to_words(tensor, KINDS[dtype]).data)
    return digest.hexdigest()[:16]


def seal_of(parts: Iterable[bytes | memoryview]) -> str:
    """SHA-256 of all data."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def container_header(seal: str, length: int) -> bytes:
    """The one spelling of the header of a sparse file."""
    return header_of(
        {"format": FORMAT, "sha256": seal}, {"sparse": ("U8", (length,))}
    )
