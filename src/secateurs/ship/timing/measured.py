"""Measuring a table of latencies: every layer of another form once at every density."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.graph import Example, affines, capture
from secateurs.graph.untouched import untouched
from secateurs.ship.compaction.verify import run
from secateurs.ship.fast import accelerate
from secateurs.ship.macs import multiplies
from secateurs.ship.measuring.measure import processor
from secateurs.ship.timing.layers import layer_seconds, seconds
from secateurs.ship.timing.table import KINDS, LatencyTable, LayerTimes

DENSITIES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)


@torch.no_grad()
def latency_table(
    model: nn.Module,
    example: Example,
    *,
    kind: str = "entries",
    densities: Sequence[float] = DENSITIES,
    generator: torch.Generator | None = None,
    progress: Callable[[str], None] | None = None,
) -> LatencyTable:
    """Seconds of every layer of a network at a few densities, measured here and now.

    Layers of one form (operator, sizes, input) are measured once. What passes between layers is
    not seen: the sum is an estimate of the pruned network's time, no bound. `secateurs.measure`
    tells the truth afterwards.

    Args:
        model: in evaluation mode; it is left as it is.
        example: the input whose time counts; batch and resolution matter.
        kind: "entries": random masks through `accelerate`, for unstructured pruning;
            "channels": narrower layers in torch, for whole channels. A density is the share of a
            layer's weights in both.
        densities: falling from 1.
        generator: where random masks are drawn.
        progress: called with one line for each form of layer.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).eval()
    >>> table = latency_table(model, torch.zeros(1, 64), kind="channels", densities=(1, 0.25))
    >>> [layer.name for layer in table.layers], table.dense > 0
    (['0.weight', '2.weight'], True)
    """
    falling = _checked(kind, densities)
    source = generator or torch.Generator().manual_seed(0)
    say = progress or (lambda text: None)
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
                layer_seconds(node, owner, x, kind, density, source)
                for density in falling
            )
        name = node.weight.direct or next(iter(node.weight.names))
        layers.append(LayerTimes(name=name, seconds=timed[form]))
    # The whole network in the same form as its layers.
    whole = accelerate(model, example) if kind == "entries" else model
    with untouched(model):
        taken = seconds(lambda: run(whole, example))
    rest = taken - sum(t.seconds[0] for t in layers)
    return LatencyTable(
        kind=kind,
        densities=falling,
        layers=tuple(layers),
        # A layer alone pays for its own call: the sum can exceed the whole.
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


def _checked(kind: str, densities: Sequence[float]) -> tuple[float, ...]:
    if kind not in KINDS:
        raise ArgumentError(f"kind={kind!r} is none of {', '.join(KINDS)}.")
    falling = tuple(float(density) for density in densities)
    pairs = itertools.pairwise(falling)
    if falling[:1] != (1.0,) or falling[-1] <= 0 or any(a <= b for a, b in pairs):
        raise ArgumentError(
            f"densities={tuple(densities)!r} do not fall from 1 to above 0."
        )
    return falling
