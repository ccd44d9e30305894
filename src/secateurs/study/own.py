"""Networks, data sets and metrics by name: ours, and those of installed packages (entry points).

A package registers its own under the groups "secateurs.models", "secateurs.data" and
"secateurs.metrics"::

    [project.entry-points."secateurs.models"]
    my-net = "my_package.nets:my_net"

A study file contains such a name, never a path to import.
"""

import hashlib
import inspect
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.data import Dataset
from secateurs.errors import ArgumentError

GROUPS = {kind: f"secateurs.{kind}" for kind in ("models", "data", "metrics")}


def models() -> list[str]:
    """Names of networks."""
    from secateurs.models import MODELS

    return [*MODELS.names(), *_entry_points("models")]


def data() -> list[str]:
    """Names of data sets."""
    from secateurs.data import DATA

    return [*DATA.names(), *_entry_points("data")]


def metrics() -> list[str]:
    """Names of metrics that installed packages offer."""
    return list(_entry_points("metrics"))


def load(kind: str, name: str) -> Any:
    """What an installed package offers under this name."""
    offered = _entry_points(kind)
    if name not in offered:
        raise ArgumentError(f"no installed package offers {name!r} under {GROUPS[kind]!r}.")
    return offered[name].load()


def _entry_points(kind: str) -> dict[str, EntryPoint]:
    # Listing names runs no code of other packages; only `load` does.
    return {point.name: point for point in entry_points(group=GROUPS[kind])}


# Identifies a user's own network or data, so that a changed one is not mistaken for the one that
# was run before.


def fingerprint(make: Any) -> str:
    """A hash of a network's shapes and source, or of a data set's bytes."""
    return data_hash(make) if isinstance(make, Dataset) else _fingerprint_of_function(make)


@lru_cache(maxsize=64)
def _fingerprint_of_function(make: Callable[..., Any]) -> str:
    """The source of the function and of the classes it uses; without a source, the shapes alone."""
    # Called once, because the source of a function says little about what it calls.
    made = call(make, torch.Generator().manual_seed(0))
    if isinstance(made, Dataset):
        return data_hash(made)
    digest = hashlib.sha256()
    if isinstance(made, nn.Module):
        # repr shows what shapes do not, such as strides and dropout.
        digest.update(repr(made).encode())
        for name, value in made.state_dict().items():
            digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(_source(type(made)).encode())
        for part in _own_parts(made):
            digest.update(_source(part).encode())
    digest.update(_source(make).encode())
    return digest.hexdigest()[:16]


def fingerprint_of_metric(measure: Callable[..., Any]) -> str:
    """A hash of the source of a metric; functions that it calls are not included."""
    return hashlib.sha256(_source(measure).encode()).hexdigest()[:16]


def call(make: Callable[..., Any], generator: torch.Generator) -> Any:
    """Call the user's function, with the generator if it takes one; otherwise torch's own generator
    is seeded from it.
    """
    try:
        takes = bool(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        takes = False
    if takes:
        return make(generator)
    # It draws from torch's own generator, which is restored afterwards.
    with torch.random.fork_rng():
        torch.manual_seed(generator.initial_seed())
        return make()


@lru_cache(maxsize=8)
def data_hash(data: Dataset) -> str:
    """A hash of every image and label, computed once per data set, since nothing changes one."""
    digest = hashlib.sha256()
    for tensor in (data.train_x, data.train_y, data.test_x, data.test_y):
        _add(digest, tensor)
    return digest.hexdigest()[:16]


def weights_hash(tensors: dict[str, Tensor]) -> str:
    """A hash of names, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        _add(digest, tensors[name])
    return digest.hexdigest()


def _add(digest: Any, tensor: Tensor) -> None:
    digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _own_parts(model: nn.Module) -> list[type]:
    """Classes of the modules inside, except torch's: nothing else shows what their forward does."""
    inside = dict.fromkeys(type(part) for part in model.modules())
    return [
        part
        for part in inside
        if part is not type(model) and not part.__module__.startswith("torch.")
    ]


def _source(what: Any) -> str:
    try:
        return inspect.getsource(what)
    except (OSError, TypeError):
        return ""
