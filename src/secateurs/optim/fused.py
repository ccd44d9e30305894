"""The fused CPU step: `fused.cpp` compiled once per machine, kept in a cache folder, checked before it is used.

No torch headers and no build tool are needed, only a C++ compiler; it takes about five seconds, once. Where it cannot
be built the optimizers use their pure-torch path and say so in one log line. `SECATEURS_FUSED=0` turns it off,
`SECATEURS_CACHE` names the folder.
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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from secateurs.optim.factors import Rule, root, step

SOURCE = Path(__file__).with_suffix(".cpp")
MAX_DEPTH = 8
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
_ATTEMPTS = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())
_log = logging.getLogger("secateurs.optim")


class _Rule(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("lr", "momentum", "decay", "freeze")),
        *((name, ctypes.c_int64) for name in ("nesterov", "decoupled")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One parameter for the kernel: its weight, gradient, stacked factors, stacked momenta (or None), and rule."""

    weight: Tensor
    grad: Tensor
    factors: Tensor
    momenta: Tensor | None
    rule: Rule


class Kernel:
    """The compiled step. All jobs of a call are done in one parallel region."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._steps = {torch.float32: library.secateurs_step_f32, torch.float64: library.secateurs_step_f64}

    def step_(self, jobs: Sequence[Job]) -> None:
        """Move factors, momenta and weights of every job in place."""
        for dtype, run in self._steps.items():
            batch = [job for job in jobs if job.factors.dtype == dtype]
            if batch:
                self._run(run, batch)

    @staticmethod
    def takes(weight: Tensor, grad: Tensor, factors: Tensor) -> bool:
        """Whether the kernel can do this parameter: float32 or float64 on the CPU, laid out plainly, depth ≤ 8."""
        tensors = (weight, grad, factors)
        plain = all(t.device.type == "cpu" and t.dtype == factors.dtype and t.is_contiguous() for t in tensors)
        return plain and factors.dtype in (torch.float32, torch.float64) and 2 <= len(factors) <= MAX_DEPTH

    @staticmethod
    def _run(run: "ctypes._FuncPointer", jobs: Sequence[Job]) -> None:
        def pointers(tensors: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
            return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))

        def integers(values: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
            return (ctypes.c_int64 * len(values))(*values)

        sizes, depths = [job.weight.numel() for job in jobs], [len(job.factors) for job in jobs]
        native = {(id(job.rule), depth): _native(job.rule, depth) for job, depth in zip(jobs, depths, strict=True)}
        rules = (_Rule * len(jobs))(*(native[id(job.rule), d] for job, d in zip(jobs, depths, strict=True)))
        momenta = [job.factors if job.momenta is None else job.momenta for job in jobs]
        run(
            ctypes.c_int64(len(jobs)),
            *(pointers(tensors) for tensors in zip(*((j.weight, j.grad, j.factors) for j in jobs), strict=True)),
            pointers(momenta),
            integers(sizes),
            integers(depths),
            rules,
            ctypes.c_int64(torch.get_num_threads()),
        )
        # The kernel writes behind autograd's back: say that the weights have changed.
        torch.autograd.graph.increment_version([job.weight for job in jobs])


def _native(rule: Rule, depth: int) -> _Rule:
    return _Rule(rule.lr, rule.momentum, rule.decay, root(rule.freeze, depth), rule.nesterov, rule.decoupled)


@cache
def kernel() -> Kernel | None:
    """The compiled step, built at the first call on a machine; None where that cannot be (a log line says why)."""
    if os.environ.get("SECATEURS_FUSED", "1") == "0":
        _log.info("fused step off (SECATEURS_FUSED=0): pure-torch path")
        return None
    try:
        built = Kernel(ctypes.CDLL(str(build())))
        _check(built)
    except (OSError, subprocess.SubprocessError, RuntimeError, AttributeError) as problem:
        _log.warning("no fused step, the optimizers use their pure-torch path: %s", problem)
        return None
    return built


def build(folder: Path | None = None) -> Path:
    """Path of the compiled library; compiled now if this source was never compiled by this compiler on this processor.

    The file is written under a temporary name and renamed, so processes that build at the same time cannot harm each
    other. A cache folder that somebody else can write to is not trusted.
    """
    compiler = next((path for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name and
                     (path := shutil.which(name))), None)  # fmt: skip
    if compiler is None:
        raise RuntimeError("no C++ compiler found (set CXX)")
    folder = _trusted(folder or cache_folder())
    target = folder / f"step-{_fingerprint(compiler)}.so"
    if not target.exists():
        _compile(compiler, target)
    return target


def cache_folder() -> Path:
    """$SECATEURS_CACHE, or `secateurs` in the user's cache folder."""
    chosen = os.environ.get("SECATEURS_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "secateurs"


def _trusted(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        foreign = hasattr(os, "getuid") and status.st_uid != os.getuid()
        if not foreign and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="secateurs-"))  # private and used once: slower, never unsafe


def _fingerprint(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    processor = platform.machine() + platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        processor += "".join(
            sorted({x for x in info.read_text().splitlines() if x.startswith(("model name", "flags"))})
        )
    text = "\n".join([SOURCE.read_text(), version, processor, *_FLAGS])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _compile(compiler: str, target: Path) -> None:
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    problem = ""
    for extra in _ATTEMPTS:
        command = [compiler, *_FLAGS, *extra, str(SOURCE), "-o", temporary]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            os.chmod(temporary, 0o700)
            os.replace(temporary, target)
            return
        problem = done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit {done.returncode}"
    os.unlink(temporary)
    raise RuntimeError(f"{compiler} failed: {problem}")


def _check(built: Kernel) -> None:
    """One tiny step against the reference, so that a wrong binary is refused rather than trained with."""
    factors, momenta = torch.linspace(-1, 1, 33).reshape(3, 11), torch.linspace(0, 1, 33).reshape(3, 11)
    grad, weight = torch.linspace(1, 2, 11), torch.zeros(11)
    rule = Rule(lr=0.1, decay=0.01, momentum=0.9)
    expected = step(factors, momenta, grad, rule)
    built.step_([Job(weight=weight, grad=grad, factors=factors, momenta=momenta, rule=rule)])
    if not all(torch.allclose(a, b, atol=1e-6) for a, b in zip((factors, momenta, weight), expected, strict=True)):
        raise RuntimeError("the compiled step disagrees with the reference")
