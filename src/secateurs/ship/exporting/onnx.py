"""ONNX files: written by torch.onnx, run by onnxruntime before they are kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import MissingExtra, ShipError
from secateurs.graph import Example
from secateurs.ship.exporting.programs import quietly, traced


def write_onnx(model: nn.Module, part: Path, example: Example) -> str:
    """Write the file; what made the batch fixed, or nothing."""
    _present()
    program = traced(model, example)
    with quietly():
        made = torch.onnx.export(
            program.program, dynamo=True, verbose=False, optimize=True
        )
    if made is None:
        raise ShipError("torch.onnx wrote no program.")
    # One file: weights in a second one would stay behind in the temporary folder.
    made.save(part, external_data=False)
    return program.why_fixed


def session_of(part: Path) -> Any:
    """An ONNX file in onnxruntime, on as many threads as torch has, which sleep when idle."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    # Spinning threads would take the processor from whatever else runs in this process.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(
            str(part), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]
        raise ShipError(
            f"onnxruntime cannot run the exported model: {text}"
        ) from error


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
    """All three packages, or the line that installs them."""
    from importlib.util import find_spec

    for package in ("onnx", "onnxscript", "onnxruntime"):
        # find_spec imports nothing: what is missing is said before seconds of imports.
        if find_spec(package) is None:
            raise MissingExtra.of(package, extra="onnx")
