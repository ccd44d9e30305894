"""`secateurs certify DENSE SPARSE`: how far the changed network can depart from the dense one."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.cli.commands import (
    Arch,
    Classes,
    DataName,
    DataSource,
    Download,
    InChannels,
    Json,
    Root,
    Seed,
    Size,
    Which,
    nothing_in,
    say,
    show,
    tell,
)
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secateurs.certificates import Certificate
    from secateurs.data import Dataset


# How `secateurs certify` proves: the domain, the methods, and the statement on fresh data.


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """Where the bound has to hold, how it is computed, and the statement on fresh data."""

    radius: float
    points: int
    methods: list[str] | None
    rounding: bool
    seconds: float | None
    target: float | None
    claim: str | None
    margin: float
    alpha: float
    beta: float
    seed: int

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ArgumentError(f"--points {self.points}: at least one input is needed.")

    def options(self, known: "Dataset | None") -> "dict[str, Any]":
        """The options of `secateurs.certify`."""
        from secateurs.random import generator

        options: dict[str, Any] = {
            "radius": self.radius,
            "methods": self.methods or "auto",
            "rounding": True if self.rounding else "auto",
            "seconds": self.seconds,
            "target": self.target,
            "claim": self.claim,
            "margin": self.margin,
            "generator": generator(self.seed, "certify"),
        }
        if known is not None:
            # The statement on fresh data is made of the whole test set, not of the balls.
            options |= {"data": (known.test_x, known.test_y)}
            options |= {"alpha": self.alpha, "beta": self.beta}
        return options


def proven(
    which: Which, dense: Path, sparse: Path, known: "Dataset | None", how: ProofOptions
) -> "tuple[Certificate, Tensor]":
    """The certificate, and the inputs in the middle of its balls."""
    from secateurs.certificates import certify as prove

    first, notes = which.opened(dense)
    second, _ = which.opened(sparse)
    inputs = nothing_in(notes) if known is None else known.test_x[: how.points]
    # No progress in a log: nobody reads it there, and scripts parse the rest.
    say = tell if sys.stderr.isatty() else None
    certificate = prove(
        first.eval(),
        second.eval(),
        around=inputs,
        progress=say,
        **how.options(known),
    )
    return certificate, inputs


def certify(
    dense: Annotated[
        Path,
        typer.Argument(help="The checkpoint of the dense network.", show_default=False),
    ],
    sparse: Annotated[
        Path,
        typer.Argument(help="The changed one: pruned, rounded, tuned.", show_default=False),
    ],
    arch: Arch = None,
    radius: Annotated[
        float, typer.Option(help="Half the width of the ball around each input.")
    ] = 0.004,
    data: DataName = None,
    points: Annotated[
        int,
        typer.Option(help="With --data: how many test inputs to put balls around."),
    ] = 100,
    method: Annotated[
        list[str] | None, typer.Option(help="One method, repeatable; by default all.")
    ] = None,
    rounding: Annotated[
        bool, typer.Option(help="Also cover float32 evaluation of both networks.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(help="How long it may take; the best bound found by then is given."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="The deviation allowed: balls are split until it is proven or refuted."),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(help='"top-1": that both networks answer the same class.'),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(help="With --claim: only where the dense network leads by more than this."),
    ] = 0.0,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the certificate to this file, for `recheck`."),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(help="With --data: 1 − confidence of the change rate's limit."),
    ] = 0.05,
    beta: Annotated[
        float,
        typer.Option(help="With --data: how rarely a fresh deviation may exceed the level."),
    ] = 0.05,
    root: Root = None,
    download: Download = False,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Bound the largest difference of two networks of one structure, for every input of a region.

    The region is a ball around each of some test inputs (--data), or around the zero input.
    """
    how = ProofOptions(
        radius, points, method, rounding, seconds, target, claim, margin, alpha, beta, seed
    )
    known = DataSource(data, root, download).loaded()
    which = Which(arch, in_channels, classes, size)
    certificate, inputs = proven(which, dense, sparse, known, how)
    if save is not None:
        certificate.save(save)
    if json:
        say(certificate.to_json())
        return
    show(certificate)
    if known is not None:
        share = certificate.certified_share(inputs)
        say(f"Certified share: {share:.1%} of {len(inputs)} test inputs cannot change their class.")


def recheck(
    certificate: Annotated[
        Path,
        typer.Argument(help="What `certify` or `verify --save` wrote.", show_default=False),
    ],
    dense: Annotated[
        Path,
        typer.Argument(
            help="The checkpoint of the dense network, or .onnx, .nnet.", show_default=False
        ),
    ],
    sparse: Annotated[
        Path,
        typer.Argument(help="The same of the changed one.", show_default=False),
    ],
    arch: Arch = None,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
) -> None:
    """Prove a kept certificate again, from the two networks alone.

    Exits with 1 where it does not hold: other weights, another graph, or a bound that was too
    small.
    """
    from secateurs.certificates import recheck as prove_again

    which = Which(arch, in_channels, classes, size)
    models = [_network(path, which, certificate).eval() for path in (dense, sparse)]
    heard = tell if sys.stderr.isatty() else None
    result = prove_again(certificate, models[0], models[1], progress=heard)
    say(str(result))
    # An exit code, so that a script can stop where a certificate no longer holds.
    if not result.holds:
        raise typer.Exit(1)


def _network(path: Path, which: Which, certificate: Path) -> "nn.Module":
    """Of a checkpoint, or of a file that `verify` reads, as it was read for this certificate."""
    if path.suffix not in (".onnx", ".nnet"):
        return which.opened(path)[0]
    from secateurs.certificates.record import read_record, text_of
    from secateurs.compat.networks import read_network

    request = read_record(text_of(certificate))[0].options
    # Where classes are compared, a softmax at the end was left out.
    return read_network(path, logits=request is not None and request.claim is not None)
