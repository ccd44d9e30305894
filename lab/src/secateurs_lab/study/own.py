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
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs_lab.data import Dataset

GROUPS = {kind: f"secateurs.{kind}" for kind in ("models", "data", "metrics")}


def models() -> list[str]:
    """Names of networks."""
    from secateurs_lab.models import MODELS

    return [*MODELS.names(), *_entry_points("models")]


def data() -> list[str]:
    """Names of data sets."""
    from secateurs_lab.data import DATA

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


def call(make: Callable[..., Any], generator: torch.Generator) -> Any:
    """Call the user's function, with the generator if it has a parameter of that name. Torch's own
    generator is seeded from it in any case, and restored afterwards.
    """
    try:
        named = inspect.signature(make).parameters
    except (TypeError, ValueError):
        named = {}  # type: ignore[assignment]
    needed = [
        name
        for name, each in named.items()
        if name != "generator"
        and each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed:
        called = getattr(make, "__qualname__", type(make).__name__)
        raise ArgumentError(
            f"{called} needs {', '.join(needed)}, but is called with nothing, or with a parameter"
            f" named `generator`. Give functools.partial({called}, {needed[0]}=...)."
        )
    given = {"generator": generator} if "generator" in named else {}
    with torch.random.fork_rng():
        torch.manual_seed(generator.initial_seed())
        return make(**given)


@lru_cache(maxsize=8)
def data_hash(data: Dataset) -> str:
    """A hash of every image and label and of their shapes, computed once per data set, since
    nothing changes one.
    """
    digest = hashlib.sha256()
    for tensor in (data.train_x, data.train_y, data.test_x, data.test_y):
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
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
