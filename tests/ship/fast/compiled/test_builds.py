"""The kernels as other machines build them (plain numbers, SSE2, AVX2), and under sanitizers of
addresses and undefined behaviour: one grid for all of them.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from secateurs.ship.fast import compiled
from ship.fast import fast_cases
from ship.fast.test_convolve import test_every_way_equals_torch as check

GXX = shutil.which("g++")
HERE = Path(__file__).parent
BUILDS = {
    "plain numbers": ("-DSECATEURS_SCALAR",),
    "sse2": ("-mno-avx",),
    "avx2": ("-mavx2", "-mfma", "-mno-avx512f"),
}
LANES = {"plain numbers": 1, "sse2": 4, "avx2": 8}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(GXX is None, reason="needs g++"),
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
        reason="the flags are those of x86-64 with AVX2",
    ),
]


@pytest.fixture(scope="module", params=BUILDS)
def build(request, tmp_path_factory) -> compiled.KernelLibrary:
    """The kernels with the flags of this build."""
    library = tmp_path_factory.mktemp("build") / "kernels.so"
    flags = ("-O3", "-std=c++17", "-shared", "-fPIC", *BUILDS[request.param])
    command = [str(GXX), *flags, str(compiled.SOURCE), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    made = compiled.KernelLibrary(ctypes.CDLL(str(library)))
    assert made.lanes[torch.float32] == LANES[request.param]
    return made


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("case", fast_cases.GRID, ids=range(len(fast_cases.GRID)))
def test_the_grid(build, case, group, dtype, generator, monkeypatch):
    monkeypatch.setattr(fast_cases, "kernels", lambda: build)
    monkeypatch.setattr("ship.fast.test_convolve.kernels", lambda: build)
    check(case, group, dtype, generator)


CHECK = Path(__file__).with_name("neon_check.cpp")
CROSS, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")


def checked(compiler: str, tmp_path: Path, *flags: str, by: tuple[str, ...] = ()):
    """The check without Python, compiled and run."""
    program = tmp_path / "check"
    flags = ("-O2", "-std=c++17", "-pthread", *flags)
    command = [compiler, *flags, str(CHECK), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    done = [*by, str(program)]
    return subprocess.run(done, capture_output=True, text=True, timeout=300)


def test_the_check_without_python(tmp_path):
    done = checked(str(GXX), tmp_path, "-march=native")
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(CROSS is None, reason="needs a cross compiler for aarch64")
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user")
def test_neon_on_an_emulated_processor(tmp_path):
    done = checked(str(CROSS), tmp_path, "-static", by=(str(EMULATOR),))
    assert done.returncode == 0 and "4 lanes" in done.stdout, done.stdout


def sanitized(tmp_path: Path) -> dict[str, str]:
    """An environment in which the kernels are built with sanitizers, in a cache of their own."""
    wrapper = tmp_path / "g++"
    flags = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    wrapper.write_text(f'#!/bin/sh\nexec {GXX} "$@" {flags}\n')
    wrapper.chmod(0o700)
    found = [
        subprocess.run([GXX, f"-print-file-name={n}"], capture_output=True, text=True, check=True)
        for n in ("libasan.so", "libubsan.so")
    ]
    return os.environ | {
        "CXX": str(wrapper),
        "SECATEURS_CACHE": str(tmp_path / "cache"),
        "LD_PRELOAD": " ".join(run.stdout.strip() for run in found),
        # Freed memory is held back for a while: little of it, since a test counts pages.
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16",
        "OMP_NUM_THREADS": "1",
    }


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=sanitized(tmp_path),
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=HERE.parents[3],
    )


def test_a_read_outside_is_seen(tmp_path):
    """The guard guards: one operation told of more numbers than its arena has."""
    code = (
        "import ctypes, sys; sys.path[:0] = ['src', 'tests'];"
        "import torch; from secateurs.ship.fast import compiled;"
        "memory = compiled.KeptArrays(); place = compiled.ArenaPlace(at=0, channels=1, height=1,"
        " width=4096, stride=4096);"
        "op = memory.op(compiled.ScaleKernel(source=place, to=place));"
        "compiled.library().time(op, torch.float32, 64, 1, 1)"
    )
    done = run(tmp_path, "-c", code)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr


def test_the_grid_stays_inside_its_buffers(tmp_path):
    names = ("../test_convolve.py", "../test_module.py", "test_entry.py")
    files = [str(HERE / name) for name in names]
    done = run(tmp_path, "-m", "pytest", "-x", "-q", *files)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
