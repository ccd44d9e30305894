"""Which channels of each layer are alive: the result of `liveness`."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLiveness:
    """One layer with weights.

    Attributes:
        name: Its weight.
        channels: How many it writes.
        constant: Channels that no input reaches: they emit a constant.
        unused: Channels from which no path leads to an output.
        mass: The share of ‖Φ‖₁ that flows through its weights.
        shared: Its weight acts elsewhere too (tied, or used twice), so that a channel dead here is
            not free to be removed.
    """

    name: str
    channels: int
    constant: tuple[int, ...]
    unused: tuple[int, ...]
    mass: float
    shared: bool = False

    @property
    def dead(self) -> tuple[int, ...]:
        """Channels that carry nothing from input to output."""
        return tuple(sorted({*self.constant, *self.unused}))

    @property
    def collapsed(self) -> bool:
        """No channel carries anything."""
        return len(self.dead) == self.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """The layers of a network, and whether any path still leads from an input to the output.

    Attributes:
        collapsed: ‖Φ^I‖₁ = 0, the output no longer depends on the input.
        lost: Layers without a live channel. They matter only if `collapsed`: elsewhere paths lead
            around them.
    """

    layers: tuple[LayerLiveness, ...]
    collapsed: bool

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of layers without a live channel."""
        return tuple(layer.name for layer in self.layers if layer.collapsed)

    @property
    def dead(self) -> int:
        """Dead channels in all layers."""
        return sum(len(layer.dead) for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "collapsed": self.collapsed,
            "lost": list(self.lost),
            "layers": [asdict(layer) for layer in self.layers],
        }
