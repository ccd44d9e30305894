"""The compiled kernels (`kernels.cpp`) and the structures they read, through ctypes."""

import ctypes
import logging
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secateurs import native

# The structures that the compiled kernels read, field by field as in kernels.cpp.


def _whole(names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names.split()]


def _addresses(names: str) -> list[tuple[str, Any]]:
    return [(name, c_void_p) for name in names.split()]


class ArenaPlace(Structure):
    """Where a value stands in the arena."""

    _fields_ = _whole("at channels height width stride")


class KernelShape(Structure):
    """An activation."""

    _fields_ = [("slope", c_double), ("cap", c_double), ("on", c_int64)]


class LoadKernel(Structure):
    """A tensor of the caller becomes planes."""

    _fields_ = [("to", ArenaPlace), *_whole("input count"), *_addresses("channels")]


class StoreKernel(Structure):
    """Planes become a tensor of the caller."""

    _fields_ = [("source", ArenaPlace), *_whole("output")]


class ConvKernel(Structure):
    """A convolution; kernels.cpp says what each field means."""

    _fields_ = [
        *[(name, ArenaPlace) for name in ("source", "to", "add")],
        ("shape", KernelShape),
        *_whole("direct copies rows width step_y step_x deepest plane scratch"),
        *_addresses("y0 x0 begin stop needed edges"),
        *_whole("spans length out_height out_width tile block blocks parts sums"),
        *_addresses("turns"),
        *_whole("listed"),
        *_addresses("read starts entries bias"),
    ]


class WinogradKernel(Structure):
    """A dense 3×3 convolution by Winograd's tiles."""

    _fields_ = [
        *[(name, ArenaPlace) for name in ("source", "to", "add")],
        ("shape", KernelShape),
        *_whole("above left tall wide rows stride tile block blocks inputs sums result"),
        *_addresses("weights bias"),
    ]


class NearKernel(Structure):
    """A convolution that reads few input channels for each output."""

    _fields_ = [
        *[(name, ArenaPlace) for name in ("source", "to", "add")],
        ("shape", KernelShape),
        *_whole("step_y step_x inner end columns"),
        *_addresses("shifts"),
        *_whole("inputs outputs tile block"),
        *_addresses("starts taps bias"),
    ]


class MatrixKernel(Structure):
    """A dense convolution of one pixel."""

    _fields_ = [
        *[(name, ArenaPlace) for name in ("source", "to", "add")],
        ("shape", KernelShape),
        *_whole("tile block blocks deep together panel"),
        *_addresses("weights bias"),
    ]


class ScaleKernel(Structure):
    """One factor and one shift per channel."""

    _fields_ = [
        ("source", ArenaPlace),
        ("to", ArenaPlace),
        ("shape", KernelShape),
        *_addresses("scale shift"),
    ]


class AddKernel(Structure):
    """A sum of two values."""

    _fields_ = [
        ("a", ArenaPlace),
        ("b", ArenaPlace),
        ("to", ArenaPlace),
        ("shape", KernelShape),
        ("sign", c_double),
    ]


class PoolKernel(Structure):
    """A maximum or mean over windows."""

    _fields_ = [
        ("source", ArenaPlace),
        ("to", ArenaPlace),
        *_whole("maximum"),
        *_addresses("rows columns factor"),
    ]


class GatherKernel(Structure):
    """Numbers, or whole planes, from elsewhere."""

    _fields_ = [
        ("source", ArenaPlace),
        ("to", ArenaPlace),
        *_addresses("index"),
        *_whole("planes"),
    ]


class CatKernel(Structure):
    """A value becomes some channels of another."""

    _fields_ = [("source", ArenaPlace), ("to", ArenaPlace), *_whole("channel")]


class Op(Structure):
    """One operation of a program."""

    _fields_ = [("name", c_int64), ("body", c_void_p)]


KINDS = {
    kind: number
    for number, kind in enumerate(
        (
            LoadKernel,
            StoreKernel,
            ConvKernel,
            ScaleKernel,
            AddKernel,
            PoolKernel,
            GatherKernel,
            CatKernel,
            WinogradKernel,
            NearKernel,
            MatrixKernel,
        )
    )
}


