"""A weight seen as (outputs, inputs, *rest), and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from secateurs.parameters import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A weight seen as (outputs, inputs, *rest): `view` splits it, `outs` and `ins` are positions
    in the view.
    """

    view: tuple[int, ...]
    outs: tuple[int, ...]
    ins: tuple[int, ...]

    @property
    def _turn(self) -> tuple[int, ...]:
        first = (*self.outs, *self.ins)
        return (*first, *(d for d in range(len(self.view)) if d not in first))

    def lay(self, tensor: Tensor) -> Tensor:
        """The tensor as (outputs, inputs, *rest)."""
        turned = tensor.reshape(self.view).permute(self._turn)
        sizes = [self._size(self.outs), self._size(self.ins)]
        return turned.reshape(*sizes, *turned.shape[len(self.outs) + len(self.ins) :])

    def restore(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """The inverse of `lay`."""
        # The sizes in turned order: groups of outputs that `lay` has joined are taken
        # apart again.
        turned = tensor.reshape([self.view[d] for d in self._turn])
        back = [self._turn.index(d) for d in range(len(self.view))]
        return turned.permute(back).reshape(tuple(shape)).contiguous()

    def _size(self, dims: Sequence[int]) -> int:
        size = 1
        for d in dims:
            size *= self.view[d]
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The orders of the weights that are not kept as (outputs, inputs, *rest)."""

    orders: Mapping[str, Order]
    shapes: Mapping[str, tuple[int, ...]]

    def lay(self, tensors: Params) -> dict[str, Tensor]:
        """Every tensor as (outputs, inputs, *rest)."""
        return {
            n: self.orders[n].lay(t) if n in self.orders else t
            for n, t in tensors.items()
        }

    def restore(self, tensors: Params) -> dict[str, Tensor]:
        """Every tensor in the shape of its parameter."""
        return {
            n: self.orders[n].restore(t, self.shapes[n]) if n in self.orders else t
            for n, t in tensors.items()
        }
