"""The measurements of a finished network: figures, layers, certificates."""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.progress import silent
from secateurs.base.prunable import prunable
from secateurs.base.random import generator
from secateurs.errors import ArgumentError, SecateursError
from secateurs.paths import lost_layers
from secateurs.proof import certify, statistical
from secateurs.version import __version__
from secateurs_lab import data as sets
from secateurs_lab.data import Dataset
from secateurs_lab.models import MODELS, build
from secateurs_lab.study import own
from secateurs_lab.study.database import HISTOGRAM_EDGES, Certified, LayerKept
from secateurs_lab.study.settings import Certify, Data, Net
from secateurs_lab.train.evaluate import fastest_device

ZERO = 1.1920929e-07
"""|w| below it counts as zero while a network trains (the epsilon of float32, as in the
factorization paper).
"""


@torch.no_grad()
def share_of_zeros(model: nn.Module) -> float:
    """The share of prunable weights below `ZERO`."""
    weights = list(prunable(model).values())
    small = torch.stack([(weight.abs() < ZERO).sum() for weight in weights])
    return float(small.sum()) / sum(weight.numel() for weight in weights)


def figures(
    model: nn.Module,
    data: Dataset,
    test: tuple[float, float],
    *,
    own: Mapping[str, Any],
) -> dict[str, float]:
    """Accuracy and loss as tested, and remaining weights; own metrics as "own.NAME"."""
    return {
        "accuracy": test[0],
        "loss": test[1],
        **remaining(model),
        **{f"own.{name}": _own(name, metric, model, data) for name, metric in own.items()},
    }


def remaining(model: nn.Module) -> dict[str, float]:
    """How much is left of the prunable weights, and of all parameters."""
    weights = list(prunable(model).values())
    kept = sum(int(w.count_nonzero()) for w in weights)
    total = sum(w.numel() for w in weights)
    every = list(model.parameters())
    return {
        "kept": kept,
        "total": total,
        "sparsity": 1 - kept / total,
        # A network of zeros needs a finite number, since JSON has no infinity.
        "compression": total / max(1, kept),
        "kept_all": sum(int(p.count_nonzero()) for p in every),
        "total_all": sum(p.numel() for p in every),
    }


def _own(name: str, metric: Any, model: nn.Module, data: Dataset) -> float:
    """A user's metric; any error in it is reported with the metric's name."""
    try:
        return float(metric(model, data))
    except Exception as error:
        raise ArgumentError(
            f"the metric {name!r} failed: {type(error).__name__}: {error}"
        ) from error


@torch.no_grad()
def layers(model: nn.Module, example: Tensor) -> tuple[LayerKept, ...]:
    """What is left of each prunable parameter."""
    verdicts = lost_layers(model, example)
    return tuple(
        _layer(name, weight, verdicts.get(name, "")) for name, weight in prunable(model).items()
    )


def _layer(name: str, weight: Tensor, verdict: str) -> LayerKept:
    left = weight[weight != 0].detach().float().cpu()
    low, high = HISTOGRAM_EDGES[0], HISTOGRAM_EDGES[-1]
    # Clamped, because histc leaves out values beyond its ends.
    logs = left.abs().log10().clamp(low, high)
    counts = torch.histc(logs, len(HISTOGRAM_EDGES) - 1, low, high)
    return LayerKept(
        name=name,
        shape=tuple(weight.shape),
        total=weight.numel(),
        kept=len(left),
        norm=float(left.double().norm()),
        histogram=tuple(int(count) for count in counts),
        verdict=verdict,
    )


@torch.no_grad()
def constant(model: nn.Module, data: Dataset) -> bool:
    """Whether the network gives the same answer to 256 test images, bit for bit."""
    outputs = model.eval()(data.test_x[:256])
    # A single image always has a single answer.
    return len(outputs) > 1 and bool((outputs == outputs[:1]).all())


def certificates(
    dense: nn.Module, sparse: nn.Module, data: Dataset, how: Certify
) -> tuple[tuple[Certified, ...], list[str]]:
    """What is proven and what holds statistically; if a certificate is impossible, the reason."""
    found, notes = [], []
    for prove in (_proven, _statistical):
        try:
            found.append(prove(dense.eval(), sparse.eval(), data, how))
        except SecateursError as error:
            notes.append(f"no {prove.__name__.strip('_')} certificate: {error}")
    return tuple(found), notes


