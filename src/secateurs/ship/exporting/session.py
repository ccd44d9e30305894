"""A model that runs in onnxruntime and is called like any module: a rival for `accelerate`."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateurs.errors import ArgumentError, ShipError
from secateurs.graph import Example
from secateurs.ship.exporting.export import export
from secateurs.ship.exporting.onnx import session_of
from secateurs.ship.fast.trace import arguments
from secateurs.ship.fixed import Fixed

Progress = Callable[[str], None]


class OnnxModule(Fixed):
    """A model run by onnxruntime; see `in_onnxruntime`. `plain` is the model it was made from.

    It holds the weights of its making, and is for inference.
    """

    what = "a model in onnxruntime"

    def __init__(self, plain: nn.Module, session: Any, structure: Any) -> None:
        super().__init__()
        self.plain, self._session, self._structure = plain, session, structure
        self._names = [given.name for given in session.get_inputs()]
        super().train(False)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """The model's outputs, equal to rounding."""
        tensors = [*args, *kwargs.values()]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise ShipError(
                "onnxruntime has no gradients: call it under torch.inference_mode()."
            )
        given = [t.detach().cpu().resolve_neg().numpy() for t in tensors]
        try:
            found = self._session.run(
                None, dict(zip(self._names, given, strict=True))
            )
        except Exception as error:
            # onnxruntime has errors of its own kinds; the first line names the input.
            text = str(error).strip().partition("\n")[0][:300]
            raise ArgumentError(f"onnxruntime refuses this call: {text}") from error
        return pytree.tree_unflatten(map(torch.from_numpy, found), self._structure)


def in_onnxruntime(
    model: nn.Module,
    example: Example,
    *,
    tolerance: float = 1e-5,
    progress: Progress | None = None,
) -> OnnxModule:
    """The model as onnxruntime runs it on the processor, checked like every export.

    Give it to `accelerate` as a rival: on dense networks of 1×1 and depthwise convolutions
    onnxruntime can be the fastest of all. Compact the model first: no runtime skips zeros.

    Args:
        model: in evaluation mode; its outputs are tensors.
        example: what the model is called with.
        tolerance: the largest difference accepted, relative to the largest output.
        progress: called with one line for each step.

    Raises:
        MissingExtra: onnx, onnxscript or onnxruntime is not installed; the message says how.
        ShipError: the model cannot be exported, or takes one batch size alone.

    >>> lenet = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    >>> rival = in_onnxruntime(lenet, torch.zeros(1, 3))
    >>> with torch.inference_mode():
    ...     rival(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """
    structure = _structure(model, example)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        done = export(model, path, example, tolerance=tolerance, progress=progress)
        if not done.any_batch:
            raise ShipError(
                f"{type(model).__name__} is exported for one batch size: {done.why_fixed}"
            )
        return OnnxModule(model, session_of(path), structure)


@torch.no_grad()
def _structure(model: nn.Module, example: Example) -> Any:
    """How the outputs of a call hang together; all of them have to be tensors."""
    args, kwargs = arguments(example)
    leaves, structure = pytree.tree_flatten(model(*args, **kwargs))
    others = {type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)}
    if others:
        raise ShipError(
            f"{type(model).__name__} gives {', '.join(sorted(others))} beside tensors, "
            "which onnxruntime does not."
        )
    return structure
