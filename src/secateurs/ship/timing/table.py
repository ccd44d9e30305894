"""Seconds of every layer at a few densities, and what they say of a pruned network."""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rich.markup import escape
from rich.table import Table

from secateurs.errors import ArgumentError
from secateurs.printing import Printed
from secateurs.writing import replacing

KINDS = ("entries", "channels")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One use of one weight: seconds at each density of the table, from dense to sparse."""

    name: str
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTable(Printed):
    """Measured seconds of layers, from which the time of a pruned network is estimated.

    Attributes:
        kind: What a density leaves: "entries" that the compiled kernels run, or whole "channels".
        densities: From 1 downwards.
        rest: Seconds of everything that is no layer, which no pruning makes shorter.
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
        """The estimate at these densities by weight name: Σ of layers, and the rest.

        Between two measured densities the time is a straight line. A layer never counts as slower
        than at a higher density, so noise of the measurement cannot make a search turn back.

        >>> layer = LayerTimes(name="w", seconds=(1.0, 0.5))
        >>> table = LatencyTable(kind="entries", densities=(1.0, 0.5), layers=(layer,), rest=0.5,
        ...     threads=1, machine="")
        >>> table.dense, table.seconds({"w": 0.75})
        (1.5, 1.25)
        """
        return self.rest + sum(
            self._layer(layer, densities.get(layer.name, 1.0))
            for layer in self.layers
        )

    def _layer(self, layer: LayerTimes, density: float) -> float:
        # Falling with the density, whatever was measured: the least of all denser entries.
        falling = [min(layer.seconds[: i + 1]) for i in range(len(layer.seconds))]
        points = list(zip(self.densities, falling, strict=True))
        for (above, slow), (below, fast) in itertools.pairwise(points):
            if density >= below:
                share = (density - below) / (above - below)
                return fast + share * (slow - fast)
        # Below the last density nothing was measured: no further gain is promised.
        return falling[-1]

    def save(self, path: str | Path) -> None:
        """Write it as a JSON file."""
        text = json.dumps(asdict(self), indent=1, allow_nan=False)
        with replacing(Path(path), folders=False) as part:
            part.write_text(text)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        try:
            found = json.loads(Path(path).read_text())
            return cls._read(found)
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"{path} is no table of latencies: {error}."
            ) from error

    @classmethod
    def _read(cls, found: Mapping[str, Any]) -> Self:
        layers = tuple(
            LayerTimes(name=str(one["name"]), seconds=_numbers(one["seconds"]))
            for one in found["layers"]
        )
        densities = _numbers(found["densities"])
        falling = all(a > b for a, b in itertools.pairwise(densities))
        if not falling or densities[:1] != (1.0,) or densities[-1] <= 0:
            raise ValueError(f"the densities {densities} do not fall from 1")
        if any(len(layer.seconds) != len(densities) for layer in layers):
            raise ValueError("a layer has not one time for each density")
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
            table.add_row(
                escape(layer.name), *(f"{1e3 * s:.3f}" for s in layer.seconds)
            )
        table.add_row("everything else", f"{1e3 * self.rest:.3f}")
        return table


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ValueError(f"{numbers} are no times or densities")
    return numbers
