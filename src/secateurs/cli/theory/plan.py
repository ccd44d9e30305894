"""`secateurs plan --widths 784,1024,1024,10 --alpha 0.1`, `secateurs plan FILE`: what theory
guarantees.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.cli.opening import open_model
from secateurs.cli.options import Arch, Classes, InChannels, Size, say
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(help="A safetensors checkpoint of a chain of layers."),
    ] = None,
    widths: Annotated[
        str | None, typer.Option(help="Widths of a network, instead of a file.")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Each inner layer loses D^(1-alpha) of its D weights."),
    ] = None,
    sparsity: Annotated[
        float | None,
        typer.Option(help="Share of the inner weights removed, instead of alpha."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The error that must not be exceeded.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="The probability that may be left for failure.")
    ] = 0.05,
    scheme: Annotated[
        str,
        typer.Option(
            help=(
                "magnitude or random; filters (of convolutions: --widths with --kernel and --size)."
            )
        ),
    ] = "magnitude",
    law: Annotated[
        str | None,
        typer.Option(
            help="uniform or bounded entries; by default uniform for widths, bounded for a file."
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help=(
                "K: weights lie within ±K/sqrt(max of the two widths); by default 1, or read off"
                " the file."
            )
        ),
    ] = None,
    lipschitz: Annotated[
        float | None,
        typer.Option(
            help=(
                "Product of the activations' Lipschitz constants; by default 1, or read off the"
                " file."
            )
        ),
    ] = None,
    kernel: Annotated[
        int | None,
        typer.Option(help="With --widths: the side of the filters of convolutions."),
    ] = None,
    size: Size = None,
    arch: Arch = None,
    in_channels: InChannels = None,
    classes: Classes = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of sentences.")
    ] = False,
) -> None:
    """Say in plain words what theory guarantees about pruning a network of these widths, or the one
    in a file.
    """
    from secateurs.theory import plan as asked

    found = asked(
        _network(
            file,
            widths,
            arch=arch,
            in_channels=in_channels,
            classes=classes,
            # With --kernel the size is that of the planned network's images, not of a
            # file's.
            size=size if kernel is None else None,
        ),
        alpha=alpha,
        sparsity=sparsity,
        epsilon=epsilon,
        delta=delta,
        scheme=scheme,  # type: ignore[arg-type]
        law=law,  # type: ignore[arg-type]
        scale=scale,
        lipschitz=lipschitz,
        kernel=kernel,
        input_size=size,
    )
    say(found.to_json() if json else str(found))


def _network(
    file: Path | None, widths: str | None, **shape: Any
) -> "nn.Module | list[int]":
    if file is not None and widths is None:
        return open_model(file, **shape)[0]
    # Both would leave open which of the two is planned for.
    if widths is None or file is not None:
        raise ArgumentError(
            "give a FILE or --widths such as 784,1024,1024,10, and not both."
        )
    # Options of a file are refused beside --widths: they would be read by nobody.
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in shape.items()
        if value is not None
    ]
    if given:
        raise ArgumentError(
            f"{', '.join(given)}: with a FILE only; --size also with --widths and --kernel."
        )
    return _numbers(widths)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(
            f"--widths {text!r} is not a list of whole numbers such as 784,1024,1024,10."
        ) from None
