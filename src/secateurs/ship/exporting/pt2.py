"""`.pt2` files: programs of torch.export, or compiled ahead of time by AOTInductor."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateurs.errors import ShipError
from secateurs.graph import Example
from secateurs.ship.exporting.programs import Free, silently, traced


def write_pt2(model: nn.Module, part: Path, example: Example) -> Free:
    """Write the program; which sizes of a call it takes."""
    program = traced(model, example)
    # Into memory first: where a disk is full torch's own writer ends the process.
    content = io.BytesIO()
    try:
        with silently():
            torch.export.save(program.program, content)
    # torch.export.save fails by errors of its own insides.
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
    """Write machine code for this processor; takes a C++ compiler and up to a minute."""
    from torch._inductor import aoti_compile_and_package

    program = traced(model, example)
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
