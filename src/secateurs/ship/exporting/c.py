"""C files: written by `c_source`, compiled and called before they are kept."""

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ShipError
from secateurs.graph import Example
from secateurs.graph.untouched import untouched
from secateurs.ship.c_source import c_source
from secateurs.ship.exporting.programs import Free, length_of
from secateurs.ship.fast.trace import arguments


def write_c(model: nn.Module, part: Path, example: Example) -> Free:
    """Write the source; `predict` takes one sample, which is why the batch is fixed."""
    args, kwargs = arguments(example)
    for value in (*args, *kwargs.values()):
        if len(value) != 1:
            raise ShipError(
                f"a C file takes one sample, not {len(value)}: give example[:1]."
            )
    part.write_text(c_source(model, example), encoding="utf-8")
    with torch.no_grad(), untouched(model):
        shape = model(*args, **kwargs).shape
    # The signature says nothing of sizes: the check needs those of the output.
    part.with_suffix(".shape").write_text(" ".join(map(str, shape)))
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
    done = subprocess.run(
        [*command, "-lm"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ShipError(f"the C file does not compile: {done.stderr.strip()[:300]}")
    predict = ctypes.CDLL(str(library)).predict
    shape = tuple(map(int, part.with_suffix(".shape").read_text().split()))

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
            "no C compiler is here to check the file with; write c_source() yourself."
        )
    return found
