"""The five streams of the data, growing tensor by tensor."""

import zlib

import numpy as np
from torch import Tensor

from secateurs.ship.files.coding.bitstream import BitWriter
from secateurs.ship.files.coding.places import PlaceStreams, write_places
from secateurs.ship.files.coding.words import KINDS, NAMES, split, to_words
from secateurs.ship.files.line import Line
from secateurs.ship.files.seals import digest_of


class Streams:
    """The five streams of the data, growing tensor by tensor."""

    def __init__(self) -> None:
        self.places = PlaceStreams(BitWriter(), BitWriter(), BitWriter())
        # Huffman codes alone: exponents do not repeat in strings, and looking for strings takes
        # most of the time.
        self._tops = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
        self._top_parts: list[bytes] = []
        self._rests: list[bytes] = []

    def add(self, name: str, tensor: Tensor, dtype: str, dense: Tensor) -> Line:
        """Append a tensor of this dtype name; `dense` is what a reader will have."""
        kind = KINDS[dtype]
        words = to_words(tensor, kind)
        mask = words != 0
        rows = tensor.shape[0] if tensor.ndim and tensor.numel() else 1
        coding = write_places(mask, rows, self.places)
        # A dense tensor is not copied.
        kept = words if mask.all() else np.compress(mask, words)
        tops, rests = split(kept, kind)
        self._top_parts.append(self._tops.compress(tops))
        self._rests.append(rests)
        own = NAMES[dense.dtype]
        stored = "" if own == dtype else dtype
        return Line(
            name=name,
            dtype=own,
            shape=tuple(dense.shape),
            kept=len(kept),
            digest=digest_of(name, dense),
            coding=coding,
            stored=stored,
        )

    def done(self) -> list[bytes]:
        """All five, in the order of the file."""
        places = (self.places.masks, self.places.quotients, self.places.remainders)
        tops = b"".join([*self._top_parts, self._tops.flush()])
        return [*(place.done() for place in places), tops, b"".join(self._rests)]
