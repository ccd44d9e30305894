"""C++ files without torch headers: compiled once per machine, kept in a cache folder, checked
before they are used.

Beside each compiled file lies its seal: size and SHA-256. A file that is not what its seal says was
cut off or changed, and loading it could kill the process; it is compiled again.

No build tool is needed, only a C++ compiler; it takes seconds, once. Where a file cannot be built
its caller uses a pure-torch path and one log line says so. `SECATEURS_CACHE` names the folder.
"""

import atexit
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

Kernel = TypeVar("Kernel")

_FLAGS = (
    "-O3",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
)
# From the fastest flags to those that every compiler takes: some lack OpenMP (Apple's), some
# `native`.
_ATTEMPTS = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())


def kernel(
    source: Path,
    make: Callable[[ctypes.CDLL], Kernel],
    *,
    switch: str,
    what: str,
    fallback: str,
    log: logging.Logger,
) -> Kernel | None:
    """What `make` makes of the compiled source; None, and one log line, where that cannot be.

    Args:
        source: a C++ file.
        make: wraps the library and tries it: a RuntimeError refuses a binary that computes
            something else.
        switch: the environment variable that turns it off when it is "0".
        what, fallback: for the log line, such as "fused step" and "the optimizers use their
            pure-torch path".
        log: where that line goes.
    """
    if os.environ.get(switch, "1") == "0":
        log.info("%s off (%s=0): pure-torch path", what, switch)
        return None
    try:
        return make(ctypes.CDLL(str(build(source))))
    except (
        OSError,
        subprocess.SubprocessError,
        RuntimeError,
        AttributeError,
    ) as problem:
        log.warning("no %s, %s: %s", what, fallback, problem)
        return None


def row_major(*tensors: Tensor) -> bool:
    """Whether tensors lie on the CPU row after row, as a compiled loop reads them."""
    return all(
        tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
        for tensor in tensors
    )


def build(source: Path, folder: Path | None = None) -> Path:
    """Path of the compiled library; compiled now if this source was never compiled by this compiler
    on this processor, or if the file is no longer what was compiled.

    The file is written under a temporary name and renamed, so processes that build at the same time
    cannot harm each other. A folder or a file that somebody else can write to is not trusted. The
    whole file is read for this: call it once in a process.
    """
    compiler = _compiler()
    folder = _trusted_folder(folder or cache_folder())
    target = folder / f"{source.stem}-{_fingerprint(source, compiler)}.so"
    if not _is_intact(target):
        _compile(source, compiler, target)
    return target


def cache_folder() -> Path:
    """$SECATEURS_CACHE, or `secateurs` in the user's cache folder."""
    chosen = os.environ.get("SECATEURS_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "secateurs"


def _compiler() -> str:
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    found = (path for name in names if name and (path := shutil.which(name)))
    compiler = next(found, None)
    if compiler is None:
        raise RuntimeError("no C++ compiler found (set CXX)")
    return compiler


def _trusted_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if only_ours(folder.stat()) and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _private_folder()


@functools.cache
def _private_folder() -> Path:
    """One for everything this process compiles, gone when it ends: slower, never unsafe."""
    folder = Path(tempfile.mkdtemp(prefix="secateurs-"))
    maker = os.getpid()

    def remove() -> None:
        # A forked process inherits this, and must not remove what its parent uses.
        if os.getpid() == maker:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def only_ours(status: os.stat_result) -> bool:
    """Whether it belongs to us and nobody else can write to it."""
    foreign = hasattr(os, "getuid") and status.st_uid != os.getuid()
    return not foreign and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_intact(target: Path) -> bool:
    """Whether the cached library is ours and matches its recorded hash."""
    seal = _seal_beside(target)
    try:
        # `lstat`: what a link points to may lie in a folder that others can write to.
        statuses = [path.lstat() for path in (target, seal)]
        if not all(stat.S_ISREG(one.st_mode) and only_ours(one) for one in statuses):
            return False
        return seal.read_text(encoding="utf-8") == _seal_of(target.read_bytes())
    except (OSError, UnicodeDecodeError):
        return False


def _seal_beside(target: Path) -> Path:
    return target.with_name(target.name + ".sha256")


def _seal_of(content: bytes) -> str:
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}\n"


def _fingerprint(source: Path, compiler: str) -> str:
    version = subprocess.run(
        [compiler, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    # The processor is part of the name, since a home folder may be shared by different
    # machines, and code for one would crash another.
    processor = platform.machine() + platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        processor += "".join(
            sorted(
                {
                    x
                    for x in info.read_text(encoding="utf-8").splitlines()
                    if x.startswith(("model name", "flags"))
                }
            )
        )
    text = "\n".join([source.read_text(encoding="utf-8"), version, processor, *_FLAGS])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _compile(source: Path, compiler: str, target: Path) -> None:
    temporary = _empty_beside(target)
    problem = ""
    try:
        for extra in _ATTEMPTS:
            command = [compiler, *_FLAGS, *extra, str(source), "-o", str(temporary)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode == 0:
                _keep(temporary, target)
                return
            problem = (
                done.stderr.strip().splitlines()[0]
                if done.stderr.strip()
                else f"exit {done.returncode}"
            )
    finally:
        temporary.unlink(missing_ok=True)
    raise RuntimeError(f"{compiler} failed: {problem}")


def _keep(compiled: Path, target: Path) -> None:
    """Give the compiled file its name, then its seal: without the seal it is compiled again."""
    seal = _empty_beside(target)
    try:
        seal.write_text(_seal_of(compiled.read_bytes()), encoding="utf-8")
        for path, name, mode in (
            (compiled, target, 0o700),
            (seal, _seal_beside(target), 0o600),
        ):
            os.chmod(path, mode)
            _sync(path)
            os.replace(path, name)
    finally:
        seal.unlink(missing_ok=True)


def _empty_beside(target: Path) -> Path:
    handle, name = tempfile.mkstemp(suffix=".part", dir=target.parent)
    os.close(handle)
    return Path(name)


def _sync(path: Path) -> None:
    # Before the rename: some file systems would else keep the new name and lose the content.
    with path.open("rb+") as file:
        os.fsync(file.fileno())
