"""`secateurs pack MODEL` and `secateurs unpack FILE`: sparse files from checkpoints, and back."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.options import Json, Quiet, check_outputs, say, show

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
        typer.Option(
            "--out", "-o", help="The sparse file to write.", show_default=False
        ),
    ],
    values: Annotated[
        str, typer.Option(help="exact, or weights rounded to bf16, fp16 or int8.")
    ] = "exact",
    certificate: Annotated[
        Path | None,
        typer.Option(
            help="A certificate as JSON, from `secateurs certify --json`, to keep inside."
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint without its zeros, exact to the bit. The network need not be known."""
    check_outputs([out], inputs=[model, certificate])
    from secateurs.cli.shipping.opened import certificate_of, steps, tensors_of
    from secateurs.ship import save_sparse

    # Read inside: a large file is the part that takes its time.
    with steps(f"packing {model.name}", quiet=quiet):
        state, notes = tensors_of(model)
        proven = certificate_of(certificate)
        sizes = save_sparse(
            state, out, notes=notes, values=values, certificate=proven
        )
    say(sizes.to_json()) if json else show(sizes)


def unpack(
    file: Annotated[Path, typer.Argument(help="A sparse file.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The checkpoint to write.", show_default=False
        ),
    ],
    at_most: Annotated[
        int | None,
        typer.Option(help="How many dense bytes it may unpack to, if it is yours."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the dense safetensors checkpoint of a sparse file; every bit is what it was."""
    check_outputs([out], inputs=[file])
    from secateurs.cli.shipping.opened import steps
    from secateurs.ship import unpack_sparse

    with steps(f"unpacking {file.name}", quiet=quiet):
        unpack_sparse(file, out, at_most=at_most)
    say(f"{out}: {out.stat().st_size:,} bytes")