def _proven(dense: nn.Module, sparse: nn.Module, data: Dataset, how: Certify) -> Certified:
    some = data.test_x[: how.images]
    result = certify(
        # Linear relaxations and one search are quick enough for every run of a study.
        dense,
        sparse,
        around=some,
        radius=how.radius,
        methods="linear",
        restarts=1,
        progress=silent,  # a study shows its runs
    )
    return Certified(
        kind="proven",
        domain=result.domain,
        bound=result.bound,
        lower_bound=result.lower_bound,
        certified_share=result.certified_share(some),
        method=result.method,
        text=str(result),
    )


def _statistical(dense: nn.Module, sparse: nn.Module, data: Dataset, how: Certify) -> Certified:
    result = statistical(dense, sparse, data=data.test_x[:2000])
    return Certified(
        kind="statistical",
        domain=f"{result.samples} inputs given",
        # On finitely many inputs the largest deviation is both an upper and a lower bound.
        bound=result.largest,
        lower_bound=result.largest,
        method="statistical",
        text=str(result),
    )


# What the runs of one worker share: data sets read once, threads, the device, and provenance.


@dataclass(slots=True, kw_only=True)
class Bench:
    """A worker's tools.

    Attributes:
        device: Where networks are trained; "" chooses the accelerator of this machine, or the CPU.
        save_every: Seconds between two checkpoints.
        metrics: Own measurements by name.
    """

    device: str = ""
    save_every: float = 30.0
    metrics: Mapping[str, Callable[..., float]] = field(default_factory=dict)
    _sets: dict[str, tuple[Dataset, str]] = field(default_factory=dict)

    @property
    def place(self) -> torch.device:
        """The device."""
        return torch.device(self.device or fastest_device())

    def data(self, source: Data) -> tuple[Dataset, str]:
        """The data set on our device and the hash of its bytes, read once."""
        key = repr(source)
        if key not in self._sets:
            found = _read(source)
            self._sets[key] = found.to(self.place), own.data_hash(found)
        return self._sets[key]

    def network(self, net: Net, data: Dataset, seed: int) -> nn.Module:
        """A fresh network for this data, drawn from the seed."""
        return network(net, data, seed).to(self.place)

    def provenance(self) -> dict[str, Any]:
        """Versions and machine."""
        return {
            "versions": versions(),
            "threads": torch.get_num_threads(),
            "machine": machine(),
            "device": str(self.place),
            "host": platform.node(),
        }


def network(net: Net, data: Dataset, seed: int) -> nn.Module:
    """A fresh network for this data, drawn from the seed, on the CPU."""
    # Drawn on the CPU, so that a seed gives the same start on every device.
    source = generator(seed, "init")
    make = net.make if net.make is not None or net.name in MODELS else own.load("models", net.name)
    if make is None:
        shape: dict[str, Any] = {
            "in_channels": data.in_channels,
            "classes": data.classes,
            "size": data.size,
        }
        return build(net.name, **shape, init=net.init, generator=source, **dict(net.options))
    made = own.call(make, source)
    if not isinstance(made, nn.Module):
        raise ArgumentError(
            f"model {net.name!r} returned a {type(made).__name__}, not a torch.nn.Module."
        )
    return made


def _read(source: Data) -> Dataset:
    make = source.make
    if make is None and source.name not in sets.DATA:
        make = own.load("data", source.name)
    if make is None:
        found = sets.load(source.name, root=source.root)
    else:
        found = (
            make
            if isinstance(make, Dataset)
            # Not from the study's seeds: all of its runs share one data set.
            else own.call(make, torch.Generator().manual_seed(0))
        )
    if not isinstance(found, Dataset):
        raise ArgumentError(
            f"data {source.name!r} returned a {type(found).__name__}, not a"
            " secateurs_lab.data.Dataset."
        )
    if source.train is not None or source.test is not None:
        found = found.first(source.train or len(found.train_y), source.test or len(found.test_y))
    return found if source.held_out is None else _held_out(found, source.held_out)


def _held_out(found: Dataset, count: int) -> Dataset:
    """Data that trains on the first training images and tests on the last, without test images."""
    left = len(found.train_y) - count
    if left < 1:
        raise ArgumentError(
            f"{found.name} has {len(found.train_y)} training images: holding out {count} leaves"
            " none to train on."
        )
    return replace(
        found,
        train_x=found.train_x[:left],
        train_y=found.train_y[:left],
        test_x=found.train_x[left:],
        test_y=found.train_y[left:],
    )


def versions() -> dict[str, str]:
    """Versions of everything that may change a last digit."""
    return {
        "secateurs": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


@cache
def machine() -> str:
    """The processor and the number of cores."""
    name = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(
                (line.partition(":")[2].strip() for line in file if line.startswith("model name")),
                name,
            )
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"
