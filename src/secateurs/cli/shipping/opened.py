"""What the shipping commands share: files of every kind as models, and progress."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateurs.cli.opening import open_model
from secateurs.errors import DataError
from secateurs.printing import Screen

if TYPE_CHECKING:
    from torch import Tensor, nn


@contextmanager
def steps(what: str, *, quiet: bool) -> Iterator[Any]:
    """Shows on standard error what is being done; gives a function that says the next step."""
    console = Screen(stderr=True, quiet=quiet)
    with console.status(what) as status:

        def say(text: str, *_: object) -> None:
            status.update(f"{what}: {text}")
            # A live status line shows nothing in a log, so there every step gets a
            # line.
            if not console.is_terminal:
                console.print(f"{what}: {text}", highlight=False, soft_wrap=True)

        yield say


def open_shipped(
    path: Path,
    *,
    arch: str | None,
    in_channels: int | None,
    classes: int | None,
    size: int | None,
) -> "tuple[nn.Module, Any]":
    """The model of a file in evaluation mode, and an example of what it is called with.

    A .pt2 program brings both with it; a safetensors file needs one of our architectures.
    """
    if path.suffix == ".pt2":
        return _program(path)
    import torch

    model, notes = open_model(
        path, arch=arch, in_channels=in_channels, classes=classes, size=size
    )
    side = int(notes["size"])
    return model.eval(), torch.zeros(1, int(notes["in_channels"]), side, side)


def tensors_of(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors and notes of a file of any kind, without knowing the network."""
    if path.suffix == ".pt2":
        return dict(_program(path)[0].state_dict()), {}
    from secateurs.ship.files import load_sparse, notes_of

    notes = {
        key: text
        for key, text in notes_of(path).items()
        # These describe the file that was read, not the one to be written.
        if key not in ("format", "sha256")
    }
    return load_sparse(path), notes


def certificate_of(path: Path | None) -> dict[str, Any] | None:
    """A certificate that a command wrote as JSON."""
    if path is None:
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.") from error
    if not isinstance(held, dict):
        raise DataError(f"{path} holds no JSON object, so it is no certificate.")
    return held


def _program(path: Path) -> "tuple[nn.Module, Any]":
    import torch

    if not path.is_file():
        raise DataError(f"{path} is no file.")
    try:
        program = torch.export.load(path)
    except Exception as error:  # zip, JSON and version errors of many types
        raise DataError(
            f"{path} is no program of torch.export: {str(error)[:200]}."
        ) from error
    args, kwargs = program.example_inputs or ((), {})
    model = program.module()
    for module in model.modules():
        module.training = (
            False  # an exported program cannot change its mode, and says so
        )
    return model, dict(kwargs) if kwargs else tuple(args)
