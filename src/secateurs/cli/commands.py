"""The commands by name: where their functions are, and the words that `--help` shows; with what
several commands share: opening a model, checking outputs, printing.

A new command is a file with a function and an entry here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.errors import ArgumentError
from secateurs.foreign import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor, nn

    from secateurs.data import Dataset


@dataclass(frozen=True, slots=True)
class Command:
    """Where the function of a command lies, and the first sentences of its help.

    `secateurs --help` needs these words alone. Importing all functions for them takes a tenth of
    its time.
    """

    module: str
    name: str
    summary: str

    @property
    def function(self) -> Callable[..., None]:
        """The function itself."""
        module = import_module(f"secateurs.cli.{self.module}")
        found: Callable[..., None] = getattr(module, self.name)
        return found


# The words are those of the functions' docstrings; a test compares them.
COMMANDS = {
    "prune": Command(
        "prune",
        "prune",
        "Prune a checkpoint and write it as a plain checkpoint again, with a report.",
    ),
    "train": Command(
        "train",
        "train",
        "Train a network and write a plain checkpoint.",
    ),
    "inspect": Command(
        "inspect",
        "inspect",
        "Report the sparsity of every weight in a file. The network need not be known.",
    ),
    "certify": Command(
        "certify",
        "certify",
        "Bound the largest difference of two networks of one structure, for every "
        "input of a region.",
    ),
    "compact": Command(
        "ship",
        "compact",
        "Cut dead channels and neurons out of a checkpoint; its outputs stay what they were.",
    ),
    "recheck": Command(
        "certify",
        "recheck",
        "Prove a kept certificate again, from the two networks alone.",
    ),
    "verify": Command(
        "verify",
        "verify",
        "Print `unsat` (no input of the box takes both networks further apart), `sat` with such an "
        "input, or `unknown`.",
    ),
    "scores": Command(
        "commands",
        "scores",
        "List the scores: how important is a weight.",
    ),
    "models": Command(
        "commands",
        "models",
        "List the networks that come with the package.",
    ),
    "data": Command(
        "commands",
        "data",
        "List the data sets that can be read.",
    ),
    "demo": Command(
        "demo",
        "demo",
        "Compare seven ways to make a LeNet sparse, open a page about it, ship the best one.",
    ),
    "paths": Command(
        "paths",
        "paths",
        "Path norm of a network, the share of path mass in each layer, dead "
        "channels, and layers that are lost.",
    ),
    "generalization": Command(
        "generalization",
        "generalization",
        "Bound the test error of a sparse network by its length as a message.",
    ),
    "plan": Command(
        "theory",
        "plan",
        "Say in plain words what theory guarantees about pruning a network of these "
        "widths, or the one in a file.",
    ),
    "diagnose": Command(
        "theory",
        "diagnose",
        "Moments and distribution of every weight in a file, against what the theorems assume.",
    ),
    "random-matrices": Command(
        "theory",
        "probabilistic",
        "Norms of random matrices, or moments of trained weights, beside the tables of the paper.",
    ),
    "reproduce": Command(
        "reproduce",
        "reproduce",
        "Run a published experiment and print ours, the paper's and the deviation.",
    ),
    "pack": Command(
        "ship",
        "pack",
        "Write a checkpoint without its zeros, exact to the bit. The network need not be known.",
    ),
    "unpack": Command(
        "ship",
        "unpack",
        "Write the dense safetensors checkpoint of a sparse file; every bit is what it was.",
    ),
    "zoo": Command(
        "zoo",
        "zoo",
        "List the small networks that come with the package, check records, or write their page.",
    ),
    "export": Command(
        "ship",
        "export",
        "Write a network for another runtime; it is run at once and kept only if it is equal.",
    ),
    "measure": Command(
        "ship",
        "measure",
        'Compare a network as it is, compacted and on the fast path; "no gain" '
        "where there is none.",
    ),
}
STUDY = "Compare methods in a crash-safe study."


# Opens the network of a checkpoint without trusting it: what its notes say must fit its tensors.


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

    Anything not given is taken from the notes that `secateurs train` left in the file.
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
    empty, described = skeleton(name, **shape), notes(name, **shape)  # type: ignore[arg-type]
    if sparse:
        check_file(path, empty)
        return load_sparse(path, into=build(name, **shape)), described  # type: ignore[arg-type]
    held = read_checkpoint(path)
    if _is_compacted(empty, held.tensors):
        return load_sparse(path, build(name, **shape), narrow=True), described  # type: ignore[arg-type]
    check_fit(empty, held, path)
    return load_model_(build(name, **shape), path), described  # type: ignore[arg-type]


def _is_compacted(model: "nn.Module", tensors: "Mapping[str, Tensor]") -> bool:
    """Whether these are the model's tensors, none of them larger and some smaller.

    Compaction leaves inputs and outputs alone, so the first weight reads as much and the last one
    gives as much as the model's: a file that claims a huge network is not believed.
    """
    pairs = [
        (tensors[name].shape, own.shape)
        for name, own in model.state_dict().items()
        if name in tensors and tensors[name].ndim == own.ndim
    ]
    inside = all(a <= b for small, large in pairs for a, b in zip(small, large, strict=True))
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


# Options that belong together, as one value each: which network, which data.


@dataclass(frozen=True, slots=True)
class Which:
    """Which network a file holds, as given by options; the file's notes give the rest."""

    arch: str | None = None
    in_channels: int | None = None
    classes: int | None = None
    size: int | None = None

    def opened(self, path: Path) -> "tuple[nn.Module, dict[str, str]]":
        """The network with its weights, and the notes that belong into the next checkpoint."""
        return open_model(path, **asdict(self))


