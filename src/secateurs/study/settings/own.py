"""Networks, data sets and metrics by name: ours, and those of installed packages (entry points).

A package offers its own under the groups "secateurs.models", "secateurs.data" and
"secateurs.metrics"::

    [project.entry-points."secateurs.models"]
    my-net = "my_package.nets:my_net"

A file of settings holds such a name, never a path to import.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from secateurs.errors import ArgumentError

GROUPS = {kind: f"secateurs.{kind}" for kind in ("models", "data", "metrics")}


def models() -> list[str]:
    """Names of networks."""
    from secateurs.models import MODELS

    return [*MODELS.names(), *_offered("models")]


def data() -> list[str]:
    """Names of data sets."""
    from secateurs.data import DATA

    return [*DATA.names(), *_offered("data")]


def metrics() -> list[str]:
    """Names of metrics that installed packages offer."""
    return list(_offered("metrics"))


def load(kind: str, name: str) -> Any:
    """What an installed package offers under this name."""
    offered = _offered(kind)
    if name not in offered:
        raise ArgumentError(
            f"no installed package offers {name!r} under {GROUPS[kind]!r}."
        )
    return offered[name].load()


def _offered(kind: str) -> dict[str, EntryPoint]:
    # Listing names runs no code of other packages; only `load` does.
    return {point.name: point for point in entry_points(group=GROUPS[kind])}
