"""Options and checks that several commands share."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor, nn

ModelFile = Annotated[
    Path,
    typer.Argument(
        help="A safetensors checkpoint.", metavar="MODEL", show_default=False
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        help="The network; see `secateurs models`. By default what the file itself says.",
    ),
]
Classes = Annotated[
    int | None, typer.Option(help="Number of outputs, where it is not the usual one.")
]
InChannels = Annotated[int | None, typer.Option(help="Channels of the images.")]
Size = Annotated[int | None, typer.Option(help="Side of the images in pixels.")]
DataName = Annotated[
    str | None, typer.Option("--data", help="A data set; see `secateurs data`.")
]
Root = Annotated[Path | None, typer.Option(help="The folder of the data set.")]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch the data set if it is not here.")
]
Seed = Annotated[int, typer.Option(help="Where all random numbers come from.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def check_outputs(
    outputs: Iterable[Path | None], *, inputs: Iterable[Path | None]
) -> None:
    """Refuse, before anything is computed, to write over an input, twice to one file, or onto a
    folder.
    """
    read = {path.resolve() for path in inputs if path is not None}
    seen: set[Path] = set()
    # Resolved, so that ./a and a, or a link to it, count as one file.
    for path in (output for output in outputs if output is not None):
        if path.resolve() in read:
            raise ArgumentError(
                f"{path} is an input and would be overwritten; write to another file."
            )
        if path.resolve() in seen:
            raise ArgumentError(
                f"{path} is named for two outputs; give each its own file."
            )
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder; name a file to write.")
        seen.add(path.resolve())


def open_model(
    path: Path,
    *,
    arch: str | None,
    in_channels: int | None,
    classes: int | None,
    size: int | None,
) -> "tuple[nn.Module, dict[str, str]]":
    """The network of a checkpoint with its weights, and the notes that belong into the next
    checkpoint.

    What is not given is taken from the notes that `secateurs train` left in the file.
    """
    from secateurs.models import build, skeleton
    from secateurs.ship.files import check_file, is_sparse_file, load_sparse, notes_of
    from secateurs.train import check_fit, load_model_, read_checkpoint

    sparse = is_sparse_file(path)
    left = notes_of(path) if sparse else read_checkpoint(path).notes
    name = arch or left.get("arch")
    if name is None:
        raise ArgumentError(
            f"{path} does not say which network it is: add --arch NAME (see `secateurs models`)."
        )
    shape = {
        "in_channels": in_channels or _number(left, "in_channels"),
        "classes": classes or _number(left, "classes") or 10,
        "size": size or _number(left, "size"),
    }
    # The notes of a file may claim anything: no memory is taken before they are known to fit its
    # tensors.
    empty, told = skeleton(name, **shape), notes(name, **shape)  # type: ignore[arg-type]
    if sparse:
        check_file(path, empty)
        return load_sparse(path, into=build(name, **shape)), told  # type: ignore[arg-type]
    held = read_checkpoint(path)
    if _compacted(empty, held.tensors):
        return load_sparse(path, build(name, **shape), narrow=True), told  # type: ignore[arg-type]
    check_fit(empty, held, path)
    return load_model_(build(name, **shape), path), told  # type: ignore[arg-type]


def _compacted(model: "nn.Module", tensors: "Mapping[str, Tensor]") -> bool:
    """Whether these are the model's tensors, none of them larger and some smaller.

    Compaction leaves inputs and outputs alone, so the first weight reads as much and the last one
    gives as much as the model's: a file that claims a huge network is not believed.
    """
    pairs = [
        (tensors[name].shape, own.shape)
        for name, own in model.state_dict().items()
        if name in tensors and tensors[name].ndim == own.ndim
    ]
    inside = all(
        a <= b for small, large in pairs for a, b in zip(small, large, strict=True)
    )
    # Equal shapes are an ordinary checkpoint, which has checks of its own.
    if not inside or all(small == large for small, large in pairs):
        return False
    (first, read), (last, given) = pairs[0], pairs[-1]
    return bool(first[1:2] == read[1:2] and last[:1] == given[:1])


def notes(
    arch: str, *, in_channels: int | None, classes: int | None, size: int | None
) -> dict[str, str]:
    """What a checkpoint says about its network, as text."""
    from secateurs.models import MODELS

    made = MODELS[arch]
    return {
        "arch": arch,
        "in_channels": str(in_channels or made.in_channels),
        "classes": str(classes or 10),
        "size": str(size or made.size),
    }


def _number(left: dict[str, str], key: str) -> int | None:
    """A count from the notes of a file, which anybody may have written."""
    text = left.get(key, "")
    # No network has a hundred thousand classes, channels or pixels a side: such a note would only
    # make us take the memory that it asks for.
    return int(text) if text.isdecimal() and len(text) < 6 else None


def show(result: "RenderableType") -> None:
    """Print a table: as wide as the terminal, and wide enough for whole names where there is
    none.
    """
    from rich.console import Console

    # Without a terminal rich assumes 80 columns and cuts names, which a reader of a log needs.
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(result)


def tell(text: str) -> None:
    """Progress, for whoever waits at a terminal."""
    typer.echo(text, err=True)
