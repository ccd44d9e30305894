"""Files named by their content: written to a temporary name, synced, renamed; checked by hash
before any use.

A store may come from elsewhere, or lie in a folder with other things in it. Ours are the names of
64 hexadecimal digits in real folders: nothing else is written, replaced or deleted, and no link is
followed.
"""

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from secateurs.errors import StoreError

_NAME = re.compile(r"[0-9a-f]{64}")
# A file, or what a killed writer left of one.
_OURS = re.compile(r"([0-9a-f]{64})\.(safetensors|[a-z0-9_]{8}\.part)")


class DamagedFile(StoreError):
    """A file of the store is missing or damaged: the run that made it is repeated."""


def is_name(text: object) -> bool:
    """Whether this can be the name of an artefact."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


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
        with _plain_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._refuse_links(path)
            _write(path, blob)
        return name

    def get(self, name: str) -> bytes:
        """The bytes of this name; a file that is missing, cut or changed is refused."""
        path = self.path(name)
        self._refuse_links(path)
        try:
            # A pipe would keep its reader waiting for ever.
            if not stat.S_ISREG(path.lstat().st_mode):
                raise DamagedFile(f"{path} is damaged: it is not an ordinary file.")
            blob = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror or error}.") from error
        if hashlib.sha256(blob).hexdigest() != name:
            raise DamagedFile(
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
        """The path of the file with this name; what is not a name of ours is refused."""
        if not is_name(name):
            raise StoreError(
                f"{self.folder} has no file {name!r}: a name is 64 hexadecimal digits. Restore"
                " study.db from a copy, or begin in a new folder with --store."
            )
        return self.folder / name[:2] / f"{name}.safetensors"

    def delete(self, name: str) -> None:
        """Delete the file with this name, if it is there."""
        path = self.path(name)
        self._refuse_links(path)
        with _plain_errors(path):
            path.unlink(missing_ok=True)

    def sweep(self, wanted: Iterable[str]) -> int:
        """Delete every file of ours that nothing refers to, and those that a crash left half
        written; returns how many.
        """
        keep = {self.path(name) for name in wanted}
        gone = [path for path in self._ours() if path not in keep]
        for path in gone:
            with _plain_errors(path):
                path.unlink(missing_ok=True)
        return len(gone)

    def links(self) -> Iterator[Path]:
        """The links among our folders and files, and the folders that are links."""
        for folder in (self.folder, *self._folders()):
            for entry in _entries(folder):
                if entry.is_symlink():
                    yield Path(entry.path)

    def _folders(self) -> list[Path]:
        return [Path(e.path) for e in _entries(self.folder) if e.is_dir(follow_symlinks=False)]

    def _ours(self) -> Iterator[Path]:
        for folder in self._folders():
            for entry in _entries(folder):
                found = _OURS.fullmatch(entry.name)
                named = found is not None and found[1][:2] == folder.name
                if named and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)

    def _refuse_links(self, path: Path) -> None:
        for place in (self.folder, path.parent, path):
            if place.is_symlink():
                raise link_error(place)


def link_error(path: Path) -> StoreError:
    """What is said of a link in a store."""
    return StoreError(
        f"{path} is a link, and nothing in a store may be one: what lies behind it is not the"
        " study's. Remove the link, or begin in a new folder with --store."
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a real folder; nothing, if there is no such folder."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    with _plain_errors(folder), os.scandir(folder) as found:
        return list(found)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}. Free some space or make the"
            " folder writable, then `secateurs study resume`: what is finished is kept."
        ) from error


def _write(path: Path, blob: bytes) -> None:
    handle, part = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".part", dir=path.parent)
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
