"""C++ files without torch headers: compiled once per machine, kept in a cache folder, checked
before they are used.

No build tool is needed, only a C++ compiler; it takes seconds, once. Where a file cannot be built
its caller uses a pure-torch path and one log line says so. `SECATEURS_CACHE` names the folder.
"""

import ctypes
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
# From the fastest to what every compiler takes: some know no OpenMP (Apple's), some no
# native.
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


def build(source: Path, folder: Path | None = None) -> Path:
    """Path of the compiled library; compiled now if this source was never compiled by this compiler
    on this processor.

    The file is written under a temporary name and renamed, so processes that build at the same time
    cannot harm each other. A cache folder that somebody else can write to is not trusted.
    """
    compiler = next(
        (
            path
            for name in (os.environ.get("CXX"), "g++", "clang++", "c++")
            if name and (path := shutil.which(name))
        ),
        None,
    )
    if compiler is None:
        raise RuntimeError("no C++ compiler found (set CXX)")
    folder = _trusted(folder or cache_folder())
    target = folder / f"{source.stem}-{_fingerprint(source, compiler)}.so"
    if not target.exists():
        _compile(source, compiler, target)
    return target


def cache_folder() -> Path:
    """$SECATEURS_CACHE, or `secateurs` in the user's cache folder."""
    chosen = os.environ.get("SECATEURS_CACHE")
    if chosen:
        return Path(chosen)
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "secateurs"
    )


def _trusted(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        foreign = hasattr(os, "getuid") and status.st_uid != os.getuid()
        if (
            not foreign
            and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            and os.access(folder, os.W_OK)
        ):
            return folder
    except OSError:
        pass
    # Private and used once: slower, never unsafe.
    return Path(tempfile.mkdtemp(prefix="secateurs-"))


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
                    for x in info.read_text().splitlines()
                    if x.startswith(("model name", "flags"))
                }
            )
        )
    text = "\n".join([source.read_text(), version, processor, *_FLAGS])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _compile(source: Path, compiler: str, target: Path) -> None:
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    problem = ""
    for extra in _ATTEMPTS:
        command = [compiler, *_FLAGS, *extra, str(source), "-o", temporary]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode == 0:
            os.chmod(temporary, 0o700)
            os.replace(temporary, target)
            return
        problem = (
            done.stderr.strip().splitlines()[0]
            if done.stderr.strip()
            else f"exit {done.returncode}"
        )
    os.unlink(temporary)
    raise RuntimeError(f"{compiler} failed: {problem}")
