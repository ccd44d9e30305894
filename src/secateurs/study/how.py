"""How a study is run, and who watches: nothing of it decides a result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from secateurs.study.keeping.row import Row
from secateurs.study.settings.checks import choice, number, whole
from secateurs.study.settings.options import misfits, option, refuse

ENGINES = ("here", "local", "ray", "ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a study is run: nothing of it decides a result.

    Attributes:
        engine: "here" (in this process), "local" (worker processes), "ray" (a cluster) or "ranks"
            (all processes of `torchrun` train each network together).
        workers: Worker processes; with ray, runs at a time (0: as many as the cluster has
            processors).
        threads: Threads of each worker.
        device: Where networks are trained; "" chooses by itself.
        save_every: Seconds between two checkpoints of a run.
        lease: Seconds without a sign of life after which a worker's run is given to another.
        deaths: Workers a run may kill without getting further, before it is marked failed.
        address: Of a Ray cluster.
    """

    engine: str = option("local", choice("engine", *ENGINES))
    workers: int = option(1, whole(0))
    threads: int = option(1, whole(1))
    device: str = option("")
    save_every: float = option(30.0, number())
    lease: float = option(60.0, number(0.0, above=True))
    # Some deaths are chance; a run that kills worker
    # after worker must not go on for ever.
    deaths: int = option(3, whole(1))
    address: str = option("")

    def __post_init__(self) -> None:
        refuse("how to run a study", misfits(self))


class Watcher(Protocol):
    """Whoever shows how a study goes."""

    def begin(self, rows: list[Row]) -> None:
        """The study as it stands."""

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """Something happened in a run: event="begun", "epoch", "progress", "damaged", "refused",
        "died".
        """

    def ended(self, row: Row) -> None:
        """A run came to its end."""
