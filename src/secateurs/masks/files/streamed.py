"""A mask file written while its masks are made, piece by piece: the bytes of `save_masks`."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from secateurs.errors import MaskFileError
from secateurs.masks.files.files import head, pack, sealed

_SEAL = hashlib.blake2b(digest_size=16)


class MaskWriter:
    """Takes the pieces of masks in the order of their names.

    The seal stands in the header and covers what follows, so it is written last, over a
    placeholder of its length. The file takes its name when it is whole.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.path, self.shapes = path, dict(shapes)
        self.digest = _SEAL.copy()
        self.part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self.begun = ""
        try:
            self.file = self.part.open("wb")
        except OSError as error:
            raise MaskFileError(
                f"{path}: cannot be written ({error.strerror}): give a file in a folder that"
                " exists and can be written to."
            ) from error
        self.file.write(head(self.shapes, self.digest.hexdigest()))

    def add(self, name: str, piece: Tensor) -> None:
        """The next entries of a mask; all pieces but a mask's last are whole bytes."""
        if name != self.begun:
            self.begun = name
            self.digest.update(sealed(name, self.shapes[name]))
        bits = pack(piece)
        self.digest.update(bits)
        self.file.write(bits)

    def close(self) -> None:
        """Seal the file and give it its name."""
        self.file.seek(0)
        self.file.write(head(self.shapes, self.digest.hexdigest()))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.part, self.path)

    def drop(self) -> None:
        """Leave nothing behind after an error."""
        self.file.close()
        self.part.unlink(missing_ok=True)
