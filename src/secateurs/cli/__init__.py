"""The command line: parse, call one function, print.

A new command is one file with one function, and one line in `COMMANDS`:

* `cli/<name>.py` holds `def <name>(...) -> None` with typer annotations; its docstring is the help
  text. Options that several commands share are in `options.py`.
* torch and every module of ours that needs it are imported inside the function, never at the top of
  the file, so that `secateurs --help` stays quick (a test looks at `sys.modules`).
* What the user can get wrong raises an error of `secateurs.errors`; `main` prints it in one piece
  and exits with 2.
* Results go to standard output, progress to standard error. Files are written with
  `train.replacing`, after `options.check_outputs` has made sure that no input is overwritten.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

import secateurs
from secateurs.cli.certify import certify, recheck
from secateurs.cli.compact import compact
from secateurs.cli.demo import demo
from secateurs.cli.diagnose import diagnose
from secateurs.cli.inspect import inspect
from secateurs.cli.lists import data, models, scores
from secateurs.cli.paths import paths
from secateurs.cli.plan import plan
from secateurs.cli.probabilistic import probabilistic
from secateurs.cli.prune import prune
from secateurs.cli.reproduce import reproduce
from secateurs.cli.shipping.export import export
from secateurs.cli.shipping.measure import measure
from secateurs.cli.shipping.pack import pack, unpack
from secateurs.cli.study import app as study
from secateurs.cli.training.train import train
from secateurs.errors import SecateursError

COMMANDS: dict[str, Callable[..., None]] = {
    "prune": prune,
    "train": train,
    "inspect": inspect,
    "certify": certify,
    "compact": compact,
    "recheck": recheck,
    "scores": scores,
    "models": models,
    "data": data,
    "demo": demo,
    "paths": paths,
    "plan": plan,
    "diagnose": diagnose,
    "random-matrices": probabilistic,
    "reproduce": reproduce,
    "pack": pack,
    "unpack": unpack,
    "export": export,
    "measure": measure,
}

app = typer.Typer(
    help="Make PyTorch networks sparse: score, prune, train, inspect.",
    no_args_is_help=True,
    add_completion=False,
    # Errors of ours are told in one line, any other one in Python's own words.
    pretty_exceptions_enable=False,
)
for name, command in COMMANDS.items():
    app.command(name)(command)
# Its first name said nothing of what it does; scripts that use it go on for now.
app.command("probabilistic", hidden=True, deprecated=True)(probabilistic)
app.add_typer(study, name="study")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"secateurs {secateurs.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error of ours is one message on standard error and exit code 2."""
    try:
        app(
            args=None if arguments is None else list(arguments), prog_name="secateurs"
        )
    except SecateursError as error:
        _stop(str(error))
    # A disk that is full or a file that may not be read is the user's to know, not a
    # traceback's.
    except OSError as error:
        _stop(f"{error.filename or 'a file'}: {error.strerror or error}.")


def _stop(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
