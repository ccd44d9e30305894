"""`secateurs zoo`: the small networks that come with the package, and records that others made."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.commands import say
from secateurs.errors import ArgumentError

ACTIONS = ("list", "check", "records")


def zoo(
    action: Annotated[str, typer.Argument(help="list, check or records.")] = "list",
    record: Annotated[
        list[Path] | None,
        typer.Argument(
            help="For check: records (.json) to look at, by default all of the zoo.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="For records: the page to write; by default it is shown."),
    ] = None,
) -> None:
    """List the small networks that come with the package, check records, or write their page.

    A check reads the record and its file again: hash, network, kept weights, certificate, and the
    accuracy where the data are on this machine. Exit code 1 if one does not hold.
    """
    if action not in ACTIONS:
        raise ArgumentError(f"{action!r} is none of {', '.join(ACTIONS)}.")
    if out is not None and action != "records":
        raise ArgumentError(f"--out belongs to `secateurs zoo records`, not to {action}.")
    from importlib.resources import as_file, files

    with as_file(files("secateurs_lab.zoo").joinpath("networks")) as folder:
        if action == "check":
            _check(record or sorted(Path(folder).glob("*.json")))
        elif action == "records":
            _page(record, out)
        else:
            _list()


def _list() -> None:
    from secateurs_lab.zoo import names, record

    for name in names():
        found = record(name)
        say(
            f"{name:40s} {found.compression:8.4g}× {100 * found.accuracy:6.2f} %"
            f" {found.kept:8,} weights, {found.method}"
        )


def _check(records: list[Path]) -> None:
    from secateurs.errors import SecateursError
    from secateurs_lab.zoo import check

    bad = 0
    for path in records:
        try:
            found = check(path)
        except SecateursError as error:
            # The other records are still checked.
            bad += 1
            say(f"{path}: {error}", err=True)
            continue
        bad += not found.holds
        say(str(found), err=not found.holds)
    if bad:
        raise typer.Exit(1)


def _page(records: list[Path] | None, out: Path | None) -> None:
    from secateurs.base.safefile import replacing
    from secateurs_lab.zoo import names, read_record, record, records_page
    from secateurs_lab.zoo.records import opened

    if records:
        found = [read_record(path) for path in records]
        folders = [path.parent for path in records]
        text = records_page(found, networks=map(opened, found, folders))
    else:
        text = records_page(map(record, names()))
    if out is None:
        say(text)
        return
    with replacing(out) as part:
        part.write_text(text, encoding="utf-8")
    say(str(out))
