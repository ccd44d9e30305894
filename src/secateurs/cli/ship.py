"""`secateurs pack MODEL` and `secateurs unpack FILE`: sparse files from checkpoints, and back."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.base.progress import show_progress, silent
from secateurs.cli.commands import Json, OutFile, Quiet, check_outputs, say, show
from secateurs.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

ShippedFile = Annotated[
    Path,
    typer.Argument(
        help="A safetensors file, sparse or not, or a .pt2 program.",
        metavar="MODEL",
        show_default=False,
    ),
]


def pack(
    model: ShippedFile,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The sparse file to write.", show_default=False),
    ],
    values: Annotated[
        str, typer.Option(help="exact, or weights rounded to bf16, fp16 or int8.")
    ] = "exact",
    certificate: Annotated[
        Path | None,
        typer.Option(help="A certificate that `save` or `verify --save` wrote, to keep inside."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint without its zeros, exact to the bit. The network need not be known."""
    check_outputs([out], inputs=[model, certificate])
    from secateurs.files import save_sparse

    # Read inside: a large file is the part that takes its time.
    with show_progress(silent if quiet else None, f"packing {model.name}"):
        state, notes = _tensors_of(model)
        proven = _certificate_of(certificate)
        sizes = save_sparse(state, out, notes=notes, values=values, certificate=proven)
    say(sizes.to_json()) if json else show(sizes)


def unpack(
    file: Annotated[Path, typer.Argument(help="A sparse file.", show_default=False)],
    out: OutFile,
    at_most: Annotated[
        int | None,
        typer.Option(help="How many dense bytes it may unpack to, if you trust it."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the dense safetensors checkpoint of a sparse file; every bit is what it was."""
    check_outputs([out], inputs=[file])
    from secateurs.files import unpack_sparse

    with show_progress(silent if quiet else None, f"unpacking {file.name}"):
        unpack_sparse(file, out, at_most=at_most)
    say(f"{out}: {out.stat().st_size:,} bytes")


def _tensors_of(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors and notes of a file of any kind, without knowing the network."""
    if path.suffix == ".pt2":
        return _tensors_of_program(path), {}
    from secateurs.files import load_sparse, notes_of

    notes = {
        key: text
        for key, text in notes_of(path).items()
        # These describe the file that was read, not the one to be written.
        if key not in ("format", "sha256")
    }
    return load_sparse(path), notes


def _certificate_of(path: Path | None) -> dict[str, Any] | None:
    """A certificate that was kept as JSON."""
    if path is None:
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}.") from error
    if not isinstance(held, dict):
        raise DataError(f"{path} holds no JSON object, so it is not a certificate.")
    return held


def _tensors_of_program(path: Path) -> "dict[str, Tensor]":
    import torch

    if not path.is_file():
        raise DataError(f"{path} is not a file.")
    try:
        return dict(torch.export.load(path).module().state_dict())
    except Exception as error:  # zip, JSON and version errors of many types
        raise DataError(f"{path} is not a program of torch.export: {str(error)[:200]}.") from error
