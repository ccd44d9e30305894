"""Seconds of one layer on its own, dense and pruned."""

import copy
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.printing import Printed
from secateurs.base.progress import Progress, show_progress
from secateurs.base.safefile import replacing
from secateurs.channels.macs import multiplies
from secateurs.channels.verify import run
from secateurs.errors import ArgumentError
from secateurs.graph import Affine, Example, affines, capture
from secateurs.graph.untouched import untouched
from secateurs.ship.fast import accelerate
from secateurs.ship.measure import processor

# The median of fewer calls says little; more calls add nothing.
_FEWEST, _MOST = 7, 300
_ENOUGH = 0.03
"""Seconds after which no further call is timed."""


def layer_seconds(
    node: Affine,
    owner: nn.Module,
    x: Tensor,
    kind: str,
    density: float,
    generator: torch.Generator,
) -> float:
    """Median seconds of a layer of PyTorch at a density; other classes count as dense always."""
    if not isinstance(owner, nn.Linear | nn.modules.conv._ConvNd):
        weight = torch.randn(node.weight.shape if node.weight else (), dtype=x.dtype)
        return seconds(lambda: node.linear(x, weight))
    x = x.to(owner.weight.dtype)
    if kind == "channels":
        few, x = _narrower(owner, x, density)
        return seconds(lambda: few(x))
    thin = copy.deepcopy(owner)
    drawn = torch.rand(owner.weight.shape, generator=generator)
    thin.weight *= (drawn < density).to(owner.weight)
    # The faster of torch and the kernels, as `accelerate` chooses for the whole network.
    fast = accelerate(thin.eval(), x, rivals={})
    return seconds(lambda: fast(x))


