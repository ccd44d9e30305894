"""ONNX: files written by torch.onnx and run by onnxruntime before they are kept, and models that
onnxruntime runs."""

import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from secateurs.base.onnx_session import session_of
from secateurs.errors import ArgumentError, MissingExtra, ShipError, first_line
from secateurs.graph import Example
from secateurs.ship.fast.module import Fixed
from secateurs.ship.fast.trace import arguments
from secateurs.ship.programs import (
    Free,
    largest_difference,
    model_to_write,
    refuse_beyond,
    silently,
    trace_program,
)


def write_onnx(model: nn.Module, part: Path, example: Example) -> Free:
    """Write the file; returns the sizes of a call that it accepts."""
    _present()
    program = trace_program(model, example)
    made = _write(program.program)
    # A single file, since weights in a second one would stay behind in the temporary folder.
    made.save(part, external_data=False)
    return program.free


def _write(program: ExportedProgram) -> Any:
    try:
        with silently():
            made = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
    # The exporter and onnxscript raise internal errors of many kinds, especially if one of them is
    # years older than the other.
    except Exception as error:
        raise ShipError(
            f"torch.onnx of torch {torch.__version__} with onnxscript {version('onnxscript')}"
            f" cannot write this model: {_reason(error)}. Write what it names in other operators,"
            ' update both packages, or write "m.pt2".'
        ) from error
    if made is None:
        raise ShipError("torch.onnx wrote no program.")
    return made


def _reason(error: BaseException) -> str:
    """The exporter's own reason: the innermost of the errors it wraps."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error)}"


def onnx_runner(part: Path) -> Any:
    """Runs an ONNX file with onnxruntime."""
    session = session_of(part)
    names = [given.name for given in session.get_inputs()]

    def run(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Sequence[Tensor]:
        given = [value.detach().cpu().numpy() for value in (*args, *kwargs.values())]
        outputs = session.run(None, dict(zip(names, given, strict=True)))
        return [torch.from_numpy(output) for output in outputs]

    return run


def _present() -> None:
    """Require all three packages; the error has the line that installs them."""
    from importlib.util import find_spec

    for package in ("onnx", "onnxscript", "onnxruntime"):
        # find_spec imports nothing, so a missing package is reported before seconds of imports.
        if find_spec(package) is None:
            raise MissingExtra.of(package, extra="onnx")


# A model that runs in onnxruntime and is called like any module, as a rival for `accelerate`.


class OnnxModule(Fixed):
    """A model run by onnxruntime; see `in_onnxruntime`. `plain` is the model it was made from.

    It holds the weights it was made with, and is for inference only.
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
            raise ShipError("onnxruntime has no gradients: call it under torch.inference_mode().")
        given = [t.detach().cpu().resolve_neg().numpy() for t in tensors]
        try:
            found = self._session.run(None, dict(zip(self._names, given, strict=True)))
        except Exception as error:
            # onnxruntime has its own kinds of errors; the first line names the input.
            text = str(error).strip().partition("\n")[0][:300]
            raise ArgumentError(f"onnxruntime refuses this call: {text}") from error
        return pytree.tree_unflatten(map(torch.from_numpy, found), self._structure)


def in_onnxruntime(
    model: nn.Module,
    example: Example,
    *,
    tolerance: float = 1e-5,
) -> OnnxModule:
    """The model run by onnxruntime on the CPU, checked like every export.

    Give it to `accelerate` as a rival: on dense networks of 1×1 and depthwise convolutions
    onnxruntime can be the fastest of all. Compact the model first: no runtime skips zeros.

    Args:
        model: in evaluation mode; its outputs are tensors.
        example: what the model is called with.
        tolerance: the largest difference accepted, relative to the largest output.

    Raises:
        MissingExtra: onnx, onnxscript or onnxruntime is not installed; the message says how.
        ShipError: the model cannot be exported, or accepts only one batch size.

    >>> lenet = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    >>> rival = in_onnxruntime(lenet, torch.zeros(1, 3))
    >>> with torch.inference_mode():
    ...     rival(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """
    model = model_to_write(model)
    structure = _structure(model, example)
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "model.onnx"
        free = write_onnx(model, part, example)
        if free.why_fixed:
            raise ShipError(
                f"{type(model).__name__} is exported for one batch size: {free.why_fixed}"
            )
        difference = largest_difference(model, onnx_runner(part), example, free)
        refuse_beyond(difference, tolerance, ".onnx")
        return OnnxModule(model, session_of(part), structure)


@torch.no_grad()
def _structure(model: nn.Module, example: Example) -> Any:
    """The nesting of the outputs of a call; all of them have to be tensors."""
    args, kwargs = arguments(example)
    leaves, structure = pytree.tree_flatten(model(*args, **kwargs))
    others = {type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)}
    if others:
        raise ShipError(
            f"{type(model).__name__} gives {', '.join(sorted(others))} beside tensors, which "
            "onnxruntime cannot return."
        )
    return structure
