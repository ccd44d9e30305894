"""What runs of one worker share: data sets read once, threads, the device, and who we are."""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn

from secateurs import data as sets
from secateurs.data import Dataset
from secateurs.errors import ArgumentError
from secateurs.models import MODELS, build
from secateurs.random import generator
from secateurs.study.settings import identity, own
from secateurs.study.settings.parts import Data, Net
from secateurs.train import Ranks
from secateurs.train.evaluate import fastest_device
from secateurs.version import __version__


@dataclass(slots=True, kw_only=True)
class Bench:
    """A worker's tools.

    Attributes:
        device: Where networks are trained; "" chooses the accelerator of this machine, or the CPU.
        save_every: Seconds between two checkpoints.
        metrics: Own measurements by name.
        ranks: Our place in a distributed training.
    """

    device: str = ""
    save_every: float = 30.0
    metrics: Mapping[str, Callable[..., float]] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)
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
            self._sets[key] = found.to(self.place), identity.data_hash(found)
        return self._sets[key]

    def network(self, net: Net, data: Dataset, seed: int) -> nn.Module:
        """A fresh network for this data, from the numbers of the seed."""
        return network(net, data, seed).to(self.place)

    def provenance(self) -> dict[str, Any]:
        """Versions and machine."""
        return {
            "versions": versions(),
            "threads": torch.get_num_threads(),
            "machine": machine(),
            "device": str(self.place),
            "host": platform.node(),
            "processes": self.ranks.world,
        }


def network(net: Net, data: Dataset, seed: int) -> nn.Module:
    """A fresh network for this data, from the numbers of the seed, on the CPU."""
    # Drawn on the CPU, so that a seed gives the same start on every device.
    source = generator(seed, "init")
    make = (
        net.make
        if net.make is not None or net.name in MODELS
        else own.load("models", net.name)
    )
    if make is None:
        shape: dict[str, Any] = {
            "in_channels": data.in_channels,
            "classes": data.classes,
            "size": data.size,
        }
        return build(
            net.name, **shape, init=net.init, generator=source, **dict(net.options)
        )
    made = identity.call(make, source)
    if not isinstance(made, nn.Module):
        raise ArgumentError(
            f"model {net.name!r} made a {type(made).__name__}, not a torch.nn.Module."
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
            else identity.call(make, torch.Generator().manual_seed(0))
        )
    if not isinstance(found, Dataset):
        raise ArgumentError(
            f"data {source.name!r} made a {type(found).__name__}, not a secateurs.data.Dataset."
        )
    if source.train is None and source.test is None:
        return found
    return found.first(
        source.train or len(found.train_y), source.test or len(found.test_y)
    )


def versions() -> dict[str, str]:
    """Of everything that may move a last digit."""
    return {
        "secateurs": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


@cache
def machine() -> str:
    """The processor, and how many there are."""
    name = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(
                (
                    line.partition(":")[2].strip()
                    for line in file
                    if line.startswith("model name")
                ),
                name,
            )
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"
