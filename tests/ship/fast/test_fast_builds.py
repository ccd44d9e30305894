"""The kernels as other machines build them: plain numbers, SSE2, AVX2; one grid for all of them."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import fast_cases
import pytest
import torch
from test_fast_convolutions import test_every_way_equals_torch as check

from secateurs.ship.fast import compiled

GXX = shutil.which("g++")
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
def build(request, tmp_path_factory) -> compiled.Library:
    """The kernels with the flags of this build."""
    library = tmp_path_factory.mktemp("build") / "kernels.so"
    flags = ("-O3", "-std=c++17", "-shared", "-fPIC", *BUILDS[request.param])
    command = [str(GXX), *flags, str(compiled.SOURCE), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    made = compiled.Library(ctypes.CDLL(str(library)))
    assert made.lanes[torch.float32] == LANES[request.param]
    return made


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("case", fast_cases.GRID, ids=range(len(fast_cases.GRID)))
def test_the_grid(build, case, group, dtype, generator, monkeypatch):
    monkeypatch.setattr(fast_cases, "kernels", lambda: build)
    monkeypatch.setattr("test_fast_convolutions.kernels", lambda: build)
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
