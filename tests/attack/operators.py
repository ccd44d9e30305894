"""Operators for random networks: each a function of values and parameters, with its literals.

An operator is `make(draw, shape) -> Op` or None where it does not fit the shape. What the code of a
model would write as a number, an index or a flag goes through `draw`, by name, so that a second
network can be built that differs in exactly one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Op:
    """One step: `call(values, parameters)`, how many values it reads, its parameters' shapes."""

    call: Callable[[list[Tensor], list[Tensor]], Tensor]
    reads: int = 1
    parameters: tuple[tuple[int, ...], ...] = ()
    positive: tuple[int, ...] = field(default=())


class Draw:
    """Literals by name: drawn once, and drawn alike again, except for the one that is changed."""

    def __init__(self, g: torch.Generator, known: dict[str, Any] | None = None) -> None:
        self.g, self.known = g, dict(known or {})
        self.choices: dict[str, tuple[Any, ...]] = {}

    def __call__(self, name: str, *choices: Any) -> Any:
        if name not in self.known:
            self.known[name] = choices[int(torch.randint(len(choices), (), generator=self.g))]
        self.choices[name] = choices
        return self.known[name]


def elementwise(draw: Draw, shape: tuple[int, ...]) -> Op:
    kind = draw("kind", *ELEMENTWISE)
    return ELEMENTWISE[kind](draw, shape)


def _one(call: Callable[[Tensor], Tensor]) -> Op:
    return Op(lambda v, p: call(v[0]))


def _per_channel(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[1], *[1] * (len(shape) - 2))


def _leaky(draw: Draw, shape: tuple[int, ...]) -> Op:
    slope = draw("slope", 0.01, 0.1, 0.3, 0.9)
    return _one(lambda x: F.leaky_relu(x, slope))


def _scaled(draw: Draw, shape: tuple[int, ...]) -> Op:
    factor, offset = (
        draw("factor", 0.5, -0.7, 1.5, 2.0),
        draw("offset", 0.25, -0.5, 1.0, 3.0),
    )
    way = draw("way", "mul", "div", "rsub")
    if way == "div":
        return _one(lambda x: x / factor + offset)
    return _one(lambda x: offset - x * factor if way == "rsub" else x * factor + offset)


def _clamped(draw: Draw, shape: tuple[int, ...]) -> Op:
    side = draw("side", "min", "max")
    return _one(lambda x: x.clamp(min=0) if side == "min" else x.clamp(max=0))


def _gain(draw: Draw, shape: tuple[int, ...]) -> Op:
    where = _per_channel(shape)
    return Op(lambda v, p: v[0] * p[0] + p[1], parameters=(where, where))


def _joined(draw: Draw, shape: tuple[int, ...]) -> Op:
    way, alpha = draw("way", "add", "sub", "max", "min"), draw("alpha", 1, 2, 0.5, 5)
    calls = {
        "add": lambda v, p: torch.add(v[0], v[1], alpha=alpha),
        "sub": lambda v, p: torch.sub(v[0], v[1], alpha=alpha),
        "max": lambda v, p: torch.maximum(v[0], v[1]),
        "min": lambda v, p: torch.minimum(v[0], v[1]),
    }
    return Op(calls[way], reads=2)


def _in_place(draw: Draw, shape: tuple[int, ...]) -> Op:
    """Changes a value that others read, through a view or not: `alias` says whether of a copy."""
    alias, way = (
        draw("alias", True, False),
        draw("way", "relu", "view", "drop", "slice"),
    )

    def call(v: list[Tensor], p: list[Tensor]) -> Tensor:
        x = v[0] * 1.0 if alias else (v[0] * 1.0).clone()
        y = x if alias else x.clone()
        if way == "relu":
            y.relu_()
        elif way == "view":
            y.flatten(1).mul_(0.5)
        elif way == "drop":
            F.dropout(y, training=False).neg_()
        else:
            y[:, :1].add_(1.0)
        return x + y

    return Op(call)


ELEMENTWISE: dict[str, Callable[[Draw, tuple[int, ...]], Op]] = {
    "relu": lambda d, s: _one(torch.relu),
    "leaky": _leaky,
    "scaled": _scaled,
    "clamped": _clamped,
    "threshold": lambda d, s: _one(lambda x: F.threshold(x, 0.0, 0.0)),
    "dropout": lambda d, s: _one(lambda x: F.dropout(x, training=False)),
    "gain": _gain,
}


def linear(draw: Draw, shape: tuple[int, ...]) -> Op | None:
    inp, out = shape[-1], draw("out", 2, 3, 4)
    way = draw("way", "linear", "matmul", "einsum", "addmm")
    if way == "linear":
        return Op(lambda v, p: F.linear(v[0], p[0], p[1]), parameters=((out, inp), (out,)))
    if way == "matmul":
        return Op(lambda v, p: v[0] @ p[0], parameters=((inp, out),))
    if way == "einsum":
        return Op(
            lambda v, p: torch.einsum("...i,oi->...o", v[0], p[0]),
            parameters=((out, inp),),
        )
    if len(shape) != 2:
        return None
    alpha, beta = draw("alpha", 1, 2, 0.5), draw("beta", 1, 3, 0.25)
    return Op(
        lambda v, p: torch.addmm(p[0], v[0], p[1], alpha=alpha, beta=beta),
        parameters=((out,), (inp, out)),
    )


