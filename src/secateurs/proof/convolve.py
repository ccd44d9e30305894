"""Convolutions of a zonotope's generators: the larger part of what one of a convolutional network
costs.

torch writes out every window of a kernel before it multiplies, 4 to 20 billion operations a second
of a core where `convolve.cpp` does 20 to 40, and needs a pass over the memory for each step. There
a map is read once, scaled, and multiplied only where it is not zero: symbols of neighbouring inputs
reach few pixels in the first layers. Maps of the last layers, of 8 × 8 pixels or fewer, are taken
side by side: one alone leaves most of a register empty. `forms.linear` is its oracle, and is used
on other devices and if there is no compiler. Bounds hold for either, since they count with sums in
any order.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.base import native
from secateurs.graph import Affine
from secateurs.graph.primitives import Sliding

SOURCE = Path(__file__).with_suffix(".cpp")
_log = logging.getLogger("secateurs.proof")

Rows = tuple[Tensor, Tensor | None]
"""Generators, (symbols, *shape), and a factor for each entry, (1, *shape)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionKernel:
    """The compiled functions.

    Attributes:
        convolve: (out, x, scale, weight, how, add), out = or += the convolution of x · scale.
        add_sizes: (total, x), total += |x| summed over the first dimension.
    """

    convolve: Callable[[Tensor, Tensor, Tensor | None, Tensor, Sliding, bool], None]
    add_sizes: Callable[[Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class Convolution:
    """The sum of convolutions of several values by one node, each with its own weight."""

    kernel: ConvolutionKernel
    how: Sliding
    weights: tuple[Tensor, ...]

    @staticmethod
    def of(node: Affine, weights: Sequence[Tensor]) -> "Convolution | None":
        """None where torch has to do it."""
        how = node.operation.sliding
        if how is None or how.groups is None or len(node.shape) != 4 or node.shape[0] != 1:
            return None
        if any(w.device.type != "cpu" or w.dtype != torch.float64 for w in weights):
            return None
        kernel = compiled()
        return None if kernel is None else Convolution(kernel, how, tuple(weights))

    def into(self, out: Tensor, mass: Tensor | None, rows: Sequence[Rows | None]) -> None:
        """Write the result for some symbols, and add its absolute values to `mass`; None for a
        value that has none of them.
        """
        there = [(*x, w) for x, w in zip(rows, self.weights, strict=True) if x is not None]
        if not there:
            out.zero_()
        for number, (x, scale, weight) in enumerate(there):
            self.kernel.convolve(out, x, scale, weight, self.how, number > 0)
        if mass is not None:
            self.kernel.add_sizes(mass, out)


@cache
def compiled() -> ConvolutionKernel | None:
    """The kernel, built at the first call on a machine; None if that is impossible (a log line says
    why).
    """
    return native.kernel(
        SOURCE,
        _load,
        switch="SECATEURS_NATIVE",
        what="compiled convolutions of zonotopes",
        fallback="certificates of convolutional networks take several times as long",
        log=_log,
    )


def _load(library: ctypes.CDLL) -> ConvolutionKernel:
    """Load the library and try it once, so that a wrong binary is refused rather than trusted."""
    library.secateurs_convolve.restype = library.secateurs_add_sizes.restype = None

    def at(tensor: Tensor | None) -> ctypes.c_void_p:
        return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())

    def numbers(*values: int) -> list[ctypes.c_int64]:
        return [ctypes.c_int64(value) for value in (*values, torch.get_num_threads())]

    def convolve(
        out: Tensor, x: Tensor, scale: Tensor | None, weight: Tensor, how: Sliding, add: bool
    ) -> None:
        # Kept alive here until the call has ended, since only their addresses are passed.
        x, weight = x.contiguous(), weight.contiguous()
        scale = None if scale is None else scale.contiguous()
        ways = (how.kernel, how.stride, how.padding, how.dilation)
        axes = [
            (x.shape[place], out.shape[place], *(way[place] for way in ways)) for place in (-2, -1)
        ]
        sizes = torch.tensor(axes)
        maps, channels, outputs = len(x), x.shape[-3], out.shape[-3]
        library.secateurs_convolve(
            *map(at, (out, x, scale, weight, sizes)),
            *numbers(maps, channels, outputs, how.groups or 1, int(add)),
        )

    def add_sizes(total: Tensor, x: Tensor) -> None:
        library.secateurs_add_sizes(at(total), at(x), *numbers(len(x), total.numel()))

    kernel = ConvolutionKernel(convolve=convolve, add_sizes=add_sizes)
    x = torch.arange(2 * 2 * 5 * 7, dtype=torch.float64).reshape(2, 2, 5, 7) - 30
    # As many as are taken side by side by every thread, and two more.
    x = x.repeat(16 * torch.get_num_threads() + 1, 1, 1, 1)
    weight = torch.arange(5 * 2 * 2 * 3, dtype=torch.float64).reshape(5, 2, 2, 3) - 20
    how = Sliding(kernel=(2, 3), stride=(1, 2), padding=(1, 0))
    right = F.conv2d(2 * x, weight, stride=how.stride, padding=how.padding)
    for maps in (len(x), 2):
        out, total = torch.empty_like(right[:maps]), torch.zeros_like(right[0])
        kernel.convolve(out, x[:maps], torch.full_like(x[0], 2.0), weight, how, False)
        kernel.add_sizes(total, out)
        if not (torch.equal(out, right[:maps]) and torch.equal(total, out.abs().sum(0))):
            raise RuntimeError("the compiled convolution computes something else")
    return kernel
