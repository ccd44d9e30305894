"""Networks that keep something as they run, and a description of all that a network holds."""

import collections
import random
import types
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

X = torch.zeros(1, 3, 6, 6)


class Base(nn.Module):
    """A stem, something in the middle, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 4 * 4, 2)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.middle(self.conv(x))).flatten(1))


class Grid(Base):
    """A table for the last size seen."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.grid = None, None

    def middle(self, h: Tensor) -> Tensor:
        if self.size != h.shape[-2:]:
            self.grid = torch.arange(h.shape[-1], dtype=h.dtype) + 1
            self.size = h.shape[-2:]
        return h * self.grid


class Tables(Base):
    """A table for every size seen, in a dictionary, and the sizes in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.tables, self.sizes = (
            collections.OrderedDict(),
            collections.deque(maxlen=3),
        )

    def middle(self, h: Tensor) -> Tensor:
        if h.shape not in self.tables:
            self.tables[h.shape] = h.new_ones(h.shape[-1]) * 3
        self.sizes.append(h.shape)
        return h + self.tables[h.shape]


class Counting(Base):
    """A counter that changes nothing, in the module, its class, an object, a closure, a tensor."""

    calls: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.n, self.inner, self.names = 0, types.SimpleNamespace(n=0), {"a"}
        self.ticks, self.array = torch.zeros(2), np.zeros(3)
        count = 0

        def tick() -> None:
            nonlocal count
            count += 1
            self.names.add(str(count))

        self.tick = tick
        self.tock = lambda: tick.__closure__[0].cell_contents

    def middle(self, h: Tensor) -> Tensor:
        self.n += 1
        self.inner.n += 1
        type(self).calls += 1
        self.tick()
        self.array[0] += 1
        if not torch.compiler.is_compiling() and type(h) is Tensor:
            self.ticks.numpy()[0] += 1
        return 2 * h


class Head(Base):
    """As a detector's head does: anchors are made when the first picture has been seen."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = None
        self.anchors, self.strides = torch.empty(0), torch.empty(0)
        self.stride = torch.tensor([8.0])

    def middle(self, h: Tensor) -> Tensor:
        if self.shape != h.shape:
            self.anchors, self.strides = (t.transpose(0, 1) for t in self._anchors(h))
            self.shape = h.shape
        flat = (h.flatten(2) * self.anchors[:1] + self.anchors[1:]) * self.strides
        return flat.unflatten(2, h.shape[2:])

    def _anchors(self, h: Tensor) -> tuple[Tensor, Tensor]:
        points, strides = [], []
        rows, columns = h.shape[2:]
        for stride in self.stride:
            sx = torch.arange(columns, dtype=h.dtype) + 0.5
            sy = torch.arange(rows, dtype=h.dtype) + 0.5
            sy, sx = torch.meshgrid(sy, sx, indexing="ij")
            points.append(torch.stack((sx, sy), -1).view(-1, 2))
            strides.append(torch.full((rows * columns, 1), stride, dtype=h.dtype))
        return torch.cat(points), torch.cat(strides)


STATEFUL = {kind.__name__: kind for kind in (Grid, Tables, Counting, Head)}


def described(value: object, seen: dict[int, object] | None = None) -> object:
    """A value that is equal for equal holdings; written apart from the code that is tested."""
    seen = {} if seen is None else seen
    if isinstance(value, str | int | float | bool | type(None) | torch.dtype | torch.Size):
        return value
    if id(value) in seen:
        return "again"
    seen[id(value)] = value
    kind = type(value).__name__
    if isinstance(value, Tensor):
        assert type(value) in (Tensor, nn.Parameter), kind
        return kind, tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return kind, value.tobytes()
    if isinstance(value, dict):
        items = [(described(k, seen), described(v, seen)) for k, v in value.items()]
        return kind, items
    if isinstance(value, set):
        return kind, sorted(map(str, value))
    if isinstance(value, list | tuple | collections.deque):
        return kind, [described(v, seen) for v in value]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return kind, [described(cell, seen) for cell in cells]
    counts = getattr(type(value), "calls", 0)
    return (
        kind,
        counts,
        described(vars(value), seen) if hasattr(value, "__dict__") else "",
    )


def everything(model: nn.Module) -> object:
    """What the model holds, and the states of random numbers."""
    numbers = torch.get_rng_state().numpy().tobytes(), random.getstate()
    return described(model), numbers, np.random.get_state()[1].tobytes()
