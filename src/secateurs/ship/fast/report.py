"""What `accelerate` says about a network: how each layer runs, what stays in torch, what was
gained.
"""

from dataclasses import dataclass

from rich.table import Table

from secateurs.printing import Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """How one layer runs."""

    place: str
    density: float
    macs: int  # multiplications with non-zero weights, for one image
    ways: tuple[str, ...]  # for each group size


@dataclass(frozen=True, slots=True, kw_only=True)
class FastReport(Printed):
    """How the layers of a fast module run, and what it gained.

    Attributes:
        seconds: Per batch size the median of interleaved calls of the "model", of the "compact" one
            where channels were dead, and of the "fast" one, with `threads` threads; empty untimed.
        outside: The operators that stay in torch, where, and why.
    """

    layers: tuple[Layer, ...]
    groups: tuple[int, ...]
    outside: tuple[str, ...]
    seconds: dict[int, dict[str, float]]
    threads: int
    built_in: float

    @property
    def macs(self) -> int:
        """Multiplications with non-zero weights for one image."""
        return sum(layer.macs for layer in self.layers)

    def __rich__(self) -> Table:
        gains = ", ".join(
            f"batch {n}: {took['model'] / took['fast']:.2f}×"
            for n, took in self.seconds.items()
        )
        table = Table(
            title=f"fast path, {self.macs / 1e6:.1f} MMAC an image; {gains or 'not timed'}"
        )
        for name in (
            "layer",
            "density",
            "MMAC",
            *(f"group of {g}" for g in self.groups),
        ):
            table.add_column(name)
        for layer in self.layers:
            table.add_row(
                layer.place,
                f"{layer.density:.3f}",
                f"{layer.macs / 1e6:.2f}",
                *layer.ways,
            )
        for line in self.outside:
            table.add_row(line, "", "", *["in torch"] * len(self.groups))
        return table
