"""The forms a model can be measured in: modules, files of other runtimes, functions."""

import os
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, SecateursError, ShipError
from secateurs.graph import Example
from secateurs.ship.exporting.onnx import onnx_runner
from secateurs.ship.exporting.pt2 import pt2_runner
from secateurs.ship.fast import FastModule
from secateurs.ship.files import FileSizes, save_sparse
from secateurs.ship.macs import macs

Form: TypeAlias = "nn.Module | str | os.PathLike[str] | Callable[..., Any]"
"""A module, a file that `export` wrote, or a function of the inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A form that can be called, and what is known of it without calling it."""

    call: Callable[[tuple[Tensor, ...], dict[str, Tensor]], Any]
    sizes: FileSizes | None
    file_bytes: int | None
    parameters: int | None
    nonzero: int | None
    macs: int | None


def in_both_formats(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Behind every module with images the same one in the channels-last memory format."""
    both: dict[str, Form] = {}
    for name, form in forms.items():
        both[name] = form
        other = f"{name}, channels last"
        if other in forms:
            raise ArgumentError(f"a form is called {other!r} already: rename it.")
        # A program has a layout of its own.
        if isinstance(form, FastModule) or not isinstance(form, nn.Module):
            continue
        if any(parameter.ndim == 4 for parameter in form.parameters()):
            # torch's own annotations do not know this use.
            both[other] = deepcopy(form).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return both


def ready(name: str, form: Form, example: Example) -> Ready:
    """Open files, refuse modules in training, count weights."""
    if isinstance(form, nn.Module):
        return _module(name, form, example)
    if isinstance(form, str | os.PathLike):
        return _file(name, Path(form))
    if not callable(form):
        raise ArgumentError(
            f"{name!r} is a {type(form).__name__}: give a module, file or function."
        )
    return Ready(
        call=lambda args, kwargs: form(*args, **kwargs),
        sizes=None,
        file_bytes=None,
        parameters=None,
        nonzero=None,
        macs=None,
    )


def _module(name: str, module: nn.Module, example: Example) -> Ready:
    if any(inner.training for inner in module.modules()):
        raise ArgumentError(f"{name!r} is in training mode: call .eval() first.")
    # A fast module keeps its weights in compiled lists:
    # they are counted in the model behind.
    plain = module.plain if isinstance(module, FastModule) else module
    sizes = _sizes(plain)
    parameters = list(plain.parameters())
    return Ready(
        call=lambda args, kwargs: module(*args, **kwargs),
        sizes=sizes,
        file_bytes=sizes.bytes,
        parameters=sum(p.numel() for p in parameters),
        nonzero=sum(int(p.count_nonzero()) for p in parameters),
        macs=_macs(plain, example),
    )


def _file(name: str, path: Path) -> Ready:
    runners = {".onnx": onnx_runner, ".pt2": pt2_runner}
    if path.suffix not in runners:
        raise ArgumentError(f"{name!r}: {path.name} is no .onnx or .pt2 file.")
    if not path.exists():
        raise ShipError(f"{name!r}: {path} does not exist.")
    run = runners[path.suffix](path)
    size = path.stat().st_size
    return Ready(
        call=run,
        sizes=None,
        file_bytes=size,
        parameters=None,
        nonzero=None,
        macs=None,
    )


def _sizes(module: nn.Module) -> FileSizes:
    with tempfile.TemporaryDirectory() as folder:
        # The size of a file that was really written, not an estimate.
        return save_sparse(module, Path(folder) / "m.safetensors")


def _macs(module: nn.Module, example: Example) -> int | None:
    """Unknown where the graph does not cover the model: it can be timed all the same."""
    try:
        return macs(module, example).nonzero
    except SecateursError:
        return None
