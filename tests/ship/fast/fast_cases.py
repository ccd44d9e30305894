"""Convolutions of every geometry, and a single convolution run in one given way."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from secateurs.ship.fast import compiled, convolve, plan
from secateurs.ship.fast.convolve import Choice
from secateurs.ship.fast.operations import Conv, Segment, Shape

IDENTITY = Shape()


def slopes(channels: int) -> Shape:
    """One for each channel: 0, 1, below 0 and above 1 among them."""
    return Shape(slopes=tuple((0.0, 0.25, -0.5, 1.0, 1.5)[c * 3 % 5] for c in range(channels)))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One convolution: sizes, geometry, density."""

    inp: int = 3
    out: int = 5
    size: tuple[int, int] = (7, 9)
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    density: float = 0.4
    added: bool = False
    shape: Shape = IDENTITY


GRID = [
    Case(),
    Case(size=(32, 32), inp=4, out=9, density=0.1),
    Case(size=(4, 4), inp=17, out=13, density=0.3, added=True, shape=Shape(slope=0.0)),
    Case(size=(1, 1), inp=33, out=10, kernel=(1, 1), padding=(0, 0)),
    Case(size=(5, 1), kernel=(5, 1), padding=(0, 0)),
    Case(kernel=(1, 1), padding=(0, 0), added=True),
    Case(kernel=(1, 1), padding=(0, 0), stride=(2, 2)),
    Case(kernel=(1, 1), padding=(1, 2)),
    Case(stride=(2, 2)),
    Case(stride=(2, 1), padding=(0, 2), shape=Shape(slope=0.1)),
    Case(stride=(3, 2), kernel=(5, 4), padding=(2, 3), size=(13, 10)),
    Case(dilation=(2, 2), padding=(2, 2)),
    Case(dilation=(2, 3), padding=(1, 4), size=(11, 12), stride=(2, 2)),
    Case(kernel=(1, 7), padding=(0, 3), size=(5, 17)),
    Case(kernel=(7, 1), padding=(3, 0), size=(17, 5)),
    Case(kernel=(11, 11), padding=(2, 2), stride=(4, 4), size=(32, 30), out=3),
    Case(kernel=(2, 2), padding=(0, 0), size=(3, 40), shape=Shape(slope=0.0, cap=0.5)),
    Case(kernel=(3, 3), padding=(3, 3), size=(2, 2)),
    Case(groups=3, inp=6, out=9),
    Case(groups=4, inp=4, out=4, density=1.0, shape=Shape(slope=0.0)),
    Case(groups=2, inp=4, out=10, kernel=(1, 1), padding=(0, 0)),
    Case(groups=4, inp=4, out=8, stride=(2, 2), added=True),
    Case(groups=6, inp=6, out=6, kernel=(5, 5), padding=(2, 2), size=(15, 37)),
    Case(
        groups=4,
        inp=8,
        out=4,
        kernel=(5, 3),
        padding=(1, 3),
        stride=(2, 2),
        size=(23, 41),
        density=0.8,
        added=True,
        shape=Shape(slope=0.0, cap=1.0),
    ),
    Case(
        groups=2,
        inp=2,
        out=6,
        stride=(1, 3),
        padding=(2, 5),
        size=(9, 20),
        dilation=(2, 3),
        shape=Shape(slope=0.1),
    ),
    Case(groups=3, inp=3, out=3, kernel=(3, 3), padding=(4, 4), size=(2, 3)),
    Case(density=1.0, inp=70, out=13, size=(7, 7), kernel=(1, 1), padding=(0, 0)),
    Case(density=1.0, inp=8, out=16, size=(6, 50)),
    Case(density=0.0),
    Case(density=1.0, inp=1, out=1, kernel=(1, 1), padding=(0, 0), size=(3, 3)),
    Case(inp=2, out=3, size=(40, 33), density=0.5, added=True, shape=Shape(slope=0.0)),
    Case(size=(4, 4), inp=17, out=13, density=0.3, added=True, shape=slopes(13)),
    Case(size=(1, 1), inp=33, out=10, kernel=(1, 1), padding=(0, 0), shape=slopes(10)),
    Case(groups=4, inp=4, out=8, stride=(2, 2), added=True, shape=slopes(8)),
    Case(density=1.0, inp=70, out=13, size=(7, 7), kernel=(1, 1), padding=(0, 0), shape=slopes(13)),
    Case(density=1.0, inp=8, out=16, size=(6, 50), shape=slopes(16)),
]