@dataclass(frozen=True, slots=True)
class DataSource:
    """Where data come from; no data if no set is named."""

    name: str | None = None
    root: Path | None = None
    download: bool = False

    def loaded(self) -> "Dataset | None":
        """The data set, if one is named."""
        if self.name is None:
            return None
        from secateurs.data import load

        return load(self.name, root=self.root, download=self.download)


def nothing_in(notes: dict[str, str]) -> "Tensor":
    """An input of zeros, of the shape that the notes of a checkpoint say."""
    import torch

    side = int(notes["size"])
    return torch.zeros(1, int(notes["in_channels"]), side, side)


# Options and checks that several commands share.

ModelFile = Annotated[
    Path,
    typer.Argument(help="A safetensors checkpoint.", metavar="MODEL", show_default=False),
]
OutFile = Annotated[
    Path, typer.Option("--out", "-o", help="The checkpoint to write.", show_default=False)
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        help="The network; see `secateurs models`. By default, what the file says.",
    ),
]
Classes = Annotated[
    int | None, typer.Option(help="Number of outputs, where it is not the usual one.")
]
InChannels = Annotated[int | None, typer.Option(help="Channels of the images.")]
Size = Annotated[int | None, typer.Option(help="Side of the images in pixels.")]
DataName = Annotated[str | None, typer.Option("--data", help="A data set; see `secateurs data`.")]
Root = Annotated[Path | None, typer.Option(help="The folder of the data set.")]
Download = Annotated[
    bool, typer.Option("--download", help="Download the data set if it is missing.")
]
Seed = Annotated[int, typer.Option(help="The seed of all random numbers.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def check_outputs(outputs: Iterable[Path | None], *, inputs: Iterable[Path | None]) -> None:
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
            raise ArgumentError(f"{path} is named for two outputs; give each its own file.")
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder; name a file to write.")
        seen.add(path.resolve())


def show(result: "RenderableType") -> None:
    """Print a table: as wide as the terminal, and wide enough for whole names where there is
    none.
    """
    from secateurs.printing import Screen

    # Without a terminal rich assumes 80 columns and cuts names, which a reader of a log needs.
    screen = Screen()
    (screen if screen.is_terminal else Screen(width=140)).print(result)


def say(text: object, *, err: bool = False) -> None:
    """Print text; names from foreign files cannot control the terminal."""
    typer.echo(visible(str(text)), err=err)


def tell(text: str) -> None:
    """Print progress on standard error."""
    say(text, err=True)


# `secateurs scores`, `secateurs models`, `secateurs data`: what exists, one line each.


def scores() -> None:
    """List the scores: how important is a weight."""
    from secateurs.scores import SCORES

    _print((name, SCORES[name].description) for name in SCORES.names())


def models() -> None:
    """List the networks that come with the package."""
    from secateurs.models import MODELS

    _print((name, MODELS[name].summary) for name in MODELS.names())


def data() -> None:
    """List the data sets that can be read."""
    from secateurs.data import DATA

    aliases: dict[str, list[str]] = {}
    for name in DATA.names():
        # Names of one set share its summary, and its line.
        aliases.setdefault(DATA[name].summary, []).append(name)
    _print((" = ".join(names), summary) for summary, names in aliases.items())


def _print(rows: Iterable[tuple[str, str]]) -> None:
    # A list first: the width of the column is that of the longest name.
    lines = list(rows)
    width = max(len(name) for name, _ in lines)
    for name, summary in lines:
        say(f"{name:{width}}  {summary}")
