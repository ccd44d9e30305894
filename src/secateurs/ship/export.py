"""`export`: the suffix of the file selects the format (.onnx, .pt2, .c), and the written file is
run and compared before it is kept."""

import ctypes
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateurs.base.printing import Reported
from secateurs.base.progress import Progress, show_progress
from secateurs.base.registry import unknown
from secateurs.base.safefile import refusing
from secateurs.errors import ArgumentError, ShipError
from secateurs.graph import Example
from secateurs.graph.untouched import untouched
from secateurs.ship.c_source import c_source
from secateurs.ship.fast.trace import arguments
from secateurs.ship.onnx import onnx_runner, write_onnx
from secateurs.ship.programs import (
    Free,
    largest_difference,
    length_of,
    model_to_write,
    refuse_beyond,
    silently,
    trace_program,
)

# The result of an export, and how far it is from the model.


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported(Reported):
    """An exported file.

    Attributes:
        difference: The largest difference of an output, relative to the largest output of the
            model, on the example and on random inputs of other batch sizes.
        runtime: What ran the file for that.
        any_batch: Whether it accepts every batch size; `why_fixed` says why not.
        any_length: Whether it accepts token sequences of every length for which the model has
            positions, not only of the example's; None if no input holds tokens. `why_length` says
            why not.
    """

    path: str
    bytes: int
    difference: float
    tolerance: float
    runtime: str
    any_batch: bool
    why_fixed: str
    seconds: float
    any_length: bool | None = None
    why_length: str = ""

    def __rich__(self) -> Table:
        table = Table(title=self.path, show_header=False)
        table.add_row("bytes", f"{self.bytes:,}")
        table.add_row("differs from the model by", f"{self.difference:.1e} ({self.runtime})")
        table.add_row("batch", _free(self.any_batch, self.why_fixed))
        if self.any_length is not None:
            table.add_row("length", _free(self.any_length, self.why_length))
        table.add_row("written in", f"{self.seconds:.1f} s")
        return table


def _free(any_size: bool, why: str) -> str:
    # The reason is the tracer's: brackets in it are not markup.
    return "any" if any_size else escape(f"that of the example alone: {why}")


# ONNX files with sparse weights.


def write_sparse_onnx(model: nn.Module, part: Path, example: Example) -> Free:
    """As `write_onnx`, with sparse initializers for the weights that are smaller as such."""
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


# C files: written by `c_source`, compiled and called before they are kept.


def write_c(model: nn.Module, part: Path, example: Example) -> Free:
    """Write the source; `predict` takes one sample, which is why the batch is fixed."""
    args, kwargs = arguments(example)
    for value in (*args, *kwargs.values()):
        if len(value) != 1:
            raise ShipError(f"a C file takes one sample, not {len(value)}: give example[:1].")
    part.write_text(c_source(model, example), encoding="utf-8")
    with torch.no_grad(), untouched(model):
        shape = model(*args, **kwargs).shape
    # The C signature has no sizes, but the check needs those of the output.
    part.with_suffix(".shape").write_text(" ".join(map(str, shape)), encoding="utf-8")
    length = length_of(args, kwargs)
    why = "predict takes one sample"
    return Free(why_fixed=why, why_length=None if length is None else why)


def c_runner(part: Path) -> Any:
    """Compiles the file and calls `predict`."""
    library = part.with_suffix(".so")
    command = [
        _compiler(),
        "-O1",
        "-std=c99",
        "-shared",
        "-fPIC",
        str(part),
        "-o",
        str(library),
    ]
    done = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ShipError(f"the C file does not compile: {done.stderr.strip()[:300]}")
    predict = ctypes.CDLL(str(library)).predict
    shape = tuple(map(int, part.with_suffix(".shape").read_text(encoding="utf-8").split()))

    def run(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Sequence[Tensor]:
        (given,) = (*args, *kwargs.values())
        x, y = given.detach().contiguous(), torch.empty(shape, dtype=given.dtype)
        predict(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()))
        return [y]

    return run


def _compiler() -> str:
    found = next(
        (path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))),
        None,
    )
    if found is None:
        raise ShipError(
            "there is no C compiler to check the file with; write the result of c_source()"
            " yourself."
        )
    return found


# `.pt2` files: programs of torch.export, or compiled ahead of time by AOTInductor.


def write_pt2(model: nn.Module, part: Path, example: Example) -> Free:
    """Write the program; returns the sizes of a call that it accepts."""
    program = trace_program(model, example)
    # Into memory first: torch's own writer ends the process when the disk is full.
    content = io.BytesIO()
    try:
        with silently():
            torch.export.save(program.program, content)
    # torch.export.save raises internal errors of many kinds.
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]
        raise ShipError(
            f"torch.export of torch {torch.__version__} cannot save what it traced of"
            f" {type(model).__name__} ({type(error).__name__}: {text}). Write what is done under"
            " torch.func with plain operators."
        ) from error
    part.write_bytes(content.getbuffer())
    return program.free


