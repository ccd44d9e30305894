"""`export`: the suffix of the file says in which format."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from torch import nn

from secateurs.errors import ArgumentError, ShipError
from secateurs.graph import Example
from secateurs.parameters import check_model
from secateurs.registry import unknown
from secateurs.ship.exporting.c import c_runner, write_c
from secateurs.ship.exporting.compare import largest_difference, refuse_beyond
from secateurs.ship.exporting.onnx import onnx_runner, write_onnx
from secateurs.ship.exporting.programs import Free
from secateurs.ship.exporting.pt2 import (
    compiled_runner,
    pt2_runner,
    write_compiled,
    write_pt2,
)
from secateurs.ship.exporting.result import Exported
from secateurs.ship.fast import FastModule
from secateurs.writing import refusing

Progress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """How a format is written, and run for the check."""

    write: Callable[[nn.Module, Path, Example], Free]
    runner: Callable[[Path], Any]
    runtime: str


FORMATS = {
    ".onnx": _Format(write=write_onnx, runner=onnx_runner, runtime="onnxruntime"),
    ".pt2": _Format(write=write_pt2, runner=pt2_runner, runtime="torch.export"),
    ".c": _Format(write=write_c, runner=c_runner, runtime="a C compiler"),
}
_COMPILED = _Format(
    write=write_compiled, runner=compiled_runner, runtime="AOTInductor"
)


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Example,
    *,
    compiled: bool = False,
    tolerance: float = 1e-5,
    progress: Progress | None = None,
) -> Exported:
    """Write the model for another runtime, run the result at once, and keep it only if it is equal.

    `m.onnx` is for onnxruntime and others (needs the extra `onnx`), `m.pt2` for `torch.export.load`
    or, with `compiled`, machine code by AOTInductor for this kind of processor; `m.c` is one C
    file for one sample at a time, see `c_source`. The batch size is free where the model allows it,
    and so is the length of token sequences; the result says which are. All other sizes are those of
    the example. Masked models keep their zeros: `compact` them first, since no runtime skips zeros
    by itself.

    Args:
        model: in evaluation mode, masked or compacted.
        path: its suffix, .onnx, .pt2 or .c, says in which format.
        example: what the model is called with; the check runs on it and on random inputs.
        compiled: compile a .pt2 ahead of time; that takes a C++ compiler, and up to a minute.
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
    path, say, start = Path(path), progress or (lambda text: None), perf_counter()
    chosen = _chosen(path, compiled)
    check_model(model)
    if any(module.training for module in model.modules()):
        raise ArgumentError(
            "only models in evaluation mode are exported: call model.eval() first."
        )
    model = getattr(model, "plain", model) if _is_fast(model) else model
    # Written in the target's own folder, where the rename at the end is atomic. After
    # an error nothing is left behind.
    with refusing(path, ShipError), _folder_beside(path) as folder:
        part = folder / f"model{path.suffix}"
        say(f"writing {path.name}")
        free = chosen.write(model, part, example)
        say(f"running it by {chosen.runtime}")
        run = chosen.runner(part)
        difference = largest_difference(model, run, example, free)
        refuse_beyond(difference, tolerance, path.suffix)
        size = part.stat().st_size
        # Only now: a file under this name is one that was run and compared.
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
    with tempfile.TemporaryDirectory(
        prefix=f".{path.stem[:80]}.", dir=path.parent
    ) as folder:
        yield Path(folder)


def _chosen(path: Path, compiled: bool) -> _Format:
    if path.suffix not in FORMATS:
        raise ArgumentError(
            unknown("format of an exported file", path.suffix, FORMATS)
        )
    if compiled and path.suffix != ".pt2":
        raise ArgumentError(f"only a .pt2 file can be compiled, not {path.name}.")
    return _COMPILED if compiled else FORMATS[path.suffix]


def _is_fast(model: nn.Module) -> bool:
    """A fast module runs kernels of this machine; what it was made from is what can be exported."""
    return isinstance(model, FastModule)
