"""Files named by their content: written to a temporary name, synced, renamed; checked by hash
before any use.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from secateurs.errors import StoreError


@dataclass(frozen=True, slots=True)
class Artefacts:
    """A folder of immutable files; the name of a file is the SHA-256 of its bytes."""

    folder: Path

    def put(self, blob: bytes) -> str:
        """Write the bytes durably, completely or not at all; returns their name."""
        name = hashlib.sha256(blob).hexdigest()
        path = self.path(name)
        # The name identifies the content: an intact file is not written again, a damaged one is.
        if self.fits(name):
            return name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, blob)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {error.strerror or error}. Free some space or make "
                f"the folder writable, "
                "then `secateurs study resume`: what is finished is kept."
            ) from error
        return name

    def get(self, name: str) -> bytes:
        """The bytes of this name; a file that is missing, cut or changed is refused."""
        path = self.path(name)
        try:
            blob = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror or error}.") from error
        if hashlib.sha256(blob).hexdigest() != name:
            raise StoreError(
                f"{path} is damaged: its bytes are not those that were written. The run is "
                "repeated."
            )
        return blob

    def fits(self, name: str) -> bool:
        """Whether the file exists and is intact."""
        try:
            return self.get(name) is not None
        except StoreError:
            return False

    def path(self, name: str) -> Path:
        """The path of the file with this name."""
        return self.folder / name[:2] / f"{name}.safetensors"

    def sweep(self, wanted: Iterable[str]) -> int:
        """Delete every file that nothing refers to, and those that a crash left half written;
        returns how many.
        """
        keep = {self.path(name) for name in wanted}
        # Half-written files have other names, so they are deleted as well.
        gone = [path for path in self.folder.glob("*/*") if path not in keep]
        for path in gone:
            path.unlink(missing_ok=True)
        return len(gone)


def _write(path: Path, blob: bytes) -> None:
    handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(blob)
            file.flush()
            # Before the rename, or after a crash the name could refer to an empty file.
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """The new name itself must survive a crash, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
