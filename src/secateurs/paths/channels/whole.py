"""A model with all its outputs as one: what rewrites a model must keep every one of them.

A graph ends in one output. A channel that this output does not use may be read by another, and a
weight may be read outside of the graph. So the functions that rewrite look at the graph of all
outputs together: what is dead there is dead for each of them, what is read anywhere is seen.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import CaptureError, UnsupportedOperation
from secateurs.graph import Example, Graph, capture
from secateurs.graph.checking.programs import COMPARED
from secateurs.graph.example import Call, call_of, check_parameters
from secateurs.graph.ir import unwrapped
from secateurs.graph.reading.outputs import outputs_of
from secateurs.graph.untouched import untouched
from secateurs.graph.wrapper import Wrapper


class Whole(Wrapper):
    """All tensors a model returns, one behind the other in one row."""

    def __init__(self, model: nn.Module, alone: Mapping[str, Tensor]) -> None:
        super().__init__(model)
        # Of one sample: a weight that is returned has no dimension of the batch.
        self.batched = {name for name, t in alone.items() if t.shape[:1] == (1,)}

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """A row per sample; what is the same for all of them stands in every row."""
        found = outputs_of(self.inner(*args, **kwargs))
        rows = max((len(t) for n, t in found.items() if n in self.batched), default=1)
        return torch.cat([self._rows(n, t, rows) for n, t in found.items()], dim=1)

    def _rows(self, name: str, tensor: Tensor, rows: int) -> Tensor:
        if name in self.batched and len(tensor) == rows:
            return tensor.reshape(rows, -1)
        return tensor.reshape(1, -1).expand(rows, -1)


def whole(
    model: nn.Module, example: Example | Graph, name: str
) -> tuple[nn.Module, Graph]:
    """The model and the graph of all it returns; the names of the graph are those of the first.

    Refused where one of the outputs cannot be read, or where the forward pass writes into a buffer:
    then nobody knows what else reads the channels that are to be changed.
    """
    model = unwrapped(model)
    check_parameters(model)
    call = _call(model, example, name)
    found, written = _returned(model, call)
    if written:
        raise UnsupportedOperation(
            f"{name} must know all that reads a channel, but the forward pass of"
            f" {type(model).__name__} writes into {', '.join(written[:4])}. Call .eval(), or leave"
            " the writing out."
        )
    # One output: the graph given, or captured as usual, already says all.
    if len(found) == 1:
        graph = example if isinstance(example, Graph) else capture(model, example)
        return model, _unmixed(graph, name)
    together = Whole(model, found)
    COMPARED.share(together, model)
    named: Any = call.kwargs or list(call.args)
    try:
        if call.args and call.kwargs:
            raise CaptureError("it takes inputs by position and by keyword")
        graph = capture(together, named)
    except CaptureError as error:
        listed = ", ".join(repr(key) for key in list(found)[:6])
        raise UnsupportedOperation(
            f"{name} must keep all {len(found)} outputs of {type(model).__name__}"
            f" ({listed}), and not all can be read: {error}"
            " Wrap the model so that it returns the output you use, if nobody reads the others."
        ) from error
    return together, _unmixed(graph, name)


def _unmixed(graph: Graph, name: str) -> Graph:
    """What is equal for one sample need not be for a batch whose samples act on each other."""
    if graph.alone:
        raise UnsupportedOperation(
            f"{name} keeps the function of each input alone, and {graph.alone}. Leave the batch out"
            " of the forward pass."
        )
    return graph


def _call(model: nn.Module, example: Example | Graph, name: str) -> Call:
    if not isinstance(example, Graph):
        return call_of(example, model)
    like = next(model.parameters(), torch.zeros(()))
    return Call(tuple(torch.zeros(n.shape).to(like) for n in example.inputs))


@torch.no_grad()
def _returned(model: nn.Module, call: Call) -> tuple[dict[str, Tensor], list[str]]:
    """What one call returns, and the buffers it writes into; these are put back."""
    before = [b.clone() for b in model.buffers()]
    try:
        with untouched(model):
            found = outputs_of(model(*call.args, **call.kwargs))
            written = [
                key
                for (key, now), then in zip(
                    model.named_buffers(), before, strict=True
                )
                if not torch.equal(now, then)
            ]
            return found, written
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} does not run on inputs of shape {call.shapes}: {error} Give an"
            " example, as the model is called, in place of the graph."
        ) from error
