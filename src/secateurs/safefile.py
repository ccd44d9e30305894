"""Files that are safe to write and to read: written whole or not at all, and never a pickle."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secateurs.errors import ArgumentError, SecateursError

ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")

_CONVERT = """{path} is a pickle, and loading one can run code, so it is not read here. Convert it
once, with the loader that takes weights only:
    import torch, safetensors.torch
    state = torch.load({source}, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state)
    state = {{key: value.contiguous().clone() for key, value in state.items()}}
    safetensors.torch.save_file(state, "model.safetensors", metadata={{"format": "pt"}})"""


def conversion(path: Path) -> str:
    """The lines that convert a file, if it is a pickle by its ending; else nothing."""
    if path.suffix.lower() not in ENDINGS:
        return ""
    return _CONVERT.format(path=path, source=repr(path.name))


def conversion_of(path: Path, begin: bytes) -> str:
    """The same for a file that could not be read as anything else, by what it begins with, too."""
    # The archive that torch writes, and a bare pickle of any newer protocol.
    if conversion(path):
        return conversion(path)
    if begin.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        # Newer versions of torch go by the ending: what is called .safetensors would not be loaded.
        return _CONVERT.format(path=path, source=f'open({path.name!r}, "rb")')
    return ""


# Files written whole or not at all; what the system refuses is told with the file's name.

_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@contextmanager
def replacing(
    path: Path, *, error: type[SecateursError] = ArgumentError, folders: bool = True
) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name when the block ends well, and vanishes
    when it does not.

    Args:
        path: the file.
        error: what is raised where it cannot be written.
        folders: make the folders above it.
    """
    with refusing(path, error):
        if folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, so that the rename is atomic; 80 characters stay within the limit of
        # names.
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name[:80]}.", suffix=".part", dir=path.parent
        )
        os.close(handle)
        part = Path(name)
        try:
            yield part
            with part.open("rb+") as file:
                # Before the rename: some file systems would else keep the new name and lose the
                # content.
                os.fsync(file.fileno())
            # Mkstemp makes private files; the result is an ordinary one.
            part.chmod(0o666 & ~_umask())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def refusing(path: Path, error: type[SecateursError]) -> Iterator[None]:
    """While this file is written: what the system refuses, with the file and the way out."""
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
