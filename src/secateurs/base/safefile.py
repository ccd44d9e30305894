"""Files written whole or not at all; errors of the system are raised with the file's name."""

import errno
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from secateurs.base.interrupts import Uninterrupted
from secateurs.errors import ArgumentError, SecateursError, StoreError

_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@contextmanager
def replacing(
    path: Path,
    *,
    error: type[SecateursError] = ArgumentError,
    folders: bool = True,
    private: bool = False,
) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name when the block ends well, and vanishes
    when it does not.

    Args:
        path: the file.
        error: what is raised where it cannot be written.
        folders: make the folders above it.
        private: nobody but its owner may read it.
    """
    with refusing(path, error):
        if folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        mode = _mode_of(path)
        part: Path | None = None
        try:
            with Uninterrupted():
                part = begin_part(path)
            yield part
            with part.open("rb+") as file:
                # Before the rename: some file systems would else keep the new name and lose the
                # content.
                os.fsync(file.fileno())
            # Parts are private; a file that was there keeps its mode, a new one is ordinary.
            if not private:
                part.chmod(mode)
            part.replace(path)
        finally:
            if part is not None:
                with Uninterrupted():
                    part.unlink(missing_ok=True)


def begin_part(path: Path, *, folder: bool = False) -> Path:
    """An empty private file (or folder) beside `path`, to be renamed to it when it is whole.

    Its name cannot be foretold and was nobody's, so no link that somebody put there is followed.
    Such parts of the same file that a killed process left a day ago are removed.
    """
    # In the same folder, so that the rename is atomic; 80 characters stay within the limit of
    # names.
    begin = f".{path.name[:80]}."
    # A folder that can be written to need not be readable.
    for name in os.listdir(path.parent) if os.access(path.parent, os.R_OK) else ():
        if name.startswith(begin) and _PART.fullmatch(name[len(begin) :]):
            _remove_stale(path.parent / name)
    if folder:
        return Path(tempfile.mkdtemp(prefix=begin, suffix=".part", dir=path.parent))
    # Made with O_EXCL and O_NOFOLLOW.
    handle, name = tempfile.mkstemp(prefix=begin, suffix=".part", dir=path.parent)
    os.close(handle)
    return Path(name)


_PART = re.compile(r"[a-z0-9_]{8}\.part")
_STALE = 24 * 3600.0
"""Seconds after which nobody writes to a part any more."""


def _remove_stale(part: Path) -> None:
    try:
        status = part.lstat()
        ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        if not ours or time.time() - status.st_mtime < _STALE:
            return
        if stat.S_ISREG(status.st_mode):
            part.unlink()
        elif stat.S_ISDIR(status.st_mode):
            # It follows no links.
            shutil.rmtree(part, ignore_errors=True)
    except OSError:
        pass  # somebody else removed it, or it cannot be: it harms nobody


def _mode_of(path: Path) -> int:
    """The mode of the file that is there, or of a new one."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except OSError:
        return 0o666 & ~_umask()


@contextmanager
def refusing(path: Path, error: type[SecateursError]) -> Iterator[None]:
    """While this file is written: errors of the system, raised with the file and the way out."""
    try:
        # Before anything is computed for it.
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        yield
    except OSError as problem:
        raise error(
            f"{path}: cannot be written ({problem.strerror or problem}): {_way_out(problem)}."
        ) from problem


def _way_out(problem: OSError) -> str:
    if problem.errno == errno.EISDIR:
        return "it is a folder, so give the name of a file in it"
    if problem.errno in _FULL:
        return "free some space, or give a file on another disk"
    return "give a file in a folder that exists and can be written to"


def _umask() -> int:
    # The umask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def file_locks() -> Any:
    """The module of the system's file locks; refused where there is none, as on Windows."""
    try:
        import fcntl
    except ImportError as error:
        raise StoreError(
            "studies and `reproduce` lock their files by `fcntl`, which this system lacks: run them"
            " on Linux or macOS (on Windows: WSL). Everything else works without."
        ) from error
    return fcntl
