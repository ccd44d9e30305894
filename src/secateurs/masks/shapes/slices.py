"""Slices of a weight that are kept or cut whole: kernels, filters, channels."""

from dataclasses import dataclass

from torch import Tensor

from secateurs.masks.shapes.grouped import Grouped


@dataclass(frozen=True, slots=True)
class Kernel(Grouped):
    """The spatial kernel of one pair of channels: entries `[o, i, ...]` of a convolution weight."""

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        return "" if len(shape) > 2 else "has no spatial kernel"

    def rows(self, tensor: Tensor) -> Tensor:
        """The entries as `(channel pairs, kernel entries)`."""
        return tensor.reshape(tensor.shape[0] * tensor.shape[1], -1)

    def spread(self, groups: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One value per channel pair, copied over its kernel."""
        return (
            groups.reshape(*shape[:2], *[1] * (len(shape) - 2))
            .expand(shape)
            .contiguous()
        )

    def __str__(self) -> str:
        return "kernel"


@dataclass(frozen=True, slots=True)
class Filter(Grouped):
    """Slices of dimension 0: everything that makes one output channel, or one neuron of a linear
    layer.
    """

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        return "" if shape else "is a single number"

    def rows(self, tensor: Tensor) -> Tensor:
        """The entries as `(outputs, entries per output)`."""
        return tensor.reshape(tensor.shape[0], -1)

    def spread(self, groups: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One value per output, copied over everything that feeds it."""
        return groups.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous()

    def __str__(self) -> str:
        return "filter"


@dataclass(frozen=True, slots=True)
class Channel(Grouped):
    """Slices of dimension 1: everything that reads one input channel."""

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Why the pattern does not fit this shape; empty when it does."""
        return "" if len(shape) > 1 else "has no input dimension"

    def rows(self, tensor: Tensor) -> Tensor:
        """The entries as `(inputs, entries per input)`."""
        return tensor.transpose(0, 1).reshape(tensor.shape[1], -1)

    def spread(self, groups: Tensor, shape: tuple[int, ...]) -> Tensor:
        """One value per input, copied over everything that reads it."""
        return (
            groups.reshape(1, -1, *[1] * (len(shape) - 2)).expand(shape).contiguous()
        )

    def __str__(self) -> str:
        return "channel"