def conv(case: Case, generator: torch.Generator) -> Conv:
    """The operation of a case, with random weights."""
    shape = (case.out, case.inp // case.groups, *case.kernel)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    weight *= torch.rand(shape, generator=generator) < case.density
    return Conv(
        source="x",
        to="y",
        weight=weight.numpy(),
        bias=torch.randn(case.out, generator=generator, dtype=torch.float64).numpy(),
        stride=case.stride,
        padding=case.padding,
        dilation=case.dilation,
        groups=case.groups,
        added="a" if case.added else None,
        shape=case.shape,
    )


def expected(op: Conv, x: Tensor, added: Tensor | None) -> Tensor:
    """The same by torch, in float64."""
    weight, bias = torch.from_numpy(op.weight), torch.from_numpy(op.bias)
    y = F.conv2d(x.double(), weight, bias, op.stride, op.padding, op.dilation, op.groups)
    y = y if added is None else y + added.double()
    slope = torch.tensor(op.shape.slopes or op.shape.slope, dtype=y.dtype).reshape(1, -1, 1, 1)
    y = torch.where(y < 0, y * slope, y) if op.shape.on else y
    return y.clamp(max=op.shape.cap)


def kernels() -> compiled.KernelLibrary:
    """The compiled kernels, or a skipped test."""
    made = compiled.library()
    if made is None:
        pytest.skip("no C++ compiler on this machine")
    return made


def run(
    op: Conv, x: Tensor, added: Tensor | None, choice: Choice, group: int, threads: int = 1
) -> Tensor:
    """One convolution in one way, for batches of this group size; with threads, one image is
    divided among them.
    """
    sample = expected(op, x[:1], None if added is None else added[:1])
    planes = {
        "x": tuple(x.shape[1:]),
        "y": tuple(sample.shape[1:]),
        "a": tuple(sample.shape[1:]),
    }
    enters = (("in", "x"), ("added", "a")) if added is not None else (("in", "x"),)
    segment = Segment(
        operations=[op],
        enters=enters,
        leaves=(("out", "y"),),
        dims={"out": planes["y"]},
        planes=planes,
    )
    program = compiled.Program(kernels(), x.dtype, shared=threads)
    made = plan.build(segment, x.dtype, group, lambda *_: choice)
    program.plan(made.ops, made.memory, group, made.numbers)
    result = torch.full((len(x), *planes["y"]), float("nan"), dtype=x.dtype)
    given = [x, added] if added is not None else [x]
    program.run(given, [result], len(x), threads)
    return result


def ways(op: Conv, group: int, size: tuple[int, int, int], lanes: int) -> list[Choice]:
    """Every layout, tile and block a case can take, not only those that would be timed."""
    sample = expected(op, torch.zeros(1, *size), None if op.added is None else torch.zeros(()))
    out = tuple(sample.shape[1:])
    listed = convolve.candidates(op, size, out, group, lanes, 32)
    if listed[0].tile < 1:
        return listed
    tiles = [(1, 1), (5, 1), (16, 1), (2, 2), (12, 2), (1, 4), (6, 4), (1, 8), (3, 8)]
    layouts = dict.fromkeys(choice.layout for choice in listed)
    more = [
        Choice(layout=layout, tile=t, block=b, parts=1 + k % 3)
        for layout in layouts
        for k, (t, b) in enumerate(tiles)
    ]
    more += [
        Choice(layout="near", tile=rows, block=block)
        for block in convolve.near_blocks(op)
        for rows in (1, 4, 7, 8)
    ]
    more += _matrix(op) + _winograd(op, out, group)
    return list(dict.fromkeys([*listed, *more]))


def _matrix(op: Conv) -> list[Choice]:
    """Every tile and block of a matrix product, whatever the density."""
    if not convolve.fits_matrix(op):
        return []
    shapes = [(t, b) for t in (1, 2, 3, 4) for b in (4, 6, 8, 12) if t * b <= 24]
    return [Choice(layout="matrix", tile=t, block=b) for t, b in shapes]


def _winograd(op: Conv, out: tuple[int, ...], group: int) -> list[Choice]:
    """Every tile and block, and rows of tiles in uneven pieces."""
    if not convolve.fits_winograd(op):
        return []
    shapes = [(1, 16), (1, 8), (2, 8), (3, 8), (1, 4), (2, 4), (3, 4)]
    rows = (1, 3, group * -(-out[1] // 2))
    return [
        Choice(layout="winograd", tile=t, block=b, parts=rows[k % 3])
        for k, (t, b) in enumerate(shapes)
    ]


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Equal relative to the largest number."""
    scale = float(b.abs().max()) if b.numel() else 0.0
    return bool(torch.isfinite(a).all()) and float((a.double() - b.double()).abs().max()) <= (
        tolerance * max(scale, 1e-30)
    )


def zeroed(model: torch.nn.Module, density: float, seed: int = 0) -> torch.nn.Module:
    """The model with random zeros in its weights."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= torch.from_numpy(rng.random(tuple(parameter.shape)) < density)
    return model


def check_in_threads(module, model, inputs, *, calls):
    """One thread for each input, all calling at once: each gets its own answers."""
    with torch.inference_mode():
        wanted = [model(x) for x in inputs]
    wrong = []

    def work(k):
        with torch.inference_mode():
            for _ in range(calls):
                if not close(module(inputs[k]), wanted[k], 1e-5):
                    wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
