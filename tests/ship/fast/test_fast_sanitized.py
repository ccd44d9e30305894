"""The kernels under the sanitizers of addresses and undefined behaviour, over the grid."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GXX = shutil.which("g++")
HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(GXX is None, reason="needs g++ and its sanitizers"),
]


def sanitized(tmp_path: Path) -> dict[str, str]:
    """An environment in which the kernels are built with sanitizers, in a cache of their own."""
    wrapper = tmp_path / "g++"
    flags = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    wrapper.write_text(f'#!/bin/sh\nexec {GXX} "$@" {flags}\n')
    wrapper.chmod(0o700)
    found = [
        subprocess.run(
            [GXX, f"-print-file-name={n}"], capture_output=True, text=True, check=True
        )
        for n in ("libasan.so", "libubsan.so")
    ]
    return os.environ | {
        "CXX": str(wrapper),
        "SECATEURS_CACHE": str(tmp_path / "cache"),
        "LD_PRELOAD": " ".join(run.stdout.strip() for run in found),
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
    }


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=sanitized(tmp_path),
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=HERE.parents[2],
    )


def test_a_read_outside_is_seen(tmp_path):
    """The guard guards: one operation told of more numbers than its arena has."""
    code = (
        "import ctypes, sys; sys.path[:0] = ['src', 'tests/ship/fast'];"
        "import torch; from secateurs.ship.fast import compiled;"
        "memory = compiled.Memory(); place = compiled.Place(at=0, channels=1, height=1,"
        " width=4096, stride=4096);"
        "op = memory.op(compiled.Scale(source=place, to=place));"
        "compiled.library().time(op, torch.float32, 64, 1, 1)"
    )
    done = run(tmp_path, "-c", code)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr


def test_the_grid_stays_inside_its_buffers(tmp_path):
    files = [
        str(HERE / name)
        for name in ("test_fast_convolutions.py", "test_fast_module.py")
    ]
    done = run(tmp_path, "-m", "pytest", "-x", "-q", *files)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
