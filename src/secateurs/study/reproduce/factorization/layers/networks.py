"""Rows of layers, read back as networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secateurs.study.reproduce.experiment import Row
from secateurs.study.reproduce.factorization.recipes import method_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network at one epoch, and the rows of its layers in order."""

    layers: Sequence[Row]

    @property
    def first(self) -> Row:
        """The settings and the figures of the whole network stand in every row."""
        return self.layers[0]

    @property
    def method(self) -> str:
        """As the paper's tables name it."""
        return method_of(self.first)

    @property
    def place(self) -> str:
        """Network and data."""
        return f"{self.first['model']}, {self.first['data']}"

    @property
    def amount(self) -> str:
        """λ, or the compression that was asked for."""
        if self.first["method"] == "dwf":
            return f"λ {self.first['strength']}"
        return f"{float(self.first['prune_to']):g}×"

    def figure(self, name: str) -> float:
        """A figure of the whole network."""
        return float(self.first[name])

    def share(self, layer: int) -> float:
        """What is left of a layer."""
        row = self.layers[layer]
        return float(row["kept"]) / float(row["total"])

    def part(self, counted: str) -> float:
        """Of all parameters of the network, those that the layers count under this name."""
        total = sum(float(row["total"]) for row in self.layers)
        return sum(float(row[counted]) for row in self.layers) / total

    @property
    def empty(self) -> list[str]:
        """The layers that have collapsed."""
        return [row["layer"] for row in self.layers if row["collapsed"] == "True"]

    @property
    def gone(self) -> bool:
        """Whether no layer has a weight left: the training died, and no layer is to blame."""
        return len(self.empty) == len(self.layers)


def networks(rows: Sequence[Row]) -> list[Network]:
    """The networks of figures 10 and 13; a training that diverged has nothing to compare."""
    return [x for x in _grouped(rows) if not _watched(x)]


def watched(rows: Sequence[Row]) -> Mapping[str, list[Network]]:
    """The trainings of figure 5a by the name of their job, epoch by epoch."""
    found: dict[str, list[Network]] = {}
    for network in _grouped(rows):
        if _watched(network):
            found.setdefault(network.first["job"], []).append(network)
    return found


def _grouped(rows: Sequence[Row]) -> list[Network]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["kept"] != "nan":
            groups.setdefault((row["job"], row["epoch"]), []).append(row)
    return [Network(layers=group) for group in groups.values()]


def _watched(network: Network) -> bool:
    return network.first["method"] == "dwf" and network.figure("strength") == 0
