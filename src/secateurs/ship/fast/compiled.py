"""The compiled kernels (`kernels.cpp`), the structures they read and the ways into a program, all
through ctypes.
"""

import ctypes
import logging
from collections.abc import Callable, Iterable, Sequence
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy import empty
from numpy.typing import NDArray
from torch import Tensor, from_numpy
from torch.nn.modules import module as hooks

from secateurs.base import native

# The structures that the compiled kernels read, field by field as in kernels.cpp.


def _whole(names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names.split()]


def _addresses(names: str) -> list[tuple[str, Any]]:
    return [(name, c_void_p) for name in names.split()]


class ArenaPlace(Structure):
    """The position of a value in the arena."""

    _fields_ = _whole("at channels height width stride")


def _places(names: str) -> list[tuple[str, Any]]:
    return [(name, ArenaPlace) for name in names.split()]


class KernelShape(Structure):
    """An activation."""

    _fields_ = [("slope", c_double), ("cap", c_double), ("on", c_int64), ("slopes", c_void_p)]


class LoadKernel(Structure):
    """A tensor of the caller becomes planes."""

    _fields_ = [*_places("to"), *_whole("input count"), *_addresses("channels")]


class StoreKernel(Structure):
    """Planes become a tensor of the caller."""

    _fields_ = [*_places("source"), *_whole("output")]


class ConvKernel(Structure):
    """A convolution; kernels.cpp says what each field means."""

    _fields_ = [
        *_places("source to add"),
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
        *_places("source to add"),
        ("shape", KernelShape),
        *_whole("above left tall wide rows stride tile block blocks inputs sums result"),
        *_addresses("weights bias"),
    ]


class NearKernel(Structure):
    """A convolution that reads few input channels for each output."""

    _fields_ = [
        *_places("source to add"),
        ("shape", KernelShape),
        *_whole("step_y step_x inner end columns"),
        *_addresses("shifts"),
        *_whole("inputs outputs tile block"),
        *_addresses("starts taps bias"),
    ]


class MatrixKernel(Structure):
    """A dense 1×1 convolution."""

    _fields_ = [
        *_places("source to add"),
        ("shape", KernelShape),
        *_whole("tile block blocks deep together panel"),
        *_addresses("weights bias"),
    ]


class ScaleKernel(Structure):
    """One factor and one shift per channel."""

    _fields_ = [*_places("source to"), ("shape", KernelShape), *_addresses("scale shift")]


class AddKernel(Structure):
    """A sum of two values."""

    _fields_ = [*_places("a b to"), ("shape", KernelShape), ("sign", c_double)]


class PoolKernel(Structure):
    """A maximum or mean over windows."""

    _fields_ = [*_places("source to"), *_whole("maximum"), *_addresses("rows columns factor")]


class GatherKernel(Structure):
    """Numbers, or whole planes, from elsewhere."""

    _fields_ = [*_places("source to"), *_addresses("index"), *_whole("planes")]


