"""The short way into a program of one input and one output, for networks of microseconds."""

import ctypes
import logging
from collections.abc import Callable, Iterable
from ctypes import Structure, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from numpy import empty
from torch import Tensor, from_numpy
from torch.nn.modules import module as hooks

from secateurs import native
from secateurs.ship.fast.compiled import NUMPY, Program

# The short way from Python into a small program (`entry.cpp`), through ctypes.
#
# A call of a tiny network costs microseconds before anything is computed: checks of the input, the
# crossing into C, an output tensor. The entry is a builtin function that does all of it in C, with
# what torch lays open for C (DLPack's exchange table, torch 2.10) and without any header.

SOURCE = Path(__file__).with_name("entry.cpp")
MOST = 8  # dimensions beside the batch
_log = logging.getLogger("secateurs.ship")
_FUNCTIONS = (
    "PyObject_Type", "Py_DecRef", "PyObject_GetAttr", "PyObject_CallNoArgs",
    "PyObject_CallOneArg", "PyLong_AsLong", "PyErr_Clear", "PyErr_NoMemory",
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyCapsule_GetPointer", "Py_IncRef",
    "PyObject_IsTrue", "PyDict_Size", "PyTuple_Size", "PyTuple_GetItem", "PyObject_Call",
)  # fmt: skip
_TABLE = "__dlpack_c_exchange_api__"
_ONE_ARGUMENT = 0x0008  # METH_O
_ALL_ARGUMENTS = 0x0003  # METH_VARARGS | METH_KEYWORDS
# What every call looks at: attributes of the module, and the hooks of all modules.
_LOOKED_AT = (
    "_entry", "_forward_hooks", "_forward_pre_hooks", "_long_way",
    hooks._global_forward_hooks, hooks._global_forward_pre_hooks, None,
)  # fmt: skip


class _Entry(Structure):
    """One program; entry.cpp has the same structure."""

    _fields_ = [
        *[(name, c_void_p) for name in ("torch", "type", "requires_grad", "is_neg")],
        *[(name, c_void_p) for name in ("threads", "no", "run", "program")],
        *[(name, c_int64) for name in ("bits", "products", "dims")],
        ("shape", c_int64 * MOST),
        ("dims_out", c_int64),
        ("out", c_int64 * MOST),
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
        self.one, self.call = (
            _address(library.entry_one),
            _address(library.entry_call),
        )


def entry(
    *,
    program: Program,
    dtype: torch.dtype,
    dims: tuple[int, ...],
    made: tuple[int, ...],
    products: int,
) -> Callable[[Any], Tensor | None] | None:
    """A builtin that runs a program on one tensor; None where it cannot be built.

    It gives None for whatever is not a plain, contiguous tensor of this dtype and shape on the
    processor, without a gradient: then the caller checks and says what is wrong.

    Args:
        program: lives as long as the builtin.
        dtype: of input and output.
        dims, made: their shapes without the batch.
        products: of one image; from 50,000 on other threads run meanwhile.
    """
    compiled = library()
    if compiled is None or max(len(dims), len(made)) > MOST:
        return None
    kept: list[Any] = ["requires_grad", Tensor.is_neg, torch.get_num_threads, program]
    body = _Entry(
        torch=compiled.exchange, type=id(Tensor), requires_grad=id(kept[0]),
        is_neg=id(kept[1]), threads=id(kept[2]), no=id(False),
        run=_address(program.run_one), program=program.handle, bits=8 * dtype.itemsize,
        products=products, dims=len(dims), shape=(c_int64 * MOST)(*dims),
        dims_out=len(made), out=(c_int64 * MOST)(*made),
    )  # fmt: skip
    call: Callable[[Any], Tensor | None] = _builtin(compiled, body, kept)
    return call


@cache
def enter_through_(kind: type) -> None:
    """Let calls of this kind of module begin in C: one tensor goes to the capsule `_entry` of the
    module, everything else, and every call with hooks, to its method `_long_way`."""
    compiled = library()
    if compiled is not None:
        method = _Method(name=b"__call__", call=compiled.call, flags=_ALL_ARGUMENTS)
        _METHODS.append(method)
        held = ctypes.py_object
        descriptor_of = _python("PyDescr_NewMethod", held, held, c_void_p)
        setattr(kind, "__call__", descriptor_of(kind, ctypes.addressof(method)))  # noqa: B010


@cache
def library() -> EntryLibrary | None:
    """The entry, compiled at the first call on a machine; None before torch 2.10 and where that
    cannot be."""
    if not hasattr(Tensor, _TABLE):
        return None
    return native.kernel(
        SOURCE,
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
    """Where torch's table of DLPack is; a RuntimeError if its layout is not the one we know."""
    inside = _python("PyCapsule_GetPointer", c_void_p, ctypes.py_object, ctypes.c_char_p)
    found = inside(getattr(Tensor, _TABLE), b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(found).value
    if major != 1:
        raise RuntimeError(f"torch exchanges tensors by version {major} of DLPack")
    return int(found)


def _builtin(compiled: EntryLibrary, body: _Entry, kept: list[Any]) -> Any:
    """A function object around the C function."""
    # Python takes any object as the module of a function, and holds it: all that C points to.
    held = ctypes.py_object
    capsule_of = _python("PyCapsule_New", held, c_void_p, ctypes.c_char_p, c_void_p)
    function_of = _python("PyCFunction_NewEx", held, c_void_p, held, held)
    method = _Method(name=b"entry", call=compiled.one, flags=_ONE_ARGUMENT)
    capsule = capsule_of(ctypes.addressof(body), b"secateurs.entry", None)
    return function_of(ctypes.addressof(method), capsule, [body, method, *kept])


def _python(name: str, *types: Any) -> Any:
    """A function of Python's own; other users of ctypes.pythonapi are not disturbed."""
    return ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi))


# A program called with as little ado as is safe: by the compiled entry, or else from Python.

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
    """The shortest way into a program whose input and output have these shapes, without batch."""
    compiled = entry(
        program=program,
        dtype=dtype,
        dims=dims,
        made=made,
        products=products,
    )
    return compiled or _from_python(program, dtype, dims, made)


def no_shortcut(x: Any) -> Tensor | None:
    """For programs that take the long way at every call."""
    return None


def _from_python(
    program: Program,
    dtype: torch.dtype,
    dims: tuple[int, ...],
    made: tuple[int, ...],
) -> Shortcut:
    """The same through ctypes: twice the time."""
    run, handle, numpy = program.run_one, program.handle, NUMPY[dtype]
    # Slicing a shape costs as much as a tiny network: shapes that were checked are kept.
    known: dict[Any, tuple[int, ...]] = {}

    def call(x: Any) -> Tensor | None:
        # `type` and not `isinstance`: a subclass may mean other things by its numbers.
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
        if x.is_neg():  # its signs are to be turned, which only torch knows
            return None
        # An array of numpy is made in half of the time that torch.empty takes.
        y = from_numpy(empty(shape, numpy))
        images = shape[0]
        # Threads share images: one image leaves nothing to share.
        threads = 1 if images == 1 else torch.get_num_threads()
        if run(handle, x.data_ptr(), y.data_ptr(), images, threads):
            raise MemoryError(f"no memory for the planes of {program}")
        return y

    return call
