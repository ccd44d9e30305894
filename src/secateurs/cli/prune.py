"""`secateurs prune MODEL`: score, cut, write the pruned checkpoint.

A file that says which network it is (or --arch) is pruned with that network, by any score. Any
other safetensors file or folder is pruned as it lies, piece by piece, by scores of the weights.
torch is imported inside the functions, so that `--help` does without it.
"""

import sys
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
    ModelFile,
    OutFile,
    Root,
    Seed,
    Size,
    Which,
    check_outputs,
    nothing_in,
    say,
    show,
)
from secateurs.errors import ArgumentError
from secateurs.foreign import one_line

if TYPE_CHECKING:
    from secateurs.masks import SparsityReport
    from secateurs.prune import Pruned


def prune(
    model: ModelFile,
    out: OutFile,
    arch: Arch = None,
    score: Annotated[
        str, typer.Option(help="How important is a weight; see `secateurs scores`.")
    ] = "magnitude",
    sparsity: Annotated[
        float | None, typer.Option(help="Share of the weights to cut, such as 0.9.")
    ] = None,
    density: Annotated[float | None, typer.Option(help="Or: share of the weights to keep.")] = None,
    compression: Annotated[float | None, typer.Option(help="Or: total / kept, such as 10.")] = None,
    scope: Annotated[
        str, typer.Option(help="Where to cut how much: global, layer, uniform, erk.")
    ] = "global",
    pattern: Annotated[
        str, typer.Option(help="In which shapes: 2:4, 4x4, kernel, filter, ...")
    ] = "unstructured",
    how: Annotated[str, typer.Option(help="topk, or a random draw such as sample.")] = "topk",
    rounds: Annotated[int, typer.Option(help="How often to score and cut; SynFlow wants 100.")] = 1,
    schedule: Annotated[
        str | None,
        typer.Option(help="Over the rounds: exponential, linear or cubic."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Parameters by glob; '!glob' excludes. Repeatable."),
    ] = None,
    floor: Annotated[
        float, typer.Option(help="Weights (or, below 1, a share) every layer keeps.")
    ] = 1,
    masks_out: Annotated[
        Path | None, typer.Option(help="Write the masks, one bit per weight.")
    ] = None,
    data: DataName = None,
    examples: Annotated[
        int, typer.Option(help="Training examples a score with data looks at.")
    ] = 256,
    root: Root = None,
    download: Download = False,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Prune a checkpoint and write it as a plain checkpoint again, with a report.

    Any safetensors file, or folder of them, can be pruned by magnitude without its network.
    """
    cut = {
        "score": score,
        "sparsity": sparsity,
        "density": density,
        "compression": compression,
        "scope": scope,
        "pattern": pattern,
        "floor": floor,
        # Without a glob the default rule applies: an empty list would choose nothing.
        "where": where or None,
    }
    rounding = {"how": how, "rounds": rounds, "schedule": schedule}
    which, source = Which(arch, in_channels, classes, size), DataSource(data, root, download)
    done: Pruned | SparsityReport
    if _has_network(model, which):
        done = _with_network(
            model, out, {**cut, **rounding}, which, source, examples, seed, masks_out
        )
    else:
        network = {
            "data": data,
            **rounding,
            "in-channels": in_channels,
            "classes": classes,
            "size": size,
        }
        usual = {"how": "topk", "rounds": 1}
        given = [f"--{name}" for name, value in network.items() if value != usual.get(name)]
        if given:
            raise ArgumentError(
                f"{model} does not say which network it is: add --arch NAME (see `secateurs"
                f" models`), or leave out {', '.join(given)} to prune the file by its weights"
                " alone."
            )
        done = _without(model, out, cut, seed, masks_out, quiet=json)
    say(done.to_json()) if json else show(done)


def _has_network(model: Path, which: Which) -> bool:
    """Whether the network is known, by --arch or by what the file says of itself."""
    from secateurs.prune.shards import open_stored
    from secateurs.ship.files import is_sparse_file

    if (model.is_file() and is_sparse_file(model)) or which.arch is not None:
        return True
    # A pickle is refused here, with the lines that convert it, and so is what is not there.
    return "arch" in open_stored(model).notes


def _with_network(
    model: Path,
    out: Path,
    fields: dict[str, Any],
    which: Which,
    source: DataSource,
    examples: int,
    seed: int,
    masks_out: Path | None,
) -> "Pruned":
    """Prune the network of a checkpoint by any score: of training examples with cross-entropy, or
    of an example of the right shape.
    """
    from torch.nn.functional import cross_entropy

    from secateurs.masks import save_masks
    from secateurs.prune import Recipe, prune_
    from secateurs.random import generator
    from secateurs.scores import SCORES
    from secateurs.train import save_model

    check_outputs([out, masks_out], inputs=[model])
    # The recipe first: its mistakes are reported before a file is read.
    recipe = Recipe(**fields)
    network, notes = which.opened(model)
    known = source.loaded()
    given: dict[str, Any]
    if known is not None:
        x, y = known.train_x[:examples], known.train_y[:examples]
        given = {"batch": (x, y), "loss": cross_entropy, "example": x[:1]}
    elif SCORES[fields["score"]].needs & {"batch", "loss"}:
        raise ArgumentError(
            f"the score {fields['score']!r} looks at data: add --data NAME (see `secateurs data`)."
        )
    else:
        given = {"example": nothing_in(notes)}
    pruned = prune_(network, recipe, generator=generator(seed, "prune"), **given)
    save_model(network, out, notes=notes)
    if masks_out is not None:
        save_masks(pruned.masks, masks_out)
    return pruned


def _without(
    model: Path,
    out: Path,
    fields: dict[str, Any],
    seed: int,
    masks_out: Path | None,
    *,
    quiet: bool,
) -> "SparsityReport":
    """Prune without the network; on a terminal the name of the current tensor is shown."""
    from secateurs.prune import prune_file

    shown = sys.stderr.isatty() and not quiet
    clear = "\r\x1b[2K"

    def progress(name: str) -> None:
        if shown:
            sys.stderr.write(f"{clear}{one_line(name)}")
            sys.stderr.flush()

    try:
        done = prune_file(model, out, seed=seed, masks_out=masks_out, progress=progress, **fields)
        return done.report
    finally:
        if shown:
            # The line is wiped, so that the table starts on a clean one.
            sys.stderr.write(clear)
