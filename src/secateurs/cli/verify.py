"""`secateurs verify F G INSTANCE`: a competition's question about two networks, answered;
`secateurs recheck CERTIFICATE F G`: the answer proved again.
"""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.commands import say, tell


def verify(
    first: Annotated[Path, typer.Argument(help="The network f, .onnx or .nnet.")],
    second: Annotated[Path, typer.Argument(help="The network g.")],
    instance: Annotated[Path, typer.Argument(help="The question, .vnnlib.")],
    epsilon: Annotated[
        float | None,
        typer.Option(help="The difference allowed, where the instance does not say."),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(help="'top-1' asks whether both answer the same class, in place of ε."),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(help="With --claim: only where f leads by more than this."),
    ] = 0.0,
    seconds: Annotated[float | None, typer.Option(help="How long it may take.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Keep the certificate in this file."),
    ] = None,
) -> None:
    """Print `unsat` (no input of the box takes both networks further apart), `sat` with such an
    input, or `unknown`.
    """
    from secateurs.proof.verify import verify as answer

    found = answer(
        first,
        second,
        instance,
        epsilon=epsilon,
        claim=claim,  # type: ignore[arg-type]  # any other word is refused there
        margin=margin,
        seconds=seconds,
    )
    for remark in found.remarks:
        tell(remark)
    if save is not None:
        found.certificate.save(save)
    say(str(found))


def recheck(
    certificate: Annotated[
        Path,
        typer.Argument(help="What `verify --save` wrote.", show_default=False),
    ],
    first: Annotated[
        Path, typer.Argument(help="The network f, .onnx or .nnet.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(help="The network g.", show_default=False)],
) -> None:
    """Prove a kept certificate again, from the two networks alone.

    Exits with 1 where it does not hold: other weights, another graph, or a bound that was too
    small.
    """
    from secateurs.proof import recheck as prove_again
    from secateurs.proof.kept import read_record, text_of
    from secateurs.proof.networks import read_network

    request = read_record(text_of(certificate))[0].options
    # Where classes are compared, a softmax at the end was left out.
    logits = request.claim is not None
    f, g = (read_network(path, logits=logits).eval() for path in (first, second))
    result = prove_again(certificate, f, g)
    say(str(result))
    # An exit code, so that a script can stop where a certificate no longer holds.
    if not result.holds:
        raise typer.Exit(1)