def convolution(draw: Draw, shape: tuple[int, ...]) -> Op | None:
    dims = len(shape) - 2
    if dims not in (1, 2):
        return None
    groups = draw("groups", 1, 1, shape[1])
    out = groups * draw("out", 1, 2) if groups > 1 else draw("width", 2, 3)
    kernel, stride = draw("kernel", 1, 2, 3), draw("stride", 1, 1, 2)
    padding, dilation = draw("padding", 0, 1), draw("dilation", 1, 1, 2)
    size = min(shape[2:]) + 2 * padding
    if size < dilation * (kernel - 1) + 1:
        return None
    options = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
    window = [kernel] * dims
    if draw("transposed", False, False, True):
        run = F.conv_transpose1d if dims == 1 else F.conv_transpose2d
        if (min(shape[2:]) - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 < 1:
            return None
        weight = (shape[1], out // groups, *window)
    else:
        run = F.conv1d if dims == 1 else F.conv2d
        weight = (out, shape[1] // groups, *window)
    return Op(lambda v, p: run(v[0], p[0], p[1], **options), parameters=(weight, (out,)))


def normed(draw: Draw, shape: tuple[int, ...]) -> Op | None:
    channels, eps = (shape[1],), draw("eps", 1e-5, 0.1, 1.0)
    if len(shape) < 2:
        return None
    return Op(
        lambda v, p: F.batch_norm(v[0], p[0].detach(), p[1].detach(), p[2], p[3], eps=eps),
        parameters=(channels,) * 4,
        positive=(1,),
    )


def pool(draw: Draw, shape: tuple[int, ...]) -> Op | None:
    dims = len(shape) - 2
    if dims not in (1, 2) or min(shape[2:]) < 2:
        return None
    way = draw("way", "max", "avg", "adaptive", "adaptive-max")
    size = draw("size", 2, 2, 3)
    if size > min(shape[2:]):
        return None
    options = {"stride": draw("stride", 1, 2), "ceil_mode": draw("ceil", False, True)}
    padding = draw("padding", 0, 1)
    if way == "max":
        run = F.max_pool1d if dims == 1 else F.max_pool2d
        return _one(lambda x: run(x, size, padding=padding, **options))
    if way == "avg":
        run, counted = (
            (F.avg_pool1d, F.avg_pool2d)[dims - 1],
            draw("counted", True, False),
        )
        return _one(lambda x: run(x, size, padding=padding, count_include_pad=counted, **options))
    names = {"adaptive": "adaptive_avg_pool", "adaptive-max": "adaptive_max_pool"}
    run = getattr(F, f"{names[way]}{dims}d")
    return _one(lambda x: run(x, size))


def ordered(draw: Draw, shape: tuple[int, ...]) -> Op | None:
    dim = draw("dim", *range(1, len(shape)))
    if shape[dim] < 2:
        return None
    way = draw("way", "kth", "median", "topk", "sort", "amax", "max")
    k, down = draw("k", 1, 2), draw("descending", True, False)
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "kth": lambda x: x.kthvalue(k, dim, keepdim=True).values,
        "median": lambda x: x.median(dim, keepdim=True).values,
        "topk": lambda x: x.topk(k, dim, largest=down).values,
        "sort": lambda x: x.sort(dim, descending=down).values,
        "amax": lambda x: x.amax(dim, keepdim=True),
        "max": lambda x: x.max(dim, keepdim=True)[0],
    }
    return _one(calls[way])


def rearranged(draw: Draw, shape: tuple[int, ...]) -> Op | None:
    dim = draw("dim", *range(1, len(shape)))
    size = shape[dim]
    way = draw(
        "way",
        "flip",
        "roll",
        "slice",
        "index",
        "select",
        "pad",
        "twice",
        "halves",
        "swap",
    )
    first, second = draw("first", *range(size)), draw("second", *range(size))
    fill, left = draw("fill", 0.0, 0.5, -1.0), draw("left", 0, 1)
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "flip": lambda x: x.flip(dim),
        "roll": lambda x: x.roll(first, dim),
        "slice": lambda x: x.narrow(dim, min(first, size - 1), 1) + x,
        "index": lambda x: x.index_select(dim, torch.tensor([first, second])),
        "select": lambda x: x.select(dim, first).unsqueeze(dim),
        "pad": lambda x: F.pad(x, (left, 1 - left), value=fill),
        "twice": lambda x: torch.cat([x, x * 0.5], dim),
        "halves": lambda x: torch.cat(x.chunk(2, dim)[:: -1 if left else 1], dim),
        "swap": lambda x: torch.stack(x.unbind(dim)[:: -1 if left else 1], dim),
    }
    return _one(calls[way])


def averaged(draw: Draw, shape: tuple[int, ...]) -> Op | None:
    dim, way = (
        draw("dim", *range(1, len(shape))),
        draw("way", "mean", "sum", "centred"),
    )
    if way == "centred":
        return _one(lambda x: x - x.mean(dim, keepdim=True))
    return _one(lambda x: x.mean(dim, keepdim=True) if way == "mean" else x.sum(dim, keepdim=True))


def resized(draw: Draw, shape: tuple[int, ...]) -> Op | None:
    if len(shape) != 4 or max(shape[2:]) > 4:
        return None
    mode, corners = draw("mode", "nearest", "bilinear"), draw("corners", False, True)
    options = {} if mode == "nearest" else {"align_corners": corners}
    return _one(lambda x: F.interpolate(x, scale_factor=2, mode=mode, **options))


OPERATORS: dict[str, Callable[[Draw, tuple[int, ...]], Op | None]] = {
    "elementwise": elementwise,
    "relu": ELEMENTWISE["relu"],
    "joined": _joined,
    "in place": _in_place,
    "linear": linear,
    "convolution": convolution,
    "batch norm": normed,
    "pool": pool,
    "ordered": ordered,
    "rearranged": rearranged,
    "averaged": averaged,
    "resized": resized,
}
