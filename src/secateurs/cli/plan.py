"""`secateurs plan --widths 784,1024,1024,10 --alpha 0.1`: what theory guarantees for these widths."""

from typing import Annotated

import typer

from secateurs.errors import ArgumentError


def plan(
    widths: Annotated[str, typer.Option(help="Widths of a fully connected network.", show_default=False)],
    alpha: Annotated[float | None, typer.Option(help="Each inner layer loses D^(1-alpha) of its D weights.")] = None,
    sparsity: Annotated[
        float | None, typer.Option(help="Share of the inner weights removed, instead of alpha.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The error that must not be exceeded.")] = None,
    delta: Annotated[float, typer.Option(help="The probability that may be left for failure.")] = 0.05,
    scheme: Annotated[str, typer.Option(help="magnitude or random.")] = "magnitude",
    scale: Annotated[float, typer.Option(help="K: weights are uniform on ±K/sqrt(max of the two widths).")] = 1.0,
) -> None:
    """Say in plain words what theory guarantees about pruning a network of these widths."""
    from secateurs.theory import plan as asked

    found = asked(
        _widths(widths),
        alpha=alpha,
        sparsity=sparsity,
        epsilon=epsilon,
        delta=delta,
        scheme=scheme,  # type: ignore[arg-type]
        scale=scale,
    )
    typer.echo(str(found))


def _widths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(f"--widths {text!r} is not a list of whole numbers such as 784,1024,1024,10.") from None