class CatKernel(Structure):
    """A value becomes some channels of another."""

    _fields_ = [*_places("source to"), *_whole("channel")]


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
        # A copy that is kept here, since kernels hold raw addresses, which Python does not count.
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
        # A field changed on one side only would shift all following ones, and give wrong numbers
        # without any error.
        size, expected = library.fast_bytes(), sum(ctypes.sizeof(kind) for kind in KINDS)
        if size != expected:
            raise RuntimeError(
                f"compiled kernels do not match this version (struct size {size}, expected"
                f" {expected}); delete {native.cache_folder()}"
            )
        self.lanes = {
            torch.float32: library.fast_lanes(),
            torch.float64: max(1, library.fast_lanes() // 2),
        }
        # Vectors of 16 floats mean AVX-512, which has 32 registers; for others 16 is safe.
        self.registers = 32 if library.fast_lanes() == 16 else 16

    def _declare(self, name: str) -> None:
        get = self.library.__getattr__
        run = [c_void_p, c_void_p, c_void_p, c_int64, c_int64]
        taken: dict[str, list[Any]] = {
            "free": [c_void_p],
            "threads": [c_void_p, c_int64, c_int64],
            "plan": [c_void_p, POINTER(Op), c_int64, c_int64, c_int64, c_int64],
            "run": run,
            "one": run,
            "time_plan": [c_void_p, c_int64, c_void_p, c_void_p, c_void_p],
            "time": [POINTER(Op), c_int64, c_int64, c_int64],
        }
        for what, types in taken.items():
            get(f"fast_{what}_{name}").argtypes = types
        # ctypes takes results for 32-bit integers by default, which cuts an address in half.
        get(f"fast_new_{name}").restype = c_void_p
        get(f"fast_time_{name}").restype = c_double

    def time(self, op: Op, dtype: torch.dtype, numbers: int, group: int, rounds: int) -> float:
        """Seconds of the fastest of some rounds of one operation."""
        call = getattr(self.library, f"fast_time_{NAMES[dtype]}")
        return float(call(ctypes.byref(op), numbers, group, rounds))


class Program:
    """Operations for groups of images of several sizes, ready to run. Any number of threads may
    call it at once.
    """

    def __init__(
        self, library: KernelLibrary, dtype: torch.dtype, *, least: int = 1, shared: int = 1
    ) -> None:
        """least: number of images that are worth a separate thread; fewer stay on the caller's.
        shared: number of threads at most that share one image."""
        name = NAMES[dtype]
        self._new = getattr(library.library, f"fast_new_{name}")
        self._free = getattr(library.library, f"fast_free_{name}")
        self._plan = getattr(library.library, f"fast_plan_{name}")
        self._run = getattr(library.library, f"fast_run_{name}")
        self.run_one = getattr(library.library, f"fast_one_{name}")
        self._time = getattr(library.library, f"fast_time_plan_{name}")
        self._kept: list[Any] = []
        self._sizes: list[int] = []
        self.least, self.shared = least, shared
        self.handle: int = self._new()
        getattr(library.library, f"fast_threads_{name}")(self.handle, least, shared)

    def plan(
        self, ops: list[Op], memory: KeptArrays, group: int, numbers: int, *, features: bool = False
    ) -> None:
        """Add the operations for groups of this size; the largest group comes first, a group of one
        last.

        features: every value is one number per image, so that a group may be smaller than planned.
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
    """The compiled kernels, built at the first call on a machine; None if that is impossible (a log
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


# The short way from Python into a small program of one input and one output (`entry.cpp`).
#
# A call of a tiny network costs microseconds before anything is computed: checks of the input, the
# crossing into C, an output tensor. The entry is a builtin function that does all of it in C, with
# what torch exposes to C (DLPack's exchange table, torch 2.10) and without any header.

ENTRY_SOURCE = Path(__file__).with_name("entry.cpp")
MOST_DIMS = 8  # dimensions beside the batch
_FUNCTIONS = (
    "PyObject_Type", "Py_DecRef", "PyObject_GetAttr", "PyObject_CallNoArgs",
    "PyObject_CallOneArg", "PyLong_AsLong", "PyErr_Clear", "PyErr_NoMemory",
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyCapsule_GetPointer", "Py_IncRef",
    "PyObject_IsTrue", "PyDict_Size", "PyTuple_Size", "PyTuple_GetItem", "PyObject_Call",
)  # fmt: skip
_TABLE = "__dlpack_c_exchange_api__"
_ONE_ARGUMENT = 0x0008  # METH_O
_ALL_ARGUMENTS = 0x0003  # METH_VARARGS | METH_KEYWORDS
# Checked at every call: attributes of the module, and the hooks of all modules.
_LOOKED_AT = (
    "_entry", "_forward_hooks", "_forward_pre_hooks", "_long_way",
    hooks._global_forward_hooks, hooks._global_forward_pre_hooks, None,
)  # fmt: skip
SHAPES = 256  # batch sizes whose check is remembered

Shortcut: TypeAlias = Callable[[Any], Tensor | None]
"""The output for one tensor; None where a call needs the full checks and their messages."""


def shortcut(
    program: Program,
    dtype: torch.dtype,
    dims: tuple[int, ...],
    made: tuple[int, ...],
    products: int,
) -> Shortcut:
    """The fastest safe way into a program whose input and output have these shapes (no batch): a
    builtin, or where that cannot be built, ctypes.

    A builtin returns None for anything but a plain, contiguous tensor of this dtype and shape on
    the CPU, without a gradient: then the caller checks and says what is wrong.

    Args:
        program: kept alive by the shortcut.
        dtype: that of input and output.
        dims, made: their shapes without the batch.
        products: number per image; from 50,000 on other threads may run in the meantime.
    """
    compiled = entry_library()
    if compiled is None or max(len(dims), len(made)) > MOST_DIMS:
        return _from_python(program, dtype, dims, made)
    kept: list[Any] = ["requires_grad", Tensor.is_neg, torch.get_num_threads, program]
    body = _Entry(
        torch=compiled.exchange, type=id(Tensor), requires_grad=id(kept[0]),
        is_neg=id(kept[1]), threads=id(kept[2]), no=id(False),
        run=_address(program.run_one), program=program.handle, bits=8 * dtype.itemsize,
        products=products, shared=program.shared,
        dims=len(dims), shape=(c_int64 * MOST_DIMS)(*dims),
        dims_out=len(made), out=(c_int64 * MOST_DIMS)(*made),
    )  # fmt: skip
    call: Shortcut = _builtin(compiled, body, kept)
    return call


def no_shortcut(x: Any) -> Tensor | None:
    """For programs that take the long way at every call."""
    return None


class _Entry(Structure):
    """One program; entry.cpp has the same structure."""

    _fields_ = [
        *[(name, c_void_p) for name in ("torch", "type", "requires_grad", "is_neg")],
        *[(name, c_void_p) for name in ("threads", "no", "run", "program")],
        *[(name, c_int64) for name in ("bits", "products", "shared", "dims")],
        ("shape", c_int64 * MOST_DIMS),
        ("dims_out", c_int64),
        ("out", c_int64 * MOST_DIMS),
    ]


class _Method(Structure):
    """Python's description of a builtin function."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("call", c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_METHODS: list[_Method] = []  # Python reads them as long as their types live


class EntryLibrary:
    """The compiled entry and the two tables it works with."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.entry_bytes.restype = c_int64
        addresses = len(_FUNCTIONS) + len(_LOOKED_AT)
        expected = addresses * ctypes.sizeof(c_void_p) + ctypes.sizeof(_Entry)
        if library.entry_bytes() != expected:
            raise RuntimeError("the structures of the compiled entry have another size")
        functions = [_address(getattr(ctypes.pythonapi, name)) for name in _FUNCTIONS]
        library.entry_start(_table(functions), _table(map(id, _LOOKED_AT)))
        self.exchange = _exchange()
        self.one, self.call = _address(library.entry_one), _address(library.entry_call)


@cache
def enter_through_(kind: type) -> None:
    """Let calls of this class of module start in C: one tensor goes to the capsule `_entry` of the
    module, everything else, and every call with hooks, to its method `_long_way`."""
    compiled = entry_library()
    if compiled is not None:
        method = _Method(name=b"__call__", call=compiled.call, flags=_ALL_ARGUMENTS)
        _METHODS.append(method)
        held = ctypes.py_object
        descriptor_of = _python("PyDescr_NewMethod", held, held, c_void_p)
        setattr(kind, "__call__", descriptor_of(kind, ctypes.addressof(method)))  # noqa: B010


@cache
def entry_library() -> EntryLibrary | None:
    """The entry, compiled at the first call on a machine; None before torch 2.10, or if that is
    impossible."""
    if not hasattr(Tensor, _TABLE):
        return None
    return native.kernel(
        ENTRY_SOURCE,
        EntryLibrary,
        switch="SECATEURS_NATIVE",
        what="compiled entry",
        fallback="small networks are called through ctypes",
        log=_log,
    )


def _table(addresses: Iterable[int]) -> Any:
    numbers = list(addresses)
    return (c_void_p * len(numbers))(*numbers)


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


def _exchange() -> int:
    """The address of torch's DLPack table; a RuntimeError if its layout is not the known one."""
    inside = _python("PyCapsule_GetPointer", c_void_p, ctypes.py_object, ctypes.c_char_p)
    found = inside(getattr(Tensor, _TABLE), b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(found).value
    if major != 1:
        raise RuntimeError(f"torch exchanges tensors by version {major} of DLPack")
    return int(found)


def _builtin(compiled: EntryLibrary, body: _Entry, kept: list[Any]) -> Any:
    """A function object around the C function."""
    # Python takes any object as the module of a function, and keeps it alive: all that C points to.
    held = ctypes.py_object
    capsule_of = _python("PyCapsule_New", held, c_void_p, ctypes.c_char_p, c_void_p)
    function_of = _python("PyCFunction_NewEx", held, c_void_p, held, held)
    method = _Method(name=b"entry", call=compiled.one, flags=_ONE_ARGUMENT)
    capsule = capsule_of(ctypes.addressof(body), b"secateurs.entry", None)
    return function_of(ctypes.addressof(method), capsule, [body, method, *kept])


def _python(name: str, *types: Any) -> Any:
    """A function of Python's API, without affecting other users of ctypes.pythonapi."""
    return ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi))


def _from_python(
    program: Program, dtype: torch.dtype, dims: tuple[int, ...], made: tuple[int, ...]
) -> Shortcut:
    """The same through ctypes: twice the time."""
    run, handle, numpy = program.run_one, program.handle, NUMPY[dtype]
    # Slicing a shape costs as much as a tiny network, so checked shapes are kept.
    known: dict[Any, tuple[int, ...]] = {}

    def call(x: Any) -> Tensor | None:
        # `type` instead of `isinstance`: a subclass may give its numbers another meaning.
        if type(x) is not Tensor or x.dtype is not dtype or not x.is_cpu:
            return None
        if x.layout is not torch.strided or x.requires_grad or not x.is_contiguous():
            return None
        shape = known.get(x.shape)
        if shape is None:
            if x.shape[1:] != dims:
                return None
            shape = (x.shape[0], *made)
            # Bounded, because a program may be called with ever new batch sizes.
            if len(known) < SHAPES:
                known[x.shape] = shape
        if x.is_neg():  # its signs are inverted by a flag that only torch knows
            return None
        # Creating a numpy array takes half of the time of torch.empty.
        y = from_numpy(empty(shape, numpy))
        images = shape[0]
        threads = 1 if images == 1 and program.shared < 2 else torch.get_num_threads()
        if run(handle, x.data_ptr(), y.data_ptr(), images, threads):
            raise MemoryError(f"no memory for the planes of {program}")
        return y

    return call