class KeptArrays:
    """Arrays whose addresses the structures hold."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def address(self, array: NDArray[Any] | Sequence[int] | None, dtype: Any) -> int | None:
        """The address of a copy of the array, which lives as long as this."""
        if array is None:
            return None
        # A copy that is kept here: kernels hold bare
        # addresses, which Python does not count.
        made = np.array(array, dtype=dtype, order="C")
        self.kept.append(made)
        return int(made.ctypes.data)

    def op(self, body: Structure) -> Op:
        """An operation that points to this structure."""
        self.kept.append(body)
        return Op(name=KINDS[cast(Any, type(body))], body=ctypes.addressof(body))


SOURCE = Path(__file__).with_name("kernels.cpp")
NAMES = {torch.float32: "float", torch.float64: "double"}
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
_log = logging.getLogger("secateurs.ship")


class KernelLibrary:
    """The kernels, called through ctypes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        for name in NAMES.values():
            self._declare(name)
        library.fast_lanes.restype = c_int64
        library.fast_bytes.restype = c_int64
        # A field changed on one side only would shift all that follow it, and give
        # wrong numbers without any error.
        if library.fast_bytes() != sum(ctypes.sizeof(kind) for kind in KINDS):
            raise RuntimeError("the structures of the compiled kernels have another size")
        self.lanes = {
            torch.float32: library.fast_lanes(),
            torch.float64: max(1, library.fast_lanes() // 2),
        }
        # Vectors of 16 floats mean AVX-512, which has 32
        # registers; for others 16 is safe.
        self.registers = 32 if library.fast_lanes() == 16 else 16

    def _declare(self, name: str) -> None:
        get = self.library.__getattr__
        # ctypes takes results for 32-bit integers unless
        # told, which cuts an address in half.
        get(f"fast_new_{name}").restype = c_void_p
        get(f"fast_free_{name}").argtypes = [c_void_p]
        get(f"fast_least_{name}").argtypes = [c_void_p, c_int64]
        get(f"fast_plan_{name}").argtypes = [
            c_void_p,
            POINTER(Op),
            c_int64,
            c_int64,
            c_int64,
            c_int64,
        ]
        get(f"fast_run_{name}").argtypes = [
            c_void_p,
            c_void_p,
            c_void_p,
            c_int64,
            c_int64,
        ]
        get(f"fast_one_{name}").argtypes = [
            c_void_p,
            c_void_p,
            c_void_p,
            c_int64,
            c_int64,
        ]
        get(f"fast_time_plan_{name}").argtypes = [
            c_void_p,
            c_int64,
            c_void_p,
            c_void_p,
            c_void_p,
        ]
        get(f"fast_time_{name}").argtypes = [POINTER(Op), c_int64, c_int64, c_int64]
        get(f"fast_time_{name}").restype = c_double

    def time(self, op: Op, dtype: torch.dtype, numbers: int, group: int, rounds: int) -> float:
        """Seconds of the fastest of some rounds of one operation."""
        call = getattr(self.library, f"fast_time_{NAMES[dtype]}")
        return float(call(ctypes.byref(op), numbers, group, rounds))


class Program:
    """Operations for groups of images of several sizes, ready to run. Any number of threads may
    call it at once.
    """

    def __init__(self, library: KernelLibrary, dtype: torch.dtype, *, least: int = 1) -> None:
        """least: images that are worth a thread of their own; fewer stay on the caller's."""
        name = NAMES[dtype]
        self._new = getattr(library.library, f"fast_new_{name}")
        self._free = getattr(library.library, f"fast_free_{name}")
        self._plan = getattr(library.library, f"fast_plan_{name}")
        self._run = getattr(library.library, f"fast_run_{name}")
        self.run_one = getattr(library.library, f"fast_one_{name}")
        self._time = getattr(library.library, f"fast_time_plan_{name}")
        self._kept: list[Any] = []
        self._sizes: list[int] = []
        self.least = least
        self.handle: int = self._new()
        getattr(library.library, f"fast_least_{name}")(self.handle, least)

    def plan(
        self, ops: list[Op], memory: KeptArrays, group: int, numbers: int, *, features: bool = False
    ) -> None:
        """Add the operations for groups of this size; the largest group comes first, a group of one
        last.

        features: every value is one number an image, so that a group may be smaller than planned.
        """
        array = (Op * len(ops))(*ops)
        # The plan points into these arrays as long as the handle lives.
        self._kept += [array, memory]
        self._sizes.append(len(ops))
        self._plan(self.handle, array, len(ops), group, numbers, features)

    def run(self, inputs: list[Tensor], outputs: list[Tensor], images: int, threads: int) -> None:
        """Run on contiguous tensors of the right shapes and dtype: the caller has checked them."""
        sources = (c_void_p * len(inputs))(*[t.data_ptr() for t in inputs])
        targets = (c_void_p * len(outputs))(*[t.data_ptr() for t in outputs])
        if self._run(self.handle, sources, targets, images, threads):
            raise MemoryError("no memory for the planes of the fast path")

    def time(self, inputs: list[Tensor], outputs: list[Tensor], which: int) -> NDArray[np.float64]:
        """Seconds of every operation of one plan, loads and stores included, in one run."""
        sources = (c_void_p * len(inputs))(*[t.data_ptr() for t in inputs])
        targets = (c_void_p * len(outputs))(*[t.data_ptr() for t in outputs])
        seconds = np.zeros(self._sizes[which])
        if self._time(self.handle, which, sources, targets, seconds.ctypes.data):
            raise MemoryError("no memory for the planes of the fast path")
        return seconds

    def __del__(self) -> None:
        # __init__ may have failed before there was a handle.
        if getattr(self, "handle", None):
            self._free(self.handle)


@cache
def library() -> KernelLibrary | None:
    """The compiled kernels, built at the first call on a machine; None where that cannot be (a log
    line says why).
    """
    return native.kernel(
        SOURCE,
        KernelLibrary,
        switch="SECATEURS_NATIVE",
        what="compiled fast path",
        fallback="networks run in torch",
        log=_log,
    )
