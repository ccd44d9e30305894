"""What a model is called with while it is read, and the checks of it and of the model's
parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor, nn

from secateurs.errors import CaptureError, ParameterError, UnsupportedOperation
from secateurs.misfits import not_real
from secateurs.parameters import check_model

Example: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""What the model is called with: a tensor, a sequence of positional tensors, or keyword tensors.
The first dimension of each is the batch; only the first sample's shape matters, never the values.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call of the model, each a batch of one."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All arguments in order."""
        return (*self.args, *self.kwargs.values())

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Their shapes."""
        return [tuple(t.shape) for t in self.tensors]

    def replaced(self, tensors: Sequence[Tensor]) -> "Call":
        """The same call with other tensors."""
        positional = len(self.args)
        named = dict(zip(self.kwargs, tensors[positional:], strict=True))
        return Call(tuple(tensors[:positional]), named)


def call_of(example: Example, model: nn.Module, *, integers: bool = False) -> Call:
    """One sample of the example, in the model's own dtype and on its device.

    integers: whether tensors of integers and flags are taken, too (token ids, attention masks).
    """
    check_model(model)
    check_example(example)
    # Device and dtype of the model: an example on the CPU serves a model on any device.
    like = next(model.parameters(), None)
    named = dict(example) if isinstance(example, Mapping) else {}
    args: tuple[Tensor, ...] = ()
    if not isinstance(example, Mapping):
        args = (example,) if isinstance(example, Tensor) else tuple(example)
    for tensor in (*args, *named.values()):
        _check_tensor(tensor, integers=integers)

    def first(t: Tensor) -> Tensor:
        # Slicing, not indexing, keeps the batch dimension. One sample: rules are
        # written for a batch of one, and `vmap` adds the rest.
        if like is None:
            return t[:1].detach()
        # Ids stay integers: in the model's dtype they would be no index.
        moved = like if t.is_floating_point() else like.device
        return t[:1].detach().to(moved)

    return Call(
        tuple(first(t) for t in args), {k: first(t) for k, t in named.items()}
    )


def check_parameters(model: nn.Module) -> None:
    """Refuse parameters that have no real floating-point values."""
    check_model(model)
    bad = [
        f"{name!r} {problem}"
        for name, parameter in model.named_parameters()
        if (problem := not_real(parameter))
    ]
    if bad:
        raise ParameterError(f"{'; '.join(bad[:6])}.")


def check_example(example: object) -> None:
    """A module here is most likely the model, given in the wrong place."""
    if isinstance(example, nn.Module):
        raise CaptureError(
            f"the example is a {type(example).__name__}: the model comes first, then an example of"
            " its input."
        )
    if not isinstance(example, Tensor | Mapping | tuple | list):
        raise CaptureError(
            f"the example is a {type(example).__name__}: give a tensor, a tuple of tensors or a"
            " dict of them, as the model is called."
        )


def _check_tensor(tensor: object, *, integers: bool) -> None:
    if not isinstance(tensor, Tensor):
        raise CaptureError(
            f"the example holds a {type(tensor).__name__}; give tensors only."
        )
    if tensor.ndim == 0 or tensor.shape[0] == 0:
        shape = tuple(tensor.shape)
        raise CaptureError(
            f"an example of shape {shape} has no sample; give a batch of at least one."
        )
    if not integers and not tensor.is_floating_point():
        raise UnsupportedOperation(
            f"the example is {tensor.dtype}; paths start at real-valued inputs. Analyse what"
            " follows it."
        )
