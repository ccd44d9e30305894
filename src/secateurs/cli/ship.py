"""Commands that make a network smaller and hand it on: `compact`, `pack`, `unpack`, `export`,
`measure`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateurs.cli.commands import (
    Arch,
    Classes,
    InChannels,
    Json,
    ModelFile,
    OutFile,
    Quiet,
    Size,
    check_outputs,
    open_model,
    say,
    show,
)
from secateurs.errors import DataError
from secateurs.printing import Screen

if TYPE_CHECKING:
    from torch import Tensor, nn


def compact(
    model: ModelFile,
    out: OutFile,
    arch: Arch = None,
    masks: Annotated[
        Path | None,
        typer.Option(help="A mask file, if the masks are not applied yet."),
    ] = None,
    macs: Annotated[
        float | None,
        typer.Option(help="First prune whole channels down to this share of multiplications."),
    ] = None,
    multiple_of: Annotated[
        int, typer.Option(help="Round the channels of every layer up to a multiple.")
    ] = 1,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Cut dead channels and neurons out of a checkpoint; its outputs stay what they were.

    The file that is written has the same names with smaller shapes.
    """
    check_outputs([out], inputs=[model, masks])
    import torch

    from secateurs.channels.compact import compaction
    from secateurs.masks import apply_, load_masks
    from secateurs.prune import prune_channels_
    from secateurs.train import save_model

    network, notes = open_model(
        model, arch=arch, in_channels=in_channels, classes=classes, size=size
    )
    # Batch norm is a fixed scale in this mode only, and only then can a channel be
    # constant.
    network.eval()
    side = int(notes["size"])
    example = torch.zeros(1, int(notes["in_channels"]), side, side)
    # Masks first: what they drop is dead before channels are looked for.
    if masks is not None:
        apply_(network, load_masks(masks))
    if macs is not None:
        prune_channels_(network, example, macs=macs)
    done = compaction(network, example, multiple_of=multiple_of, progress=None if quiet else _say)
    save_model(done.model, out, notes=notes)
    say(done.to_json()) if json else show(done)


def _say(step: str) -> None:
    say(f"compact: {step}", err=True)


# Shared by the shipping commands: files of every kind as models, and progress.


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

    model, notes = open_model(path, arch=arch, in_channels=in_channels, classes=classes, size=size)
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
        raise DataError(f"{path} holds no JSON object, so it is not a certificate.")
    return held


def _program(path: Path) -> "tuple[nn.Module, Any]":
    import torch

    if not path.is_file():
        raise DataError(f"{path} is not a file.")
    try:
        program = torch.export.load(path)
    except Exception as error:  # zip, JSON and version errors of many types
        raise DataError(f"{path} is not a program of torch.export: {str(error)[:200]}.") from error
    args, kwargs = program.example_inputs or ((), {})
    model = program.module()
    for module in model.modules():
        module.training = False  # an exported program cannot change its mode, and says so
    return model, dict(kwargs) if kwargs else tuple(args)


# `secateurs pack MODEL` and `secateurs unpack FILE`: sparse files from checkpoints, and back.

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
        typer.Option(
            help="A certificate as JSON, from `secateurs certify --json`, to keep inside."
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint without its zeros, exact to the bit. The network need not be known."""
    check_outputs([out], inputs=[model, certificate])
    from secateurs.ship import save_sparse

    # Read inside: a large file is the part that takes its time.
    with steps(f"packing {model.name}", quiet=quiet):
        state, notes = tensors_of(model)
        proven = certificate_of(certificate)
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
    from secateurs.ship import unpack_sparse

    with steps(f"unpacking {file.name}", quiet=quiet):
        unpack_sparse(file, out, at_most=at_most)
    say(f"{out}: {out.stat().st_size:,} bytes")


# `secateurs export MODEL`: a checkpoint for onnxruntime, torch.export or a C compiler.


def export(
    model: ShippedFile,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The file: .onnx, .pt2 or .c.", show_default=False),
    ],
    arch: Arch = None,
    compact: Annotated[
        bool,
        typer.Option("--compact/--as-it-is", help="Cut dead channels out first."),
    ] = True,
    compiled: Annotated[
        bool,
        typer.Option("--compiled", help="Compile a .pt2 for this kind of processor."),
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(help="Largest difference, relative to the largest output."),
    ] = 1e-5,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a network for another runtime; it is run at once and kept only if it is equal."""
    check_outputs([out], inputs=[model])
    from secateurs.ship import export as exported

    with steps(f"exporting {model.name}", quiet=quiet) as step:
        network, example = open_shipped(
            model, arch=arch, in_channels=in_channels, classes=classes, size=size
        )
        # A .pt2 program is fixed: its shapes can no longer be cut.
        if compact and model.suffix != ".pt2":
            network = _smaller(network, example, step)
        done = exported(
            network,
            out,
            example,
            compiled=compiled,
            tolerance=tolerance,
            progress=step,
        )
    say(done.to_json()) if json else show(done)


def _smaller(network: "nn.Module", example: Any, step: Callable[[str], None]) -> "nn.Module":
    """The compacted network; the network itself, and a line, where it cannot be compacted."""
    from secateurs.channels import compact as compacted
    from secateurs.errors import SecateursError

    try:
        return compacted(network, example, progress=step)
    except SecateursError as problem:
        say(f"exported as it is, not compacted: {problem}", err=True)
        return network


# `secateurs measure MODEL`: what compaction and the fast path are worth on this machine.


def measure(
    model: ShippedFile,
    arch: Arch = None,
    batch: Annotated[list[int] | None, typer.Option(help="Samples a call; repeatable.")] = None,
    seconds: Annotated[float, typer.Option(help="How long each batch size is measured.")] = 2.0,
    threads: Annotated[int | None, typer.Option(help="How many threads.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table as CSV, too.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write bars as a picture, too.")] = None,
    fast: Annotated[bool, typer.Option("--fast/--no-fast", help="The fast path, too.")] = True,
    in_channels: InChannels = None,
    classes: Classes = None,
    size: Size = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a network as it is, compacted and on the fast path; "no gain" where there is none."""
    check_outputs([csv, svg], inputs=[model])
    import torch

    from secateurs.ship import measure as measured

    if threads is not None:
        torch.set_num_threads(threads)
    with steps(f"measuring {model.name}", quiet=quiet) as step:
        network, example = open_shipped(
            model, arch=arch, in_channels=in_channels, classes=classes, size=size
        )
        forms = _forms(network, example, fast, step)
        # One sample is latency, 64 are throughput, and sparsity pays differently for
        # each.
        sizes = tuple(batch or (1, 64))
        table = measured(forms, example, batch_sizes=sizes, seconds=seconds, progress=step)
    for path in (csv, svg):
        if path is not None:
            table.save(path)
    say(table.to_json()) if json else show(table)


def _forms(network: "nn.Module", example: Any, fast: bool, step: Any) -> "dict[str, nn.Module]":
    """The model and every form that can be made of it; the others are reported and left out."""
    from secateurs.channels import compact
    from secateurs.errors import SecateursError
    from secateurs.ship import accelerate

    forms = {"as it is": network}
    makers: dict[str, Callable[[], nn.Module]] = {
        "compact": lambda: compact(network, example, progress=step)
    }
    if fast:
        makers["fast"] = lambda: accelerate(
            # Kept even where it is slower: the table is there to show that.
            network,
            example,
            keep="always",
            progress=step,
        )
    for name, make in makers.items():
        try:
            forms[name] = make()
        except SecateursError as error:
            say(f"{name}: left out, {error}", err=True)
    return forms
