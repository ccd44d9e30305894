"""ONNX files: written by torch.onnx, run by onnxruntime before they are kept."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from secateurs.base.onnx_session import session_of
from secateurs.errors import MissingExtra, ShipError, first_line
from secateurs.graph import Example
from secateurs.ship.programs import Free, silently, trace_program


def write_onnx(model: nn.Module, part: Path, example: Example) -> Free:
    """Write the file; returns the sizes of a call that it accepts."""
    _present()
    program = trace_program(model, example)
    made = _write(program.program)
    # A single file, since weights in a second one would stay behind in the temporary folder.
    made.save(part, external_data=False)
    return program.free


def write_sparse_onnx(model: nn.Module, part: Path, example: Example) -> Free:
    """The same, with sparse initializers for the weights that are smaller as such."""
    free = write_onnx(model, part, example)
    import onnx

    proto = onnx.load(part)
    make_sparse_(proto.graph)
    onnx.checker.check_model(proto)
    onnx.save(proto, part)
    return free


def make_sparse_(graph: Any) -> int:
    """Turn initializers of an ONNX graph into sparse ones where they take fewer bytes, bit for
    bit; returns how many.

    A value that is kept brings the 8 bytes of its place, so weights of four bytes become smaller
    from two thirds zeros on. −0 is not a zero here: it would come back as +0.
    """
    import onnx
    from onnx import numpy_helper

    # What an output or an input of the graph is called has to stay an ordinary tensor.
    named = {value.name for value in (*graph.input, *graph.output)}
    dense, sparse = [], []
    for tensor in graph.initializer:
        plain = tensor.data_type in _PLAIN and tensor.name not in named
        values = numpy_helper.to_array(tensor).reshape(-1) if plain else np.zeros(0, np.float32)
        places = np.flatnonzero(values.view(f"u{values.itemsize}"))
        # The name and the sizes of both parts take some bytes more than a dense tensor's.
        bytes_kept = len(places) * (values.itemsize + 8) + 64 + len(tensor.name)
        if bytes_kept >= values.nbytes:
            dense.append(tensor)
            continue
        kept = numpy_helper.from_array(values[places], tensor.name)
        index = numpy_helper.from_array(places.astype(np.int64))
        sparse.append(onnx.helper.make_sparse_tensor(kept, index, list(tensor.dims)))
    del graph.initializer[:]
    graph.initializer.extend(dense)
    graph.sparse_initializer.extend(sparse)
    return len(sparse)


_PLAIN = (1, 10, 11)
"""FLOAT, FLOAT16 and DOUBLE of onnx: what numpy holds without further packages."""


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
