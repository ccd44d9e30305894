"""A program called with as little ado as is safe: by the compiled entry, or else from Python."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from numpy import empty
from torch import Tensor, from_numpy

from secateurs.ship.fast.compiled import NUMPY, Program
from secateurs.ship.fast.entry.builtin import entry

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
