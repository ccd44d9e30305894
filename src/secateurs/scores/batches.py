"""Data for scores: one batch, a list of batches or a loader; inputs as a tensor, a tuple or a dict;
any output.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, ScoreError
from secateurs.scores.nested import map_tensors, tensors

Inputs: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""What a model is called with: one positional tensor, a tuple of positional or a dict of keyword
arguments.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Inputs and, where given, targets of some examples."""

    inputs: Inputs
    targets: Any = None

    @property
    def size(self) -> int:
        """How many examples: the length of the first input tensor."""
        return next(
            (len(tensor) for tensor in tensors(self.inputs) if tensor.ndim), 1
        )

    def first(self) -> Inputs:
        """The inputs of the first example, as a batch of one."""
        size = self.size
        # Only what has the batch in front is cut: a scalar or a shared table stays
        # whole.
        inputs: Inputs = map_tensors(
            self.inputs, lambda t: t[:1] if t.ndim and len(t) == size else t
        )
        return inputs


def batches(data: Any, *, device: torch.device | None = None) -> Iterator[Batch]:
    """The data as batches. A tuple `(x, y)`, a tensor or a dict is one batch; anything else
    iterates over batches.

    Inside a list or loader a batch may also be a list `[x, y]`, as `DataLoader` makes it. In a dict
    of keyword arguments without targets of its own, "labels" are the targets.
    """
    single = isinstance(data, (tuple, Tensor, Mapping))
    if not single and not isinstance(data, Iterable):
        raise ArgumentError(
            f"batch={data!r} is a {type(data).__name__}: give (x, y), a list of such batches or a"
            " loader."
        )
    for item in (data,) if single else data:
        yield moved(_batch(item), device)


def moved(batch: Batch, device: torch.device | None) -> Batch:
    """The batch with its tensors on the device."""
    return Batch(inputs=_to(batch.inputs, device), targets=_to(batch.targets, device))


def logits(output: Any) -> Tensor:
    """The tensor a loss is taken of: the output itself, its `logits`, or else its first
    floating-point tensor.
    """
    if isinstance(output, Tensor):
        return output
    named = (
        output.get("logits")
        if isinstance(output, Mapping)
        else getattr(output, "logits", None)
    )
    if isinstance(named, Tensor):
        return named
    return floating(output)[0]


def floating(output: Any) -> list[Tensor]:
    """Every floating-point tensor of an output, in order; at least one."""
    found = [tensor for tensor in tensors(output) if tensor.is_floating_point()]
    if not found:
        raise ScoreError(
            f"the model's output, a {type(output).__name__}, holds no floating-point tensor to"
            " score by."
        )
    return found


def _batch(item: Any) -> Batch:
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping):
        return Batch(
            # With labels among the inputs a model of Hugging Face would compute a loss
            # nobody reads.
            inputs={k: v for k, v in item.items() if k != "labels"},
            targets=item.get("labels"),
        )
    if isinstance(item, (tuple, list)) and len(item) == 2:
        # DataLoader turns tuples of inputs into lists; a tuple means positional
        # arguments here.
        inputs = tuple(item[0]) if isinstance(item[0], list) else item[0]
        return Batch(inputs=inputs, targets=item[1])
    if isinstance(item, Tensor):
        return Batch(inputs=item)
    raise ArgumentError(
        f"a batch is a {type(item).__name__}{_length(item)}; give (inputs, targets), a tensor or a"
        " dict of inputs, or a list or loader of these."
    )


def _length(item: Any) -> str:
    return f" of length {len(item)}" if isinstance(item, (tuple, list)) else ""


def _to(value: Any, device: torch.device | None) -> Any:
    # An inference tensor cannot take part in a backward pass, a copy of it can.
    return map_tensors(
        value, lambda t: (t.clone() if t.is_inference() else t).to(device)
    )