def _narrower(
    owner: nn.Linear | nn.modules.conv._ConvNd, x: Tensor, density: float
) -> tuple[nn.Module, Tensor]:
    """A layer with this share of the weights, in fewer channels on both sides, and its input."""
    side = math.sqrt(density)
    if isinstance(owner, nn.Linear):
        into = math.ceil(side * owner.in_features)
        out = math.ceil(side * owner.out_features)
        return nn.Linear(into, out, owner.bias is not None).to(x), x[..., :into]
    # Whole groups are cut; a depthwise layer loses weights in proportion to its channels.
    groups = math.ceil(density * owner.groups) if owner.groups > 1 else 1
    left = groups / owner.groups if owner.groups > 1 else side
    into, out = (math.ceil(left * n) for n in (owner.in_channels, owner.out_channels))
    few = copy.deepcopy(owner)
    transposed = isinstance(owner, nn.modules.conv._ConvTransposeNd)
    shape = (into, out // groups) if transposed else (out, into // groups)
    few.weight = nn.Parameter(torch.randn(*shape, *owner.kernel_size).to(x))
    few.bias = None if owner.bias is None else nn.Parameter(torch.zeros(out).to(x))
    few.in_channels, few.out_channels, few.groups = into, out, groups
    return few, x[:, :into].contiguous()


def seconds(call: Callable[[], object]) -> float:
    """The median time of a call."""
    for _ in range(2):  # caches, lazy set-up
        call()
    taken: list[float] = []
    end = time.perf_counter() + _ENOUGH
    while len(taken) < _FEWEST or (len(taken) < _MOST and time.perf_counter() < end):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    # Other work on the machine can only make single calls longer.
    return statistics.median(taken)


# Seconds of every layer at a few densities, and the estimate for a pruned network.

KINDS = ("entries", "channels")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One use of a weight: seconds at each density of the table, from dense to sparse."""

    name: str
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTable(Printed):
    """Measured seconds of layers, from which the time of a pruned network is estimated.

    Attributes:
        kind: What a density counts: "entries" that the compiled kernels run, or whole "channels".
        densities: From 1 downwards.
        rest: Seconds of everything outside layers, which pruning does not shorten.
        threads, machine: Where it was measured.
    """

    kind: str
    densities: tuple[float, ...]
    layers: tuple[LayerTimes, ...]
    rest: float
    threads: int
    machine: str

    @property
    def dense(self) -> float:
        """Seconds of the dense network."""
        return self.rest + sum(layer.seconds[0] for layer in self.layers)

    def seconds(self, densities: Mapping[str, float]) -> float:
        """The estimate at these densities by weight name: the sum over layers, and the rest.

        Between two measured densities the time is interpolated linearly. A layer never counts as
        slower than at a higher density, so noise of the measurement cannot make a search turn back.

        >>> layer = LayerTimes(name="w", seconds=(1.0, 0.5))
        >>> table = LatencyTable(kind="entries", densities=(1.0, 0.5), layers=(layer,), rest=0.5,
        ...     threads=1, machine="")
        >>> table.dense, table.seconds({"w": 0.75})
        (1.5, 1.25)
        """
        return self.rest + sum(
            self._layer(layer, densities.get(layer.name, 1.0)) for layer in self.layers
        )

    def _layer(self, layer: LayerTimes, density: float) -> float:
        # Never increasing as the density falls, whatever was measured: the minimum over all denser
        # entries.
        falling = [min(layer.seconds[: i + 1]) for i in range(len(layer.seconds))]
        points = list(zip(self.densities, falling, strict=True))
        for (above, slow), (below, fast) in itertools.pairwise(points):
            if density >= below:
                share = (density - below) / (above - below)
                return fast + share * (slow - fast)
        # Below the last density nothing was measured: no further gain is assumed.
        return falling[-1]

    def save(self, path: str | Path) -> None:
        """Write it as a JSON file."""
        text = json.dumps(asdict(self), indent=1, allow_nan=False)
        with replacing(Path(path), folders=False) as part:
            part.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls._read(found)
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(f"{path} is not a table of latencies: {error}.") from error

    @classmethod
    def _read(cls, found: Mapping[str, Any]) -> Self:
        layers = tuple(
            LayerTimes(name=str(one["name"]), seconds=_numbers(one["seconds"]))
            for one in found["layers"]
        )
        densities = _numbers(found["densities"])
        falling = all(a > b for a, b in itertools.pairwise(densities))
        if not falling or densities[:1] != (1.0,) or densities[-1] <= 0:
            raise ValueError(f"the densities {densities} do not decrease from 1")
        if any(len(layer.seconds) != len(densities) for layer in layers):
            raise ValueError("a layer does not have one time for each density")
        if found["kind"] not in KINDS:
            raise ValueError(f"kind {found['kind']!r} is none of {', '.join(KINDS)}")
        return cls(
            kind=found["kind"],
            densities=densities,
            layers=layers,
            rest=_numbers([found["rest"]])[0],
            threads=int(found["threads"]),
            machine=str(found["machine"]),
        )

    def __rich__(self) -> Table:
        title = f"milliseconds by density of {self.kind}, {self.threads} thread(s)"
        table = Table("weight", title=title)
        for density in self.densities:
            table.add_column(f"{density:g}", justify="right")
        for layer in self.layers:
            table.add_row(escape(layer.name), *(f"{1e3 * s:.3f}" for s in layer.seconds))
        table.add_row("everything else", f"{1e3 * self.rest:.3f}")
        return table


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ValueError(f"{numbers} holds a number that is negative or not finite")
    return numbers


# Measuring a table of latencies: every form of layer once at every density.

DENSITIES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)


@torch.no_grad()
def latency_table(
    model: nn.Module,
    example: Example,
    *,
    kind: str = "entries",
    densities: Sequence[float] = DENSITIES,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> LatencyTable:
    """Seconds of every layer of a network at a few densities, measured on this machine.

    Layers of the same form (operator, sizes, input) are measured once. Effects between layers are
    not measured: the sum is an estimate of the pruned network's time, not a bound.
    `secateurs.measure` gives the real time afterwards.

    Args:
        model: in evaluation mode; it is left as it is.
        example: the input whose time counts; batch and resolution matter.
        kind: "entries": random masks through `accelerate`, for unstructured pruning;
            "channels": narrower layers in torch, for whole channels. A density is the share of a
            layer's weights in both.
        densities: falling from 1.
        generator: source of the random masks.
        progress: called with one line for each form of layer.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).eval()
    >>> table = latency_table(model, torch.zeros(1, 64), kind="channels", densities=(1, 0.25))
    >>> [layer.name for layer in table.layers], table.dense > 0
    (['0.weight', '2.weight'], True)
    """
    falling = _check_densities(kind, densities)
    source = generator or torch.Generator().manual_seed(0)
    with show_progress(progress, "latency_table") as say:
        graph = capture(model, example, opaque=True)
        timed: dict[object, tuple[float, ...]] = {}
        layers = []
        for node in affines(graph):
            if node.weight is None or not multiplies(graph, node):
                continue
            owner = model.get_submodule(node.place.module)
            shape = (samples(example), *graph.by_name[node.inputs[0]].shape[1:])
            form = (node.operation.label, shape, node.weight.shape, node.bias is None)
            if form not in timed:
                say(f"timing {node.place.module}, as of {shape}")
                x = torch.randn(shape, generator=source)
                timed[form] = tuple(
                    layer_seconds(node, owner, x, kind, density, source) for density in falling
                )
            name = node.weight.direct or next(iter(node.weight.names))
            layers.append(LayerTimes(name=name, seconds=timed[form]))
        # The whole network in the same form as its layers.
        whole = accelerate(model, example, rivals={}) if kind == "entries" else model
        with untouched(model):
            taken = seconds(lambda: run(whole, example))
    rest = taken - sum(t.seconds[0] for t in layers)
    return LatencyTable(
        kind=kind,
        densities=falling,
        layers=tuple(layers),
        # A layer on its own pays for its own call, so the sum can exceed the whole.
        rest=max(0.0, rest),
        threads=torch.get_num_threads(),
        machine=processor(),
    )


def samples(example: Example) -> int:
    """The batch size of an example."""
    if isinstance(example, Tensor):
        return len(example)
    given = example.values() if isinstance(example, Mapping) else example
    return len(next(iter(given)))


def _check_densities(kind: str, densities: Sequence[float]) -> tuple[float, ...]:
    if kind not in KINDS:
        raise ArgumentError(f"kind={kind!r} is none of {', '.join(KINDS)}.")
    falling = tuple(float(density) for density in densities)
    pairs = itertools.pairwise(falling)
    if falling[:1] != (1.0,) or falling[-1] <= 0 or any(a <= b for a, b in pairs):
        raise ArgumentError(
            f"densities={tuple(densities)!r} do not decrease from 1 to a value above 0."
        )
    return falling
