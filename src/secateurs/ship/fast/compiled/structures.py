"""The structures that the compiled kernels read, field by field as in kernels.cpp."""

import ctypes
from collections.abc import Sequence
from ctypes import Structure, c_double, c_int64, c_void_p
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray


def _whole(names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names.split()]


def _addresses(names: str) -> list[tuple[str, Any]]:
    return [(name, c_void_p) for name in names.split()]


class Place(Structure):
    """Where a value stands in the arena."""

    _fields_ = _whole("at channels height width stride")


class Shape(Structure):
    """An activation."""

    _fields_ = [("slope", c_double), ("cap", c_double), ("on", c_int64)]


class Load(Structure):
    """A tensor of the caller becomes planes."""

    _fields_ = [("to", Place), *_whole("input count"), *_addresses("channels")]


class Store(Structure):
    """Planes become a tensor of the caller."""

    _fields_ = [("source", Place), *_whole("output")]


class Conv(Structure):
    """A convolution; kernels.cpp says what each field means."""

    _fields_ = [
        *[(name, Place) for name in ("source", "to", "add")],
        ("shape", Shape),
        *_whole("direct copies rows width step_y step_x deepest plane scratch"),
        *_addresses("y0 x0 begin stop needed edges"),
        *_whole("spans length out_height out_width tile block blocks parts sums"),
        *_addresses("turns"),
        *_whole("listed"),
        *_addresses("read starts entries bias"),
    ]


class Winograd(Structure):
    """A dense 3×3 convolution by Winograd's tiles."""

    _fields_ = [
        *[(name, Place) for name in ("source", "to", "add")],
        ("shape", Shape),
        *_whole(
            "above left tall wide rows stride tile block blocks inputs sums result"
        ),
        *_addresses("weights bias"),
    ]


class Near(Structure):
    """A convolution that reads few input channels for each output."""

    _fields_ = [
        *[(name, Place) for name in ("source", "to", "add")],
        ("shape", Shape),
        *_whole("step_y step_x inner end columns"),
        *_addresses("shifts"),
        *_whole("inputs outputs tile block"),
        *_addresses("starts taps bias"),
    ]


class Matrix(Structure):
    """A dense convolution of one pixel."""

    _fields_ = [
        *[(name, Place) for name in ("source", "to", "add")],
        ("shape", Shape),
        *_whole("tile block blocks deep together panel"),
        *_addresses("weights bias"),
    ]


class Scale(Structure):
    """One factor and one shift per channel."""

    _fields_ = [
        ("source", Place),
        ("to", Place),
        ("shape", Shape),
        *_addresses("scale shift"),
    ]


class Add(Structure):
    """A sum of two values."""

    _fields_ = [
        ("a", Place),
        ("b", Place),
        ("to", Place),
        ("shape", Shape),
        ("sign", c_double),
    ]


class Pool(Structure):
    """A maximum or mean over windows."""

    _fields_ = [
        ("source", Place),
        ("to", Place),
        *_whole("maximum"),
        *_addresses("rows columns factor"),
    ]


class Gather(Structure):
    """Numbers, or whole planes, from elsewhere."""

    _fields_ = [
        ("source", Place),
        ("to", Place),
        *_addresses("index"),
        *_whole("planes"),
    ]


class Cat(Structure):
    """A value becomes some channels of another."""

    _fields_ = [("source", Place), ("to", Place), *_whole("channel")]


class Op(Structure):
    """One operation of a program."""

    _fields_ = [("name", c_int64), ("body", c_void_p)]


KINDS = {
    kind: number
    for number, kind in enumerate(
        (Load, Store, Conv, Scale, Add, Pool, Gather, Cat, Winograd, Near, Matrix)
    )
}


class Memory:
    """Arrays whose addresses the structures hold."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def address(
        self, array: NDArray[Any] | Sequence[int] | None, dtype: Any
    ) -> int | None:
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