def write_compiled(model: nn.Module, part: Path, example: Example) -> Free:
    """Write machine code for this CPU; needs a C++ compiler and up to a minute."""
    from torch._inductor import aoti_compile_and_package

    program = trace_program(model, example)
    try:
        with silently():
            aoti_compile_and_package(program.program, package_path=str(part))
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]
        raise ShipError(f"AOTInductor could not compile the model: {text}") from error
    return program.free


def pt2_runner(part: Path) -> Any:
    """Runs a program that torch.export saved."""
    with silently():
        return _runner(torch.export.load(part).module())


def compiled_runner(part: Path) -> Any:
    """Runs what AOTInductor compiled."""
    from torch._inductor import aoti_load_package

    return _runner(aoti_load_package(str(part)))


def _runner(module: Any) -> Any:
    def run(args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            outputs = pytree.tree_leaves(module(*args, **kwargs))
        return [leaf for leaf in outputs if isinstance(leaf, Tensor)]

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """How a format is written, and how it is run for the check."""

    write: Callable[[nn.Module, Path, Example], Free]
    runner: Callable[[Path], Any]
    runtime: str


FORMATS = {
    ".onnx": _Format(write=write_onnx, runner=onnx_runner, runtime="onnxruntime"),
    ".pt2": _Format(write=write_pt2, runner=pt2_runner, runtime="torch.export"),
    ".c": _Format(write=write_c, runner=c_runner, runtime="a C compiler"),
}
_SPARSE = _Format(write=write_sparse_onnx, runner=onnx_runner, runtime="onnxruntime")
_COMPILED = _Format(write=write_compiled, runner=compiled_runner, runtime="AOTInductor")


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Example,
    *,
    compiled: bool = False,
    sparse: bool = False,
    tolerance: float = 1e-5,
    progress: Progress | None = None,
) -> Exported:
    """Write the model for another runtime, run the result at once, and keep it only if it is equal.

    `m.onnx` is for onnxruntime and others (needs the extra `onnx`), `m.pt2` for `torch.export.load`
    or, with `compiled`, machine code by AOTInductor for this kind of CPU; `m.c` is one C file for
    one sample at a time, see `c_source`. The batch size and the length of token sequences are free
    if the model allows it; the result says which are. All other sizes are those of the example.
    Masked models keep their zeros: `compact` them first, since no runtime skips zeros by itself.
    With `sparse`, an .onnx file leaves them out; a runtime fills them in as it loads.

    Args:
        model: in evaluation mode, masked or compacted.
        path: its suffix, .onnx, .pt2 or .c, selects the format.
        example: the arguments of a call; the check runs on it and on random inputs.
        compiled: compile a .pt2 ahead of time; that needs a C++ compiler and up to a minute.
        sparse: write weights of an .onnx file as sparse initializers where that takes fewer bytes,
            which is from two thirds zeros on; the values are the same, bit for bit.
        tolerance: the largest difference accepted, relative to the largest output.
        progress: called with one line for each step.

    Raises:
        MissingExtra: onnx, onnxscript or onnxruntime is not installed; the message says how.
        ShipError: the model cannot be traced, or the result differs. Nothing is written then.

    >>> import tempfile, torch
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = export(model, f"{folder}/m.pt2", torch.zeros(1, 3))
    >>> done.any_batch, done.difference
    (True, 0.0)
    """
    path, start = Path(path), perf_counter()
    chosen = _chosen(path, compiled=compiled, sparse=sparse)
    model = model_to_write(model)
    # Written in the target's own folder, where the final rename is atomic. After an error nothing
    # is left behind.
    with (
        refusing(path, ShipError),
        _folder_beside(path) as folder,
        show_progress(progress, "export") as say,
    ):
        part = folder / f"model{path.suffix}"
        say(f"writing {path.name}")
        free = chosen.write(model, part, example)
        say(f"running it by {chosen.runtime}")
        run = chosen.runner(part)
        difference = largest_difference(model, run, example, free)
        refuse_beyond(difference, tolerance, path.suffix)
        size = part.stat().st_size
        # Only now, so that a file under this name has been run and compared.
        os.replace(part, path)
    return Exported(
        path=str(path),
        bytes=size,
        difference=difference,
        tolerance=tolerance,
        runtime=chosen.runtime,
        any_batch=not free.why_fixed,
        why_fixed=free.why_fixed,
        any_length=None if free.why_length is None else not free.why_length,
        why_length=free.why_length or "",
        seconds=perf_counter() - start,
    )


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.stem[:80]}.", dir=path.parent) as folder:
        yield Path(folder)


def _chosen(path: Path, *, compiled: bool, sparse: bool) -> _Format:
    if path.suffix not in FORMATS:
        raise ArgumentError(unknown("format of an exported file", path.suffix, FORMATS))
    if compiled and path.suffix != ".pt2":
        raise ArgumentError(f"only a .pt2 file can be compiled, not {path.name}.")
    if sparse and path.suffix != ".onnx":
        raise ArgumentError(f"only an .onnx file has sparse weights, not {path.name}.")
    if sparse:
        return _SPARSE
    return _COMPILED if compiled else FORMATS[path.suffix]
